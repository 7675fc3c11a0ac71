"""Scan metrics of subgroups: each as a set of its own, and what is too small for an interval."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from ich_mil.evaluate.metrics import SCAN, metrics_of
from ich_mil.evaluate.model_metrics import estimates
from ich_mil.sets.layouts.cq500 import FINDINGS, read_cq500_findings
from research.reproduce.statistics.subgroups import (
    COLUMNS,
    FEW,
    series_groups,
    slice_count_groups,
    subgroup_table,
    subtype_groups,
)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 2
    return (
        labels,
        np.clip(0.2 * labels + 0.8 * rng.random(120), 0, 1),
        np.array([f"p{i}" for i in range(120)]),
    )


def measured(data, groups, *, seed=0, resamples=50):
    return subgroup_table(*data, groups, seed=seed, resamples=resamples)


def test_groups_are_measured_as_sets(data):
    labels, probability, _ = data
    members = np.arange(120) % 5 < 2
    patients = np.array([f"p{i // 3}" for i in range(120)])
    groups = {"all": labels >= 0, "first": members}
    frame = measured((labels, probability, patients), groups, seed=2, resamples=80)
    assert list(frame.columns) == COLUMNS
    assert frame.group.tolist() == ["all", "first"]
    for row, chosen in zip(frame.to_dict("records"), groups.values(), strict=True):
        y, p, owner = labels[chosen], probability[chosen], patients[chosen]
        assert (row["n"], row["positives"], row["patients"]) == (len(y), y.sum(), len(set(owner)))
        for name, found in estimates(metrics_of(SCAN), y, [p], owner, resamples=80, seed=2).items():
            if name in row:
                assert row[name] == found.values[0]
                assert (row[f"{name}_low"], row[f"{name}_high"]) == (found.interval.low, found.interval.high)
        assert row["note"] == ""


def test_few_patients_have_no_interval(data):
    labels = data[0]
    positives = np.flatnonzero(labels == 1)
    members = labels == 0
    members[positives[: FEW - 1]] = True
    few = measured(data, {"g": members}).iloc[0]
    ends = [name for name in COLUMNS if name.endswith(("_low", "_high"))]
    assert few[ends].isna().all()
    assert few[["auc", "log_loss", "sensitivity", "specificity"]].notna().all()
    assert few.note.startswith("few: 9 patients with a positive scan and 60 with a negative one")
    members[positives[FEW - 1]] = True
    enough = measured(data, {"g": members}).iloc[0]
    assert enough[ends].notna().all()
    assert enough.note == ""


def test_what_is_not_defined_says_why(data):
    labels, probability, _ = data
    groups = {"bleeds": labels == 1, "no bleeds": labels == 0, "nobody": np.zeros(120, bool)}
    frame = measured(data, groups).set_index("group")
    missing = frame[["auc", "sensitivity", "specificity", "log_loss"]].isna().to_numpy().tolist()
    assert missing == [[True, False, True, False], [True, True, False, False], [True] * 4]
    assert frame.sensitivity["bleeds"] == (probability[labels == 1] >= 0.5).mean()
    notes = frame.note.tolist()
    assert notes[0].startswith("no negative scan")
    assert notes[1].startswith("no positive scan")
    assert notes[2] == "no labelled scan"


def test_each_group_of_series_has_its_own_code():
    codes = ["series-kind", "part-of-head", "averaged", "tilted", "gap"]
    ledger = pd.DataFrame({"scan": codes, "code": codes})
    groups = series_groups(ledger, codes)
    assert {name: np.flatnonzero(where).tolist() for name, where in groups.items()} == {
        "another kind of series": [0],
        "a part of a head": [1],
        "averaged from thin slices": [2],
        "tilted gantry": [3],
        "gaps between slices": [4],
    }
    assert list(series_groups(ledger[ledger.code == "gap"], codes)) == ["gaps between slices"]


def test_slice_count_groups():
    sizes = [1, 20, 21, 45, 46, 100, 101, 400]
    groups = slice_count_groups(np.concatenate([[0], np.cumsum(sizes)]))
    assert {name: np.flatnonzero(members).tolist() for name, members in groups.items()} == {
        "up to 20 slices": [0, 1],
        "21 to 45 slices": [2, 3],
        "46 to 100 slices": [4, 5],
        "over 100 slices": [6, 7],
    }


def test_subtype_groups():
    labels = np.array([1, 1, 0, -1, 1, 0])
    kinds = pd.DataFrame({"IPH": [1, 0, 0, 1, 1, 0], "SDH": [0, 0, 0, 0, 1, 1]}).astype(bool)
    groups = subtype_groups(labels, kinds)
    assert {name: np.flatnonzero(members).tolist() for name, members in groups.items()} == {
        "IPH": [0, 2, 4, 5],
        "SDH": [2, 4, 5],
    }


@pytest.mark.realdata
def test_cq500_by_kind_of_bleed_and_length(shared_data, cq500_features):
    """The paper's CNN on the public CQ500 features, in the groups a validator reads first."""
    features = cq500_features
    findings = read_cq500_findings(shared_data / "features" / "cq500_reads.csv").loc[features.scans]
    labels, probability = features.labels.numpy(), features.cnn_scan.numpy().astype(np.float64)
    groups = subtype_groups(labels, findings[list(FINDINGS)])
    groups |= slice_count_groups(features.offsets.numpy())
    groups |= {"readers agree": findings.readers_agree.to_numpy()}
    frame = subgroup_table(labels, probability, features.patients, groups, seed=0, resamples=20)
    frame = frame.set_index("group")
    assert frame.positives[list(FINDINGS)].tolist() == [205, 134, 28, 53, 13, 60]
    lengths = frame.loc[[name for name in frame.index if "slices" in name]]
    assert (lengths.n.sum(), lengths.positives.sum()) == (490, 205)
    assert frame.auc["readers agree"] > frame.auc["ICH"]
    negatives = labels == 0
    chosen = negatives | findings.SDH.to_numpy()
    assert frame.auc["SDH"] == pytest.approx(roc_auc_score(labels[chosen], probability[chosen]))
