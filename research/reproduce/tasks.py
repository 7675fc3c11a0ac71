"""Tasks of a benchmark protocol: the training scans and the scored scans of each fit.

No scan and no patient is both trained on and scored in a task.

* Tables of features and sets of bags: for each seed the bags are divided into folds by patient, stratified by
  label, and every fold is held out once (set `held-out`). With an external set, one more task is trained on
  all bags and scores the external set.
* Tables of features with a test set: for each network, one task is trained on all bags but the test scans,
  and scores these and the external set.
* Pictures: a network is trained for each CNN seed and width, all on the same split. Its head is fitted to the
  training scans, calibrated on the validation scans, and scores the test scans and the external scans.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
from sklearn.datasets import load_digits

from ich_mil.config import RunConfig, SplitSettings, read_config
from ich_mil.errors import ConfigError, named
from ich_mil.files import write_csv
from ich_mil.gp.inference.folds import folds_of
from ich_mil.model.site.validate import run_sets
from ich_mil.model.storage import load_model
from ich_mil.model.training.train import train
from ich_mil.model.training.training_sets import in_slices, prepare_training
from ich_mil.network.attention_cnn import CnnSettings
from ich_mil.progress import say
from ich_mil.sets.features import FeatureSet, read_feature_table
from ich_mil.sets.labels import UNKNOWN, name_some
from ich_mil.sets.splits import (
    SPLIT_COLUMNS,
    check_splits,
    check_unseen,
    draw_splits,
    keys_of,
    load_splits,
    read_scan_list,
    scan_keys,
    write_splits,
)
from research.reproduce.mil import digit_bags, project, read_mnist, read_musk
from research.reproduce.protocol import BenchmarkSet, ProtocolConfig

HELD_OUT = "held-out"
"""Name of the scored set that consists of the set's own scans, each scored by a fit that has not seen it."""


LEFT_OUT = ["scan", "split", "reason"]
"""Columns of the scans left out of a published list."""


@dataclass(frozen=True)
class Task:
    """Inputs of one fit.

    Attributes:
        set: name of the benchmark set.
        width: number of features D.
        seed: seed of folds and k-means; for pictures, of the network and k-means.
        fold: number of the held-out fold, -1 if there is none.
        train: training scans.
        validation: scans for early stopping and calibration; None calibrates on held-out folds of `train`.
        scored: name -> scans to score.
        ledgers: name -> ledger of each set of `scored` that was read from DICOM files.
    """

    set: str
    width: int
    seed: int
    fold: int
    train: FeatureSet
    validation: FeatureSet | None
    scored: dict[str, FeatureSet]
    ledgers: dict[str, pd.DataFrame] = field(default_factory=dict)


def tasks_of(one: BenchmarkSet, config: ProtocolConfig) -> Iterator[Task]:
    """Generate the tasks of one set; for pictures this trains the networks.

    Raises:
        DataError: invalid data, or a patient that is both trained on and scored.
        ConfigError: an unsuitable training configuration.
    """
    if one.kind == "pictures":
        tasks = _of_pictures(one, config)
    else:
        tasks = _of_networks(one) if one.test else _of_bags(one, config)
    for task in tasks:
        learned = keys_of(task.train.table)
        if task.validation is not None:
            learned |= keys_of(task.validation.table)
        for name, scored in task.scored.items():
            check_unseen(scored.table, learned, f"{one.name}, {name}")
        yield task


def read_bags(one: BenchmarkSet, config: ProtocolConfig) -> FeatureSet:
    """Read the bags of any set but `pictures`.

    Bags of digits are drawn with the first seed, so that seeds differ in their folds only.
    """
    seed = config.seeds[0]
    match one.kind:
        case "features":
            return read_feature_table(one.path("root"))
        case "musk":
            return read_musk(one.path("root"))
        case "digits":
            return digit_bags(*load_digits(return_X_y=True), seed=seed)
        case "mnist":
            return digit_bags(*read_mnist(one.path("root")), seed=seed)
        case "pictures":
            raise ValueError("pictures have no features before a network is trained")


def _of_bags(one: BenchmarkSet, config: ProtocolConfig) -> Iterator[Task]:
    external = read_feature_table(one.path("external")) if one.external else None
    bags = read_bags(one, config)
    for seed in config.seeds:
        with named(one.name):
            folds = folds_of(bags.labels, bags.patients, folds=config.folds, seed=seed)
        for fold, (inside, outside) in enumerate(folds):
            parts = [bags.select([bags.scans[b] for b in part]) for part in (inside, outside)]
            learn, held = project(*parts, components=one.components) if one.components else parts
            yield Task(one.name, learn.x.shape[1], seed, fold, learn, None, {HELD_OUT: held})
        if external is not None:
            yield Task(one.name, bags.x.shape[1], seed, -1, bags, None, {one.external_name: external})


def _of_networks(one: BenchmarkSet) -> Iterator[Task]:
    """One task for each network, all on the scans of a published split without leaks."""
    for seed in one.cnn_seeds:
        bags, test = (read_feature_table(one.path(what, seed=seed)) for what in ("root", "test"))
        scored = {"test": test}
        if one.external:
            scored[one.external_name] = read_feature_table(one.path("external", seed=seed))
        yield Task(one.name, bags.x.shape[1], seed, -1, _without(bags, test, one), None, scored)


def _without(bags: FeatureSet, test: FeatureSet, one: BenchmarkSet) -> FeatureSet:
    """Leave out the bags that share scan id, patient or slices with a test scan, and report them."""
    held = keys_of(test.table).keys()
    keys = {row[0]: scan_keys(*row) for row in bags.table[["patient", "content"]].itertuples()}
    leaks = [scan for scan in bags.scans if keys[scan] & held]
    if leaks:
        say(f"{one.name}: {len(leaks)} training scans are test scans too, left out: {name_some(leaks)}")
    return bags.select([scan for scan in bags.scans if not keys[scan] & held])


def _of_pictures(one: BenchmarkSet, config: ProtocolConfig) -> Iterator[Task]:
    base = read_config(["--config", str(one.path("root"))])
    if base.train.layout == "features":
        raise ConfigError(f"{one.root}: trains no network; name a configuration with pictures")
    if not one.scans and not base.split.test:
        raise ConfigError(f"{one.root}: split.test is 0 and no list of scans is named: nothing is held out")
    splits = _one_split(one, base, config)
    for width in one.widths:
        for seed in one.cnn_seeds:
            run = replace(
                base,
                out=config.out / "networks" / f"{one.name}_d{width}_s{seed}",
                members=1,
                seed=seed,
                cnn=CnnSettings(**{**vars(base.cnn), "features": width}),
                jobs=config.jobs or base.jobs,
                split=SplitSettings(file=splits),
            )
            train(run, resume=True)
            parts = run_sets(load_model(run.out), run)
            names = {"test": "test", "external": one.external_name}
            measured = {names[name]: part for name, part in parts.items() if name in names}
            scored = {name: other.features for name, other in measured.items()}
            ledgers = {
                name: other.prepared.ledger for name, other in measured.items() if other.prepared is not None
            }
            learn, watch = parts["train"].features.as_slices(in_slices(run)), parts["validation"].features
            yield Task(one.name, width, seed, -1, learn, watch, scored, ledgers)


def _one_split(one: BenchmarkSet, base: RunConfig, config: ProtocolConfig) -> Path:
    """File of the split that all networks share: the published list without leaks, or a random split."""
    path = config.out / "networks" / f"{one.name}_splits.csv"
    prepared = prepare_training(base, jobs=config.jobs or base.workers)
    share = base.split.validation
    if one.scans:
        splits, left_out = clean_list(one.path("scans"), prepared.scans, validation=share, seed=base.seed)
        for line in left_out.itertuples():
            say(f"{one.scans}: {line.scan} ({line.split}) is left out: {line.reason}")
        write_csv(path.with_name(f"{one.name}_left_out.csv"), left_out)
    else:
        splits = draw_splits(prepared.scans, validation=share, test=base.split.test, seed=base.seed)
    if base.external is None and not (splits.split == "test").any():
        raise ConfigError(f"{one.root}: neither test scans nor an external set, nothing to score")
    if path.is_file() and not load_splits(path).equals(splits):
        raise ConfigError(
            f"{path}: networks were trained on another split (the list or the scans have changed since); "
            "choose another --out"
        )
    write_splits(splits, path)
    return path


def clean_list(
    path: Path, scans: pd.DataFrame, *, validation: float, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read a published list of scans and remove leaks; `DataError` if invalid, or if too few scans remain.

    A leak is removed from the training side, so that the test scans remain those of the paper (in the list of
    1,150 RSNA scans of the literature one scan is in train and in test).

    Args:
        path: CSV with columns scan,split; split is train, validation or test.
        scans: prepared scans: index scan id, columns `patient`, `label`, `content`.
        validation: fraction of the training patients used for validation if the list has no validation scans.
        seed: seed of that draw.

    Returns:
        The split, with columns `SPLIT_COLUMNS`; and the scans left out, with columns `LEFT_OUT`.
    """
    table = read_scan_list(path)
    left_out: list[pd.DataFrame] = []

    def leave_out(table: pd.DataFrame, away: pd.Series, reason: str) -> pd.DataFrame:
        left_out.append(table[away][["scan", "split"]].assign(reason=reason))
        return table[~away]

    table = leave_out(table, ~table.scan.isin(scans.index), "is not among the prepared scans")
    table = table.join(scans[["patient", "label", "content"]].assign(learn="all"), on="scan")
    table = leave_out(table, table.label == UNKNOWN, "has no label")
    # test scans have priority over validation scans, and these over training scans
    for split, worth_more in (("validation", "test"), ("train", "test"), ("train", "validation")):
        kept = table[table.split == worth_more]
        again = (table.split == split) & table.scan.isin(kept.scan)
        table = leave_out(table, again, f"is a {worth_more} scan too")
        kin = (table.split == split) & table.patient.isin(kept.patient)
        table = leave_out(table, kin, f"its patient has a {worth_more} scan")
    if not (table.split == "validation").any() and validation:
        learn = table[table.split == "train"].set_index("scan")[["patient", "label", "content"]]
        drawn = draw_splits(learn, validation=validation, test=0.0, seed=seed)
        table = pd.concat([drawn, table[table.split != "train"]])
    table = table[SPLIT_COLUMNS].reset_index(drop=True)
    check_splits(table, str(path))
    return table, pd.concat(left_out, ignore_index=True)[LEFT_OUT]
