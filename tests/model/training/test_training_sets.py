"""The sets a run trains on: which scans are used slice by slice, and which are measured."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from ich_mil.config import RunConfig
from ich_mil.errors import DataError
from ich_mil.gp.head import Head
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.model.training import training_sets as module
from ich_mil.model.training.training_sets import (
    head_scans,
    in_slices,
    learned_for,
    set_names,
    slice_labels_digest,
    trained_on,
    unseen_by_network,
    whole_scans,
)
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.sets.features import read_feature_table
from tests.feature_table import write_features


@pytest.fixture
def config(tmp_path):
    return RunConfig(
        out=tmp_path / "run",
        train=SetSettings("rsna", "a", slice_labels=True),
        also=[SetSettings("folder", "b"), SetSettings("rsna", "c")],
        prepared=tmp_path / "prepared",
    )


@pytest.fixture
def tables(monkeypatch, config):
    """Tables of slices: the second scan of each set lacks a label."""
    tables = {
        name: pd.DataFrame(
            {
                "scan": [f"{name}-0"] * 2 + [f"{name}-1"] * 2,
                "sop": [f"{name}{n}" for n in range(4)],
                "slice_label": [0, 1, 1, -1],
            }
        )
        for name in config.training_sets
    }

    def opened(folder):
        table = tables[folder.name]
        return SimpleNamespace(table=table, scans=table.groupby("scan").first())

    monkeypatch.setattr(module, "open_prepared", opened)
    return tables


def test_scans_with_a_label_for_each_slice_of_sets_that_ask_for_it_are_used_slice_by_slice(config, tables):
    assert in_slices(config) == {"train-0"}
    more = [config.also[0], replace(config.also[1], slice_labels=True)]
    assert in_slices(replace(config, also=more)) == {"train-0", "also_2-0"}
    assert in_slices(replace(config, train=SetSettings("rsna", "a"))) == set()


def test_a_set_that_asks_for_slice_labels_it_has_not_is_refused(config, tables):
    tables["train"]["slice_label"] = [0, -1, 1, -1]
    with pytest.raises(DataError, match="a: slice_labels is set"):
        in_slices(config)


def test_labels_of_slices_that_are_trained_on_have_a_digest(config, tables):
    before = slice_labels_digest(config)
    assert slice_labels_digest(config) == before != ""
    tables["train"].loc[2, "slice_label"] = 0  # of the scan that stays whole
    tables["also_1"].loc[0, "slice_label"] = 1  # of a set that is trained on scan labels
    assert slice_labels_digest(config) == before
    tables["train"].loc[0, "slice_label"] = 1
    assert slice_labels_digest(config) != before
    assert slice_labels_digest(replace(config, train=SetSettings("rsna", "a"))) == ""


def test_sets_learned_from_are_named_with_their_scans_and_scans_unseen_by_the_network_are_listed(
    config, tables
):
    also = [SetSettings("slices", "b", name="pictures, real"), SetSettings("rsna", "c", learn="heads")]
    run = replace(config, also=also)
    scans = [scan for table in tables.values() for scan in dict.fromkeys(table.scan)]
    splits = pd.DataFrame({"scan": scans, "label": [1, 1, 1, 0, 0, 1], "split": "train"})
    splits["learn"] = ["all"] * 4 + ["heads"] * 2
    splits.loc[1, "split"] = "test"
    assert trained_on(run, splits) == (
        "a: 1 scans, 1 positive; pictures, real: 2 labelled slices, 1 positive; "
        "c: 2 scans, 1 positive (heads alone)"
    )
    features = SimpleNamespace(scans=scans)
    without = replace(run, also=also[1:])  # no single slices: every unseen scan counts
    tables["also_1"] = tables["also_2"]
    assert unseen_by_network(features, splits, without) == ["train-1", "also_2-0", "also_2-1"]
    of_features = replace(config, train=SetSettings("features", "f.csv"), also=[])
    assert unseen_by_network(features, splits, of_features) == []


def test_scans_of_a_feature_table_are_used_slice_by_slice_likewise(config, tmp_path):
    write_features(tmp_path / "f.csv", 6, 0)
    features = read_feature_table(tmp_path / "f.csv")
    run = replace(config, train=SetSettings("features", "f.csv", slice_labels=True), also=[])
    assert in_slices(run, features) == {*features.scans}
    labels = features.slice_labels.clone()
    labels[features.offsets[2]] = -1
    assert in_slices(run, replace(features, slice_labels=labels)) == {*features.scans} - {features.scans[2]}


def test_beside_single_slices_whole_scans_are_measured_where_they_have_both_labels(config, tmp_path):
    write_features(tmp_path / "f.csv", 6, 0)
    features = read_feature_table(tmp_path / "f.csv")
    mixed = features.as_slices(features.scans[4:])
    assert whole_scans(mixed, mixed.scans, config) == mixed.scans  # no set of single slices: all are scans
    beside = replace(config, also=[SetSettings("slices", "b")])
    assert whole_scans(mixed, mixed.scans, beside) == features.scans[:4]
    one_label = [name for name, y in zip(mixed.scans, mixed.labels.tolist(), strict=True) if y]
    assert whole_scans(mixed, one_label, beside) == one_label


@pytest.mark.parametrize("least", [3, 4])
def test_a_head_is_calibrated_on_whole_scans_or_where_they_are_few_on_folds(
    config, tmp_path, monkeypatch, least
):
    monkeypatch.setattr(module, "LEAST_WATCHED", least)
    write_features(tmp_path / "f.csv", 8, 0)
    features = read_feature_table(tmp_path / "f.csv")
    mixed = features.as_slices(features.scans[5:])
    split = ["train"] * 2 + ["validation"] * 3 + ["validation"] * (mixed.n_scans - 5)
    splits = pd.DataFrame({"scan": mixed.scans, "split": split})
    assert head_scans(mixed, splits, config) == (mixed.scans[:2], mixed.scans[2:])
    beside = replace(config, also=[SetSettings("slices", "b")])
    wanted = (mixed.scans[:2], mixed.scans[2:5]) if least == 3 else (mixed.scans, None)
    assert head_scans(mixed, splits, beside) == wanted


def test_sets_that_networks_are_not_trained_on_are_for_heads_alone(config, tables):
    assert learned_for(config, "heads") == set()
    run = replace(config, also=[replace(config.also[0], learn="heads"), config.also[1]])
    assert learned_for(run, "heads") == {*tables["also_1"].scan}
    with pytest.raises(ValueError, match="no network could be trained"):
        replace(config, train=replace(config.train, learn="heads"), also=[])


def test_scans_know_their_set(config, tables):
    scans = ["also_2-1", "train-0", "also_1-0"]
    assert set_names(scans, config) == ["also_2", "train", "also_1"]
    alone = RunConfig(out=config.out, train=SetSettings("features", "a.csv"))
    assert set_names(["x", "y"], alone) == ["train", "train"]


def test_single_slices_do_not_calibrate_beside_scans(tmp_path):
    write_features(tmp_path / "f.csv", 40, 0)
    features = read_feature_table(tmp_path / "f.csv")
    learn = features.as_slices(features.scans[20:])
    settings = HeadSettings(n_inducing=6, sweeps=3)
    mixed = GaussianProcessHead.fit(learn, settings, mixed=True).calibration
    head = Head(**vars(settings)).fit(
        learn.x, learn.offsets, learn.labels, groups=learn.patients, calibrates=learn.offsets.diff() > 1
    )
    assert mixed == head.model_.calibration
    assert mixed != GaussianProcessHead.fit(learn, settings).calibration
