import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from ich_mil.data.layouts.cq500 import FINDINGS, read_cq500_findings
from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import of_proportion, pairs, patient_bootstrap
from ich_mil.evaluate.metrics import scan_metrics
from ich_mil.evaluate.resampled_metrics import resampled_scan_metrics
from ich_mil.reproduce.statistics.subgroups import (
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


def test_a_group_is_measured_as_a_set_of_its_own(data):
    labels, probability, patients = data
    members = np.arange(120) % 5 < 2
    patients = np.array([f"p{i // 3}" for i in range(120)])
    frame = subgroup_table(
        labels, probability, patients, {"all": labels >= 0, "first": members}, seed=2, resamples=80
    )
    assert list(frame.columns) == COLUMNS
    assert frame.group.tolist() == ["all", "first"]
    for row, chosen in zip(frame.to_dict("records"), (labels >= 0, members), strict=True):
        y, p = labels[chosen], probability[chosen]
        assert (row["n"], row["positives"], row["patients"]) == (len(y), y.sum(), len(set(patients[chosen])))
        assert row["auc"] == roc_auc_score(y, p)
        assert row["log_loss"] == scan_metrics(y, p)["log_loss"]
        assert row["sensitivity"] == pytest.approx((p[y == 1] >= 0.5).mean())
        assert row["specificity"] == pytest.approx((p[y == 0] < 0.5).mean())
        expected = patient_bootstrap(
            lambda counts, y=y, p=p: resampled_scan_metrics(y, p, counts),
            patients[chosen],
            resamples=80,
            seed=2,
        )
        behind = pairs(patients[chosen][y == 1], patients[chosen][y == 0])
        expected["auc"] = of_proportion(expected["auc"], row["auc"], behind)
        for metric in ("auc", "log_loss"):
            interval = expected[metric]
            assert (row[f"{metric}_low"], row[f"{metric}_high"]) == (interval.low, interval.high)
        for metric, kind in (("sensitivity", 1), ("specificity", 0)):
            of_class, right = y == kind, (p >= 0.5) == kind
            interval = patient_bootstrap(
                lambda c, k=of_class, r=right: {"share": (k & r).astype(float) @ c / (k.astype(float) @ c)},
                patients[chosen],
                resamples=80,
                seed=2,
            )["share"]
            interval = of_proportion(interval, row[metric], len(set(patients[chosen][of_class])))
            assert (row[f"{metric}_low"], row[f"{metric}_high"]) == (interval.low, interval.high)
        assert row["note"] == ""


def test_a_group_in_which_every_bleed_is_found_is_not_one_where_none_can_be_missed():
    labels = np.repeat([1, 0], [13, 40])
    p = np.where(labels == 1, 0.9, np.linspace(0, 0.8, 53))
    patients = np.arange(53).astype(str)
    row = subgroup_table(labels, p, patients, {"g": np.ones(53, bool)}, seed=0, resamples=50).iloc[0]
    assert (row.sensitivity, row.sensitivity_high) == (1, 1)
    assert row.sensitivity_low == pytest.approx(0.025 ** (1 / 13))
    assert row.specificity_low < row.specificity < row.specificity_high < 1


def test_unlabelled_scans_belong_to_no_group(data):
    labels, probability, patients = data
    hidden = np.arange(120) % 3 == 0
    part = np.where(hidden, -1, labels)
    frame = subgroup_table(part, probability, patients, {"g": np.ones(120, bool)}, seed=0, resamples=50)
    same = subgroup_table(labels, probability, patients, {"g": ~hidden}, seed=0, resamples=50)
    pd.testing.assert_frame_equal(frame, same)
    assert frame.n[0] == 80


def test_few_patients_of_a_class_get_a_value_and_no_interval(data):
    labels, probability, patients = data
    positives = np.flatnonzero(labels == 1)
    members = labels == 0
    members[positives[: FEW - 1]] = True
    few = subgroup_table(labels, probability, patients, {"g": members}, seed=0, resamples=50).iloc[0]
    ends = [name for name in COLUMNS if name.endswith(("_low", "_high"))]
    assert len(ends) == 8
    assert few[ends].isna().all()
    assert few[["auc", "log_loss", "sensitivity", "specificity"]].notna().all()
    assert few.note == (
        "few: 9 patients with a positive scan and 60 with a negative one, an interval needs 10 of each"
    )
    members[positives[FEW - 1]] = True
    enough = subgroup_table(labels, probability, patients, {"g": members}, seed=0, resamples=50).iloc[0]
    assert enough[ends].notna().all()
    assert enough.note == ""
    # ten scans of one patient are one patient
    patients = np.where(np.isin(np.arange(120), positives[:2]), "same", patients)
    again = subgroup_table(labels, probability, patients, {"g": members}, seed=0, resamples=50).iloc[0]
    assert again.positives == FEW
    assert again.note.startswith("few: 9 patients with a positive scan")


def test_what_is_not_defined_says_why(data):
    labels, probability, patients = data
    groups = {"bleeds": labels == 1, "no bleeds": labels == 0, "nobody": np.zeros(120, bool)}
    frame = subgroup_table(labels, probability, patients, groups, seed=0, resamples=50).set_index("group")
    bleeds, clean, nobody = frame.loc["bleeds"], frame.loc["no bleeds"], frame.loc["nobody"]
    assert np.isnan(bleeds.auc)
    assert np.isnan(bleeds.specificity)
    assert bleeds.sensitivity == (probability[labels == 1] >= 0.5).mean()
    assert bleeds.note.startswith("no negative scan, so no AUC and specificity; few: 60 patients with")
    assert np.isnan(clean.sensitivity)
    assert clean.note.startswith("no positive scan, so no AUC and sensitivity; few: 0 patients with")
    assert nobody.note == "no labelled scan"
    assert nobody.n == 0
    assert nobody[["auc", "log_loss", "sensitivity"]].isna().all()
    assert list(subgroup_table(labels, probability, patients, {}, seed=0).columns) == COLUMNS


def test_groups_that_cannot_be_used(data):
    labels, probability, patients = data
    with pytest.raises(ValueError, match=r"group 'g' must be \(120,\) bool, got \(120,\) int64"):
        subgroup_table(labels, probability, patients, {"g": np.ones(120, int)}, seed=0)
    with pytest.raises(ValueError, match=r"got \(3,\) bool"):
        subgroup_table(labels, probability, patients, {"g": np.ones(3, bool)}, seed=0)
    with pytest.raises(ValueError, match="5 patients for 120 scans"):
        subgroup_table(labels, probability, patients[:5], {"g": labels == 1}, seed=0)
    with pytest.raises(DataError, match="a probability must lie in"):
        subgroup_table(labels, probability + 1, patients, {"g": labels == 1}, seed=0)


def test_series_groups():
    lines = [("a", "tilted"), ("a", "gap"), ("c", "tilted"), ("c", "tilted"), ("", "not-dicom")]
    ledger = pd.DataFrame([*lines, ("z", "series-kind")], columns=["scan", "code"])
    groups = series_groups(ledger, ["a", "b", "c"])
    assert {name: where.tolist() for name, where in groups.items()} == {
        "tilted gantry": [True, False, True],
        "gaps between slices": [True, False, False],
    }


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


def test_a_scan_at_the_threshold_is_called_positive():
    labels, half = np.array([0, 1]), np.full(2, 0.5)
    row = subgroup_table(labels, half, ["a", "b"], {"g": np.ones(2, bool)}, seed=0).iloc[0]
    assert (row.sensitivity, row.specificity) == (1, 0)


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
    with pytest.raises(ValueError, match="6 labels and 5 rows"):
        subtype_groups(labels, kinds.iloc[1:])
    with pytest.raises(ValueError, match="'SDH' is int64"):
        subtype_groups(labels, kinds.astype({"SDH": int}))


@pytest.mark.realdata
def test_cq500_by_kind_of_bleed_and_length(shared_data, cq500_features):
    """The paper's CNN on the public CQ500 features, in the groups a validator reads first."""
    features = cq500_features
    findings = read_cq500_findings(shared_data / "features" / "cq500_reads.csv").loc[features.scans]
    labels, probability = features.labels.numpy(), features.cnn_scan.numpy().astype(np.float64)
    np.testing.assert_array_equal(findings.ICH, labels == 1)  # the two files tell the same
    groups = subtype_groups(labels, findings[list(FINDINGS)])
    groups |= slice_count_groups(features.offsets.numpy())
    groups |= {"readers agree": findings.readers_agree.to_numpy()}
    frame = subgroup_table(labels, probability, features.patients, groups, seed=0, resamples=200)
    frame = frame.set_index("group")
    assert frame.positives[list(FINDINGS)].tolist() == [205, 134, 28, 53, 13, 60]
    lengths = frame.loc[[name for name in frame.index if "slices" in name]]
    assert (lengths.n.sum(), lengths.positives.sum()) == (490, 205)
    assert frame.auc["readers agree"] > frame.auc["ICH"]
    negatives = labels == 0
    chosen = negatives | findings.SDH.to_numpy()
    assert frame.auc["SDH"] == roc_auc_score(labels[chosen], probability[chosen])
