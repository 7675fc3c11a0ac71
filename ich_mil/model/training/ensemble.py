"""Join finished runs to an ensemble, whose posterior samples are pooled and calibrated jointly.

In: finished runs. Out: a folder with a model for `predict`, `validate` and `serve`:

    run.json          that of the first member, with the list `members` and, in `joined`, their origins
    splits.csv        joint split of the scans of all members
    member_0/ ...     one run per member
    cnn_sigmoid.json  calibration of the mean CNN probability in result tables
    ensemble.json     joint calibration; written last, it marks the ensemble as finished

The joint calibration is fitted to scans held out by all members: their common validation scans. Where no
member has validation scans and all were fitted to the same scans, it is fitted to held-out folds of these.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ich_mil.config import RunConfig
from ich_mil.errors import ConfigError, ModelError, named
from ich_mil.evaluate.baselines import CNN_SIGMOID, CnnSigmoid
from ich_mil.files import alone, digest, write_json
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit_calibration import calibrating
from ich_mil.model.copying import copy_run
from ich_mil.model.folder import check_new, read_run, run_config
from ich_mil.model.model import Member, TrainedModel
from ich_mil.model.storage import (
    ensemble_member,
    learned_table,
    load_model,
    samples_each,
    write_ensemble,
)
from ich_mil.model.training.training_sets import has_single_slices, head_scans, head_slices, training_views
from ich_mil.progress import say
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.splits import (
    INHERITED,
    SPLITS,
    check_splits,
    keys_of,
    scan_keys,
    with_inherited,
    write_splits,
)


def join_runs(runs: Sequence[Path], out: Path) -> None:
    """Join finished runs or ensembles to one model in `out`, which holds a copy of each.

    Raises:
        ConfigError: `out` holds a run already; fewer than two members; a member given twice.
        ModelError: a run that is not finished, is recalibrated, or differs from the first in its kind of
            input (pictures or features).
        DataError: features of the common held-out scans cannot be read, or are of different slices.
    """
    with alone(out, doing="writing"):
        check_new(out, "joined")
        models = _load(runs)
        folders = [member.folder for model in models for member in model.members]
        tables = [learned_table(folder) for folder in folders]
        names = [f"member_{number}" for number in range(len(folders))]
        check_splits(
            joint_splits(tables), f"{out}: the runs hold out different scans, train them with one split.file"
        )
        metadata = read_run(folders[0])
        samples = max(read_run(folder)["config"]["samples"] for folder in folders)
        metadata |= {
            "config": metadata["config"] | {"members": len(folders), "samples": samples},
            "config_hash": digest(*(read_run(folder)["config_hash"].encode() for folder in folders)),
            "members": names,
            "joined": [str(folder) for folder in folders],
        }
        write_json(out / "run.json", metadata)
        for folder, name in zip(folders, names, strict=True):
            copy_run(folder, out / name)
        finish(out, [run_config(folder) for folder in folders])
    say(f"{out}: {len(folders)} members; use it as --model")


def _load(runs: Sequence[Path]) -> list[TrainedModel]:
    """Load the models of these runs and check that they can be joined."""
    models: list[TrainedModel] = []
    for run in runs:
        model = load_model(run)
        if "site" in read_run(run):
            raise ModelError(
                f"{run}: is recalibrated to a site; join the run it was made of, and recalibrate the ensemble"
            )
        first = models[0] if models else model
        first.check_input(pictures=model.members[0].cnn is not None)
        if same := [other.folder for other in models if other.provenance.weights == model.provenance.weights]:
            raise ConfigError(f"{run}: is the same model as {same[0]}; name it once")
        models.append(model)
    if sum(len(model.members) for model in models) < 2:
        raise ConfigError("an ensemble needs at least two finished runs")
    return models


def joint_splits(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Combine the `splits.csv` of all members; scans that earlier networks learned are left out.

    A scan belongs to the first split, in the order of `SPLITS`, that any member has assigned to a scan of its
    patient: a scan is held out only if every member has held out its patient.
    """
    table = pd.concat([table[table.split != INHERITED] for table in tables], ignore_index=True)
    for learn in ("sources", "all"):
        table.loc[table.scan.isin(table.scan[table.learn == learn]), "learn"] = learn
    table = table.sort_values("split", key=lambda split: split.map(SPLITS.index), kind="stable")
    table = table.drop_duplicates("scan").sort_index(ignore_index=True)
    rows = [*zip(table.scan, table.patient, table.content, strict=True)]
    for split in SPLITS[:-1]:
        before = -1
        while before != (count := int((table.split == split).sum())):
            before, known = count, keys_of(table[table.split == split].set_index("scan"))
            later = table.split.map(SPLITS.index) > SPLITS.index(split)
            again = np.array([not scan_keys(*row).isdisjoint(known) for row in rows])
            table.loc[later & again, "split"] = split
    return table


def finish(out: Path, runs: Sequence[RunConfig]) -> None:
    """Join what the members in `out/member_0`, ... learned, calibrate them jointly, mark `out` as finished.

    `runs` locate the members' training features.
    """
    metadata = read_run(out)
    config, names = metadata["config"], metadata["members"]
    members = [ensemble_member(load_model(out / name)) for name in names]
    learned = [learned_table(out / name) for name in names]
    earlier = [table[table.split == INHERITED] for table in learned]
    tables = [table[table.split != INHERITED] for table in learned]
    write_splits(with_inherited(joint_splits(learned), earlier), out / "splits.csv")
    sets: list[str] = []
    for about in map(read_run, (out / name for name in names)):
        sets += [about["trained_on"]] if about.get("start") else about["trained_on"].split("; ")
    write_json(out / "run.json", metadata | {"trained_on": "; ".join(dict.fromkeys(sets))})
    samples = samples_each(config["samples"], len(members))
    used = [
        head_scans(training_views([run], table.scan.tolist()).features, table, run)
        for run, table in zip(runs, tables, strict=True)
    ]
    refit = all(selected.watch is None for selected in used)
    scans = [selected.learn if refit else selected.watch or [] for selected in used]
    common = [scan for scan in scans[0] if all(scan in ids for ids in map(set, scans))]
    joint = None
    few = len(common) < min(map(len, scans)) / 2
    if few or (refit and len({frozenset(ids) for ids in scans}) > 1):
        say(f"{out}: {len(common)} scans are held out from all members, which keep their own calibrations")
    else:
        views = training_views(runs, common)
        features, mixed = views.features, refit and has_single_slices(runs[0])
        if all(member.calibration for member in members):
            pairs = zip(members, views.members, runs, strict=True)
            logits = torch.cat([_held_out(*pair, samples, refit=refit) for pair in pairs], 1)
            rule = members[0].head.settings.variant.rule
            bags = features.as_slices(head_slices(runs[0], features)) if refit else features
            indices = calibrating(bags.offsets, bags.labels) if mixed else slice(None)
            of_scan, of_slices = logits[:, :, indices]
            joint = Calibration.fit(of_scan, of_slices, bags.labels[indices], rule=rule)
        whole = calibrating(features.offsets, features.labels) if mixed else slice(None)
        if sigmoid := CnnSigmoid.fit(features.cnn_scan[whole], features.labels[whole]):
            sigmoid.save(out / CNN_SIGMOID)
    write_ensemble(joint, out)


def _held_out(member: Member, view: FeatureSet, run: RunConfig, samples: int, *, refit: bool) -> Tensor:
    """Logits (2, L, B) of held-out scans after the member's own calibration.

    With `refit`, these are cross-fitted logits of the scans the head was fitted to: heads of the same
    settings are fitted to the other folds.
    """
    if not refit:
        return member.logits(view, samples)
    view = view.as_slices(head_slices(run, view))
    with named(member.folder):
        both = member.head.held_out_logits(view, samples)
    assert member.calibration is not None  # checked by `finish`
    return member.calibration.logits(both)
