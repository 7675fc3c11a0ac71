"""Begin a run: divide its scans, check its external set, write its first files."""

import gpytorch
import pandas as pd
import torch
import yaml

from ich_mil import __version__
from ich_mil.config import RunConfig
from ich_mil.errors import ConfigError, DataError, named
from ich_mil.files import digest, write_json, write_text
from ich_mil.gp.fit_calibration import FOLDS
from ich_mil.gp.inference.folds import folds_of
from ich_mil.model.folder import RUN_FORMAT, networks_digest, read_run, run_folder
from ich_mil.model.storage import learned_table
from ich_mil.model.training.cross_fit import check_patients
from ich_mil.model.training.training_sets import (
    keeps_networks,
    learned_by,
    prepare_set,
    slice_labels_digest,
    trained_on,
)
from ich_mil.progress import say
from ich_mil.sets.extras import Extras
from ich_mil.sets.feature_files import contents
from ich_mil.sets.features import FeatureSet, read_unseen_table
from ich_mil.sets.labels import name_some
from ich_mil.sets.splits import (
    check_current,
    check_same,
    check_splits,
    check_twins,
    check_unseen,
    draw_splits,
    learned_from,
    load_splits,
    network_learned,
    read_splits,
    splits_before,
    with_inherited,
    write_splits,
)
from ich_mil.sets.store import PreparedSet


def check_stopping(config: RunConfig, validation: bool) -> None:
    """Raise `ConfigError` if a CNN is to be trained without validation scans."""
    if config.train.layout != "features" and not validation:
        raise ConfigError("split: a CNN needs validation scans for early stopping; set split.validation")


def begin_run(
    config: RunConfig,
    scans: pd.DataFrame,
    extras: Extras,
    features: FeatureSet | None,
    external: PreparedSet | None,
) -> tuple[pd.DataFrame, PreparedSet | None]:
    """Split the scans and write the first files of the run; a resumed run keeps its split.

    Returns the split, and the prepared external set as returned by `train`. `splits.csv` also names the scans
    that the networks to start from have learned.
    """
    path = config.out / "splits.csv"
    # pictures need no digest: changed files are prepared again. Slice labels do: they are not in `splits.csv`
    table = slice_labels_digest(config) if features is None else digest(*contents(config.train.path))
    table += extras.digest
    start = "" if config.start is None else networks_digest(run_folder(config.start))
    if path.is_file() and (config.out / "run.json").is_file():
        began = read_run(config.out)
        where = config.prepared if features is None else config.train.path
        for now, then, told in (
            (table, began["table"], f"{where}: rows, labels of slices, boxes, texts or covariates have"),
            (start, began.get("start", start), f"{config.start}: the run to start from has"),
        ):
            if now != then:
                raise DataError(f"{told} changed since {config.out} began; start a new run")
        splits = load_splits(path)
        check_current(splits, scans, str(path))
        if added := sorted({*scans.index} - {*splits.scan}):
            say(f"{path}: scans that are not in it are not used: {len(added)}, {name_some(added)}")
        if config.split.file is not None:
            check_same(splits, read_splits(config.split.file, scans), str(config.split.file))
        return splits, external
    check_twins(scans, str(config.train.path))
    before = None if config.start is None else learned_table(run_folder(config.start))
    scans = scans.assign(learn=learned_by(scans.index, config))
    if before is not None:
        known = scans.patient.isin(splits_before(scans, network_learned(before)))
        scans.loc[known & (scans.learn == "sources"), "learn"] = "all"  # no network without them
        if keeps_networks(config, scans.index):
            scans.loc[~known & scans.learn.isin(("all", "sources")), "learn"] = "heads"
    splits = _divide(config, scans, before)
    with named(config.train.path):
        check_patients(splits)
    learned = with_inherited(splits, [] if before is None else [before])
    external = _check_external(config, learned, features, external)
    write_text(config.out / "config.yaml", yaml.safe_dump(config.as_dict(), sort_keys=False))
    versions = {"ich_mil": __version__, "torch": str(torch.__version__), "gpytorch": gpytorch.__version__}
    metadata = {
        "format": RUN_FORMAT,
        "cnn": config.train.layout != "features",
        "table": table,
        "config_hash": config.hash,
        "config": config.as_dict(),
        "trained_on": trained_on(config, splits),
        "start": start,
        "versions": versions,
    }
    write_json(config.out / "run.json", metadata)
    write_splits(learned, path)
    return splits, external


def _divide(config: RunConfig, scans: pd.DataFrame, before: pd.DataFrame | None) -> pd.DataFrame:
    """Split the scans by `split.file` or at random, and check that the head can be calibrated.

    `before` is the `splits.csv` of the networks to start from; their training scans are not held out.
    """
    file = config.split.file
    kept = {}
    if before is not None:
        held = before[before.split == "test"] if config.split.test else before[:0]
        kept = splits_before(scans, pd.concat([network_learned(before), held]))
    if file is not None:
        splits = read_splits(file, scans, kept=kept)
        if rest := sorted(set(scans.index) - set(splits.scan)):
            say(f"{file}: {len(rest)} scans are in no split and are not used: {name_some(rest)}")
    else:
        shares = {"validation": config.split.validation, "test": config.split.test}
        with named(config.train.path):
            splits = draw_splits(scans, **shares, seed=config.seed, kept=kept)
        if kept:
            check_splits(splits, f"{config.start}: scans that its networks learned are not held out")
    if not keeps_networks(config, scans.index):
        check_stopping(config, bool((splits.split == "validation").any()))
    if not (splits.split == "validation").any() and config.head.calibration != "none":
        learn = splits[splits.split == "train"]
        labels = torch.tensor(learn.label.tolist())
        with named(config.train.path):  # raises before anything is written if calibration is impossible
            folds_of(labels, learn.patient.tolist(), folds=FOLDS, seed=config.head.random_state)
    return splits


def _check_external(
    config: RunConfig, splits: pd.DataFrame, features: FeatureSet | None, prepared: PreparedSet | None
) -> PreparedSet | None:
    """Prepare the external set of pictures; `DataError` if the run trains on one of its patients."""
    settings, learned = config.external, learned_from(splits)
    if settings is None:
        return None
    if features is not None:
        width = features.x.shape[1]
        unseen = read_unseen_table(settings.path, settings.columns, width=width, learned=learned)
        settings.extras.read(unseen.scans)
        return None
    prepared = prepared or prepare_set(settings, "external", config, jobs=config.workers)
    check_unseen(prepared.scans, learned, str(settings.path))
    settings.extras.read(prepared.scans.index, prepared)
    return prepared
