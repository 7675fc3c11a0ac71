"""The sets a run trains on: prepared, read as one, and the scans of them that are used slice by slice.

In: a `RunConfig` whose sets are pictures. Out: one `PreparedSet` of all of them; ids of scans.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from ich_mil.config import RunConfig, SetSettings
from ich_mil.data.features import FeatureSet
from ich_mil.data.joined import joined
from ich_mil.data.labels import UNKNOWN
from ich_mil.data.prepare import prepare
from ich_mil.data.store import PreparedSet, open_prepared
from ich_mil.errors import DataError
from ich_mil.files import digest
from ich_mil.gp.calibrate import calibrating
from ich_mil.progress import say_once

LEAST_WATCHED = 20
"""Scans of several slices on which a head that learns from single slices too is calibrated, at least."""


def prepare_set(one: SetSettings, name: str, config: RunConfig, *, jobs: int) -> PreparedSet:
    """Prepare a set of pictures of a run into the folder `name` below `config.prepared`."""
    assert one.layout != "features"  # those are read, not prepared
    return prepare(
        one.layout,
        one.path,
        config.prepared / name,
        jobs=jobs,
        thickness_mm=config.thickness_mm,
        window=one.picture_window,
        contrast_words=config.contrast_words,
    )


def prepare_training(config: RunConfig, *, jobs: int) -> PreparedSet:
    """Prepare all sets to train on.

    Raises:
        DataError: data that cannot be used, or a scan or slice that is in two sets.
    """
    sets = config.training_sets
    return joined([prepare_set(one, name, config, jobs=jobs) for name, one in sets.items()])


def open_training(config: RunConfig) -> PreparedSet:
    """Open the sets that `prepare_training` prepared."""
    return joined([open_prepared(config.prepared / name) for name in config.training_sets])


def in_slices(config: RunConfig, features: FeatureSet | None = None) -> set[str]:
    """Scans that are trained on slice by slice: of sets that ask for it, those whose slices are all labelled.

    Args:
        config: the run.
        features: of its scans, where it trains on a table of features.

    Raises:
        DataError: a set that asks for it has no such scan.
    """
    return {*_labelled_slices(config, features).scan}


def has_single_slices(config: RunConfig) -> bool:
    """Whether a set of single labelled slices is among those to train on."""
    return any(one.layout == "slices" for one in config.training_sets.values())


def heads_only(config: RunConfig) -> set[str]:
    """Scans of sets that networks are not trained on."""
    sets = [name for name, one in config.training_sets.items() if not one.networks]
    return {scan for name in sets for scan in open_prepared(config.prepared / name).table.scan}


def trained_on(config: RunConfig, splits: pd.DataFrame) -> str:
    """The sets a run learns from, such as 'RSNA: 2,001 labelled slices, 601 positive; CT-ICH: 55 scans, ...'.

    Args:
        config: the run.
        splits: columns scan, label, split; scans of the split `test` are not counted.
    """
    learned = splits[splits.split != "test"]
    parts = []
    for name, one in config.training_sets.items():
        own = learned
        if one.layout != "features":
            own = learned[learned.scan.isin(open_prepared(config.prepared / name).scans.index)]
        what = "labelled slices" if one.layout == "slices" else "scans"
        head = "" if one.networks else " (heads alone)"
        positive = int((own.label == 1).sum())
        parts.append(f"{one.name or one.path.name}: {len(own):,} {what}, {positive:,} positive{head}")
    return "; ".join(parts)


def slice_labels_digest(config: RunConfig) -> str:
    """Digest of the slice labels that a run on pictures is trained on; '' where there are none."""
    rows = _labelled_slices(config, None)
    return digest(rows.to_csv(index=False).encode()) if len(rows) else ""


def _labelled_slices(config: RunConfig, features: FeatureSet | None) -> pd.DataFrame:
    """The slices trained on with their own label: columns scan, sop, slice_label."""
    columns = ["scan", "sop", "slice_label"]
    found: list[pd.DataFrame] = []
    for name, one in config.training_sets.items():
        if not one.slice_labels:
            continue
        if one.layout == "features":
            assert features is not None  # of a run on a table
            sizes = features.offsets.diff().numpy()
            values = (np.repeat(features.scans, sizes), features.slice_names, features.slice_labels.numpy())
            table = pd.DataFrame(dict(zip(columns, values, strict=True)))
        else:
            table = open_prepared(config.prepared / name).table[columns]
        whole = (table.slice_label != UNKNOWN).groupby(table.scan).transform("all")
        if not whole.any():
            raise DataError(
                f"{one.path}: slice_labels is set, but no scan has a label for each slice; leave it out"
            )
        found.append(table[whole])
    return pd.concat(found) if found else pd.DataFrame(columns=columns)


class HeadScans(NamedTuple):
    """The scans of a head.

    Attributes:
        learn: those it is fitted to.
        watch: those it is stopped and calibrated on; None: held-out folds of `learn` calibrate it.
    """

    learn: list[str]
    watch: list[str] | None


def head_scans(features: FeatureSet, splits: pd.DataFrame, config: RunConfig) -> HeadScans:
    """Split `train` to fit a head to, and the scans of split `validation` to stop and calibrate it on.

    Beside single slices the validation scans of several slices alone calibrate: bags of one would calibrate
    the probability of a slice. Where they are fewer than `LEAST_WATCHED` the head is fitted to both splits
    and calibrated on folds.

    Args:
        features: of all scans.
        splits: columns scan, split.
        config: of the run.
    """
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
    """Of held-out scans those that are measured: beside single slices the scans of several.

    Where no set is of single slices, or the scans of several are not of both labels, all are taken.

    Args:
        features: of these scans, and maybe others.
        scans: their ids.
        config: of the run.
    """
    if not has_single_slices(config):
        return scans
    chosen = features.select(scans)
    return [scans[place] for place in calibrating(chosen.offsets, chosen.labels).tolist()]


def unseen_by_network(features: FeatureSet, splits: pd.DataFrame, config: RunConfig) -> list[str]:
    """Of `whole_scans` those that the network of a run was not trained on; none where it has no network."""
    if config.train.layout == "features":
        return []
    unseen = {*splits.scan[splits.split != "train"], *heads_only(config)}
    scans = [scan for scan in features.scans if scan in unseen]
    return whole_scans(features, scans, config) if scans else []
