"""Training sets of a run: preparation, joint access, and selection of scans for training and calibration.

In: a `RunConfig`. Out: a `PreparedSet` that joins all sets of pictures; ids of selected scans.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from ich_mil.config import RunConfig
from ich_mil.errors import DataError, named
from ich_mil.files import digest
from ich_mil.gp.fit_calibration import calibrating
from ich_mil.model.folder import read_run, run_folder
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.progress import say_once
from ich_mil.sets.boxes import BOXES, Boxes, read_boxes
from ich_mil.sets.extras import Extras
from ich_mil.sets.features import FeatureSet, read_feature_table, read_features
from ich_mil.sets.labels import UNKNOWN, name_some
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.store import PreparedSet, joined, open_prepared
from ich_mil.sets.views import Views

FEW = 100
"""Number of scans below which a run that starts from another keeps its networks and fits heads alone."""
LEAST_WATCHED = 20
"""Minimum of validation scans with several slices to calibrate a head that also learns single slices."""


def prepare_set(settings: SetSettings, name: str, config: RunConfig, *, jobs: int) -> PreparedSet:
    """Prepare a set of pictures into the folder `name` below `config.prepared`."""
    assert settings.layout != "features"  # feature tables are not prepared
    return prepare(
        settings.layout,
        settings.path,
        config.prepared / name,
        jobs=jobs,
        window=settings.picture_window,
        contrast_words=config.contrast_words,
    )


def prepare_training(config: RunConfig, *, jobs: int) -> PreparedSet:
    """Prepare all sets to train on, and join them. `DataError`: a scan or slice is in two sets."""
    sets = config.training_sets
    return joined([prepare_set(settings, name, config, jobs=jobs) for name, settings in sets.items()])


def open_training(config: RunConfig) -> PreparedSet:
    """Open the joined sets that `prepare_training` has written."""
    return joined([open_prepared(config.prepared / name) for name in config.training_sets])


def training_extras(config: RunConfig, scans: Iterable[str]) -> Extras:
    """Inputs beside the slices of the training scans `scans`, from all training sets."""
    extras, scans = Extras(), list(scans)
    for name, settings in config.training_sets.items():
        if settings.has_extras:
            prepared = None if settings.layout == "features" else open_prepared(config.prepared / name)
            ids = scans if prepared is None else [scan for scan in scans if scan in prepared.scans.index]
            extras |= settings.extras.read(ids, prepared)
    return extras


def training_views(runs: Sequence[RunConfig], scans: list[str]) -> Views:
    """Read the features of these scans of the common training set of several finished runs.

    Scans that train the location alone have no features and are left out.
    """
    without = learned_for(runs[0], "boxes")
    scans = [scan for scan in scans if scan not in without]
    views, paths = [], []
    for run in runs:
        settings, of_table = run.train, run.train.layout == "features"
        paths.append(settings.path if of_table else run.out / "features" / "train.safetensors")
        with named(paths[-1]):
            table = read_feature_table(paths[-1], settings.columns) if of_table else read_features(paths[-1])
            features = table.select(scans)
        views.append(replace(features, extras=training_extras(run, scans)))
    return Views.of(views, paths)


def in_slices(config: RunConfig, features: FeatureSet | None = None) -> set[str]:
    """Fully labelled scans of sets with `slice_labels` or `learn: sources`, learned slice by slice.

    `features` are those of a run on a feature table. `DataError`: a set with `slice_labels` has no such scan.
    """
    return {*_labelled_slices(config, features).scan}


def head_slices(config: RunConfig, features: FeatureSet) -> set[str]:
    """Scans that a head learns as single slices: those of `in_slices` whose networks are not cross-fitted."""
    return in_slices(config, features) - learned_for(config, "sources")


def has_single_slices(config: RunConfig) -> bool:
    """Whether the training sets include a set of single labelled slices (layout `slices`)."""
    return any(settings.layout == "slices" for settings in config.training_sets.values())


def learned_for(config: RunConfig, *use: str) -> set[str]:
    """Scans of the training sets whose `learn` is in `use`."""
    sets = [name for name, settings in config.training_sets.items() if settings.use in use]
    return {scan for name in sets for scan in open_prepared(config.prepared / name).table.scan}


def learned_by(scans: Iterable[str], config: RunConfig) -> list[str]:
    """`learn` of the training set of each scan."""
    return [config.training_sets[name].use for name in set_names([*scans], config)]


def keeps_networks(config: RunConfig, scans: Iterable[str]) -> bool:
    """Whether the run fits heads alone, on the networks that it starts from.

    True where no set trains networks, or where `scans` are few and `encoder.freeze` is not set.
    """
    if config.start is None:
        return False
    learning = learned_by(scans, config).count("all")
    return learning == 0 or (learning < FEW and config.encoder.freeze == "none")


def set_names(scans: Sequence[str], config: RunConfig) -> list[str]:
    """Name of the training set of each scan, as in `RunConfig.training_sets`."""
    sets = config.training_sets
    if len(sets) == 1:
        return [*sets] * len(scans)
    owner = {scan: name for name in sets for scan in open_prepared(config.prepared / name).scans.index}
    return [owner[scan] for scan in scans]


def training_boxes(config: RunConfig) -> Boxes:
    """Boxes of all training sets. `DataError`: a set with `learn: boxes` has none; a box is of no slice."""
    boxes: dict[str, np.ndarray] = {}
    for name, settings in config.training_sets.items():
        set_boxes = read_boxes(settings.path) if settings.layout == "slices" else {}
        if set_boxes and (lost := sorted({*set_boxes} - {*open_prepared(config.prepared / name).table.sop})):
            raise DataError(
                f"{settings.path / BOXES}: names of no slice: {len(lost)}, {name_some(lost)}; write them as "
                "in labels.csv"
            )
        if settings.use == "boxes" and not set_boxes:
            raise DataError(f"{settings.path}: learn: boxes is set, but there is no {BOXES}; add it")
        boxes |= set_boxes
    return boxes


def trained_on(config: RunConfig, splits: pd.DataFrame) -> str:
    """Describe the training sets, as in 'RSNA: 2,001 labelled slices, 601 positive; CT-ICH: 55 scans, ...'.

    `splits` has the columns scan, label, split, learn; scans of the split `test` are not counted.
    """
    learned = splits[splits.split != "test"]
    descriptions = []
    for name, settings in config.training_sets.items():
        rows = learned
        if settings.layout != "features":
            rows = learned[learned.scan.isin(open_prepared(config.prepared / name).scans.index)]
        what = "labelled slices" if settings.layout == "slices" else "scans"
        learn = settings.use if {*rows.learn} != {"heads"} else "heads"  # on the networks of another run
        told = {"heads": " (heads alone)", "boxes": " (location alone)", "sources": " (cross-fitted)"}
        positive = int((rows.label == 1).sum())
        terms = f", terms: {settings.terms}" if settings.terms else ""
        title = settings.name or settings.path.name
        descriptions.append(
            f"{title}: {len(rows):,} {what}, {positive:,} positive{told.get(learn, '')}{terms}"
        )
    if config.start is not None:
        before = read_run(run_folder(config.start))["trained_on"]
        descriptions.append(f"networks that began as those of {config.start}, which learned from: {before}")
    return "; ".join(descriptions)


def slice_labels_digest(config: RunConfig) -> str:
    """Digest of the slice labels and boxes that train a run on pictures; '' where there are none."""
    rows, boxes = _labelled_slices(config, None), training_boxes(config)
    parts = [rows.to_csv(index=False).encode()] if len(rows) else []
    parts += [part for name in sorted(boxes) for part in (name.encode(), boxes[name].tobytes())]
    return digest(*parts) if parts else ""


def _labelled_slices(config: RunConfig, features: FeatureSet | None) -> pd.DataFrame:
    """Slices with labels of their own in training: columns scan, sop, slice_label."""
    columns = ["scan", "sop", "slice_label"]
    tables: list[pd.DataFrame] = []
    for name, settings in config.training_sets.items():
        if not settings.slice_labels and settings.use != "sources":
            continue
        if settings.layout == "features":
            assert features is not None  # given for a run on a feature table
            sizes = features.offsets.diff().numpy()
            values = (np.repeat(features.scans, sizes), features.slice_names, features.slice_labels.numpy())
            table = pd.DataFrame(dict(zip(columns, values, strict=True)))
        else:
            table = open_prepared(config.prepared / name).table[columns]
        whole = (table.slice_label != UNKNOWN).groupby(table.scan).transform("all")
        if settings.slice_labels and not whole.any():
            raise DataError(
                f"{settings.path}: slice_labels is set, but no scan has a label for each slice; leave it out"
            )
        tables.append(table[whole])
    return pd.concat(tables) if tables else pd.DataFrame(columns=columns)


class HeadScans(NamedTuple):
    """Ids of the scans that a head is fitted to (`learn`), and of early stopping and calibration (`watch`).

    `watch` is None for calibration on held-out folds of `learn`.
    """

    learn: list[str]
    watch: list[str] | None


def head_scans(features: FeatureSet, splits: pd.DataFrame, config: RunConfig) -> HeadScans:
    """Select the scans for the fit of a head (split `train`) and its calibration (split `validation`).

    If the training sets include single slices, only validation scans with several slices are used for
    calibration: bags of one slice would calibrate the probability of a slice. With fewer than `LEAST_WATCHED`
    such scans the head is fitted to both splits and calibrated on folds.

    `features` are of all scans but those that train the location alone; `splits` has the columns scan, split.
    """
    splits = splits[splits.scan.isin({*features.scans})]
    learn, held = (splits.scan[splits.split == split].tolist() for split in ("train", "validation"))
    if not held or not has_single_slices(config):
        return HeadScans(learn, held or None)
    size = dict(zip(features.scans, features.offsets.diff().tolist(), strict=True))
    watch = [scan for scan in held if size[scan] > 1]
    if len(watch) < LEAST_WATCHED:
        say_once(
            f"{len(watch)} validation scans of several slices are too few to calibrate on: the head is "
            "fitted to them too, and calibrated on held-out folds"
        )
        return HeadScans(learn + held, None)
    return HeadScans(learn, watch)


def whole_scans(features: FeatureSet, scans: list[str], config: RunConfig) -> list[str]:
    """Select the held-out scans for evaluation: scans with several slices.

    All of `scans` are selected if no training set consists of single slices, or if the scans with several
    slices do not have both labels. `features` are of these scans, possibly among others.
    """
    if not has_single_slices(config):
        return scans
    chosen = features.select(scans)
    return [scans[index] for index in calibrating(chosen.offsets, chosen.labels).tolist()]


def unseen_by_network(features: FeatureSet, splits: pd.DataFrame, config: RunConfig) -> list[str]:
    """Scans of `whole_scans` whose features come from networks that did not learn them; else none."""
    if config.train.layout == "features":
        return []
    unseen = {*splits.scan[(splits.split != "train") | splits.learn.isin(("heads", "sources"))]}
    scans = [scan for scan in features.scans if scan in unseen]
    return whole_scans(features, scans, config) if scans else []
