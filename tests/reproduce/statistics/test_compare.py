import numpy as np
import pandas as pd
import pytest

from ich_mil.errors import DataError
from ich_mil.evaluate import bootstrap
from ich_mil.evaluate.bootstrap import patient_bootstrap
from ich_mil.evaluate.metrics import auc_inside, scan_metrics
from ich_mil.evaluate.resampled_metrics import resampled_scan_metrics
from ich_mil.reproduce.statistics.compare import COLUMNS, LOWER_IS_BETTER, compare, compare_slices
from ich_mil.reproduce.statistics.delong import delong_test


@pytest.fixture
def data():
    """90 scans of 60 patients: a good model, a worse one that shares its errors, and one by chance."""
    rng = np.random.default_rng(0)
    labels = (np.arange(90) % 3 == 0).astype(int)
    logit = rng.normal(size=90) + 1.5 * (2 * labels - 1)
    scores = {
        "worse": 1 / (1 + np.exp(-logit - 0.7 * rng.normal(size=90))),
        "good": 1 / (1 + np.exp(-logit)),
        "chance": rng.random(90),
    }
    return labels, scores, [f"p{i % 60}" for i in range(90)]


def row_of(frame, model, metric="auc"):
    (row,) = frame[(frame.model == model) & (frame.metric == metric)].to_dict("records")
    return row


def test_values_differences_and_facts(data):
    labels, scores, patients = data
    frame = compare(labels, scores, patients, reference="good", seed=0, resamples=100)
    assert list(frame.columns) == COLUMNS
    assert list(dict.fromkeys(frame.model)) == ["worse", "chance"]
    base = scan_metrics(labels, scores["good"])
    for name in ("worse", "chance"):
        values = scan_metrics(labels, scores[name])
        assert list(frame[frame.model == name].metric) == list(values)
        for metric, value in values.items():
            row = row_of(frame, name, metric)
            assert (row["value"], row["reference_value"]) == (value, base[metric])
            assert row["difference"] == value - base[metric]
            if metric != "ece":
                assert row["low"] <= row["high"]
            assert (row["n"], row["positives"], row["patients"], row["resamples"]) == (90, 30, 60, 100)
            assert np.isnan(row["delong_p"]) == (metric != "auc")
    row = row_of(frame, "worse")
    assert row["delong_p"] == delong_test(labels, scores["worse"], scores["good"]).p
    assert row["note"] == "DeLong counts scans as independent, but patients have several: read the interval"
    assert set(frame[~frame.metric.isin(["auc", "ece"])].note) == {""}
    alone = compare(labels, scores, np.arange(90), reference="good", seed=0, resamples=20)
    assert row_of(alone, "worse")["note"] == ""


def test_intervals_are_those_of_differences_on_shared_draws(data):
    labels, scores, patients = data
    frame = compare(labels, scores, patients, reference="good", seed=3, resamples=150)
    kept = []

    def statistic(counts):
        one, two = (resampled_scan_metrics(labels, scores[name], counts) for name in ("worse", "good"))
        kept.append({metric: one[metric] - two[metric] for metric in one})
        return kept[-1]

    expected = patient_bootstrap(statistic, patients, resamples=150, seed=3)
    for metric, interval in expected.items():
        row = row_of(frame, "worse", metric)
        if metric == "ece":
            continue
        assert (row["low"], row["high"], row["ignored"]) == (interval.low, interval.high, interval.ignored)
        won = -kept[0][metric] if metric in LOWER_IS_BETTER else kept[0][metric]
        assert row["better"] == pytest.approx((won > 0).mean() + (won == 0).mean() / 2)
    # models that share their errors: much narrower than for models measured on sets of their own
    own = [
        patient_bootstrap(
            lambda counts, score=scores[name]: resampled_scan_metrics(labels, score, counts),
            patients,
            resamples=150,
            seed=3,
        )["auc"]
        for name in ("worse", "good")
    ]
    auc = row_of(frame, "worse")
    unpaired = np.hypot(*(one.high - one.low for one in own))
    assert auc["high"] - auc["low"] < 0.75 * unpaired


def test_better_is_the_right_way_round(data):
    labels, scores, patients = data
    frame = compare(labels, scores, patients, reference="good", seed=0, resamples=200)
    assert row_of(frame, "chance")["better"] < 0.01
    for metric in ("log_loss", "brier"):
        assert row_of(frame, "chance", metric)["better"] < 0.01
    assert row_of(frame, "chance", "log_loss")["difference"] > 0
    turned = compare(labels, scores, patients, reference="chance", seed=0, resamples=200)
    for metric in set(frame.metric) - {"ece"}:
        one, two = row_of(frame, "chance", metric), row_of(turned, "good", metric)
        assert one["better"] + two["better"] == pytest.approx(1)
        assert (one["low"], one["high"]) == pytest.approx((-two["high"], -two["low"]))
    assert row_of(turned, "good")["delong_p"] == row_of(frame, "chance")["delong_p"]


def test_a_difference_of_calibration_errors_has_no_interval(data):
    labels, scores, patients = data
    row = row_of(compare(labels, scores, patients, reference="good", seed=0, resamples=50), "chance", "ece")
    assert row["difference"] == row["value"] - row["reference_value"] > 0
    assert np.isnan([row["low"], row["high"], row["better"]]).all()
    assert row["note"] == "resampling adds to an ECE, so it says nothing of a difference"


def test_a_model_against_itself(data):
    labels, scores, patients = data
    twins = {"a": scores["good"], "b": scores["good"]}
    frame = compare(labels, twins, patients, reference="a", seed=0, resamples=50)
    assert (frame.difference == 0).all()
    assert frame[["low", "high", "better"]].isna().all(axis=None)
    assert set(frame.note[~frame.metric.isin(["auc", "ece"])]) == {"all resamples agree, so no interval"}
    row = row_of(frame, "b")
    assert row["delong_p"] == 1
    variance = "variance 0: no scan tells the two apart; DeLong counts"
    assert row["note"].startswith(f"all resamples agree, so no interval; {variance}")


# [-0.5, -0.5] and [0, 0] said that neither model ever errs on another scan
def test_resamples_that_all_agree_bound_no_difference():
    labels = np.repeat([0, 1], 10)
    perfect = np.where(labels == 1, 0.8, 0.2)
    scores = {"perfect": perfect, "another": perfect**2, "constant": np.full(20, 0.4)}
    frame = compare(labels, scores, np.arange(20), reference="perfect", seed=0, resamples=50)
    for name, difference in (("another", 0), ("constant", -0.5)):
        row = row_of(frame, name)
        assert row["difference"] == difference
        assert np.isnan([row["low"], row["high"], row["better"]]).all()
        assert row["note"].startswith("all resamples agree, so no interval; variance 0")
    assert row_of(frame, "another", "brier")["low"] < row_of(frame, "another", "brier")["high"]


# the only positive scan is found by one model: [1, 1], better in all resamples
def test_a_class_of_one_patient_bounds_no_difference():
    labels = (np.arange(12) == 11).astype(int)
    score = np.linspace(0.1, 0.9, 12)
    scores = {"finds": score, "misses": np.where(labels == 1, 0.3, score)}
    frame = compare(labels, scores, np.arange(12), reference="misses", seed=0, resamples=200)
    for metric in ("sensitivity", "auc", "ap", "f1", "balanced_accuracy", "specificity_at_95"):
        row = row_of(frame, "finds", metric)
        assert row["difference"] > 0
        assert np.isnan([row["low"], row["high"], row["better"]]).all()
        assert row["note"].startswith("too few patients of a class, so no interval")
    assert row_of(frame, "finds", "accuracy")["high"] > 0


def test_unlabelled_scans_seed_and_chunks(data, monkeypatch):
    labels, scores, patients = data
    first = compare(labels, scores, patients, reference="good", seed=0, resamples=50)
    more = {name: np.concatenate([score, [0.5, 0.1]]) for name, score in scores.items()}
    padded = np.concatenate([labels, [-1, -1]]), more, [*patients, "p0", "new"]
    pd.testing.assert_frame_equal(compare(*padded, reference="good", seed=0, resamples=50), first)
    monkeypatch.setattr(bootstrap, "_CHUNK", 90 * 7)
    again = compare(labels, scores, patients, reference="good", seed=0, resamples=50)
    pd.testing.assert_frame_equal(again, first)
    other = compare(labels, scores, patients, reference="good", seed=1, resamples=50)
    assert row_of(other, "worse")["low"] != row_of(first, "worse")["low"]


def test_too_few_patients_or_scans_say_so():
    scores = {"a": np.array([0.1, 0.2, 0.3]), "b": np.array([0.1, 0.4, 0.3])}
    labels = np.array([0, 0, 1])
    frame = compare(labels, scores, ["x"] * 3, reference="a", seed=0, resamples=20)
    assert frame[["low", "high", "better", "delong_p"]].isna().all(axis=None)
    note = "one patient only, so no interval"
    assert row_of(frame, "b", "brier")["note"] == note
    assert row_of(frame, "b")["note"] == f"{note}; DeLong needs two scans of each class"
    frame = compare(labels, scores, list("xyz"), reference="a", seed=0, resamples=300)
    row = row_of(frame, "b")
    few = "too few patients of a class, so no interval"
    assert row["note"] == f"{few}; DeLong needs two scans of each class"
    assert row["ignored"] > 50
    assert row_of(frame, "b", "brier")["better"] < 0.5
    two = labels[1:], {name: score[1:] for name, score in scores.items()}, ["x", "y"]
    notes = {
        row_of(compare(*two, reference="a", seed=seed, resamples=1), "b")["note"].split(";")[0]
        for seed in range(8)  # half of the single resamples draw one patient twice
    }
    assert notes == {"no resample holds both classes", few}


def test_what_cannot_be_compared_says_why(data):
    labels, scores, patients = data
    with pytest.raises(DataError, match="90 of 90 labelled scans are positive"):
        compare(np.ones(90, int), scores, patients, reference="good", seed=0)
    with pytest.raises(DataError, match="0 of 0 labelled scans"):
        compare(np.full(90, -1), scores, patients, reference="good", seed=0)
    broken = np.where(np.arange(90) == 4, np.nan, scores["chance"])
    with pytest.raises(DataError, match="model 'chance': 1 of 90 scores are NaN"):
        compare(labels, {**scores, "chance": broken}, patients, reference="good", seed=0)
    with pytest.raises(DataError, match="model 'worse': a probability must lie in"):
        compare(labels, {**scores, "worse": 2 * scores["worse"]}, patients, reference="good", seed=0)
    with pytest.raises(ValueError, match=r"model 'worse': labels \(90,\) and scores \(3,\)"):
        compare(labels, {**scores, "worse": np.zeros(3)}, patients, reference="good", seed=0)
    with pytest.raises(ValueError, match="89 patients for 90 scans"):
        compare(labels, scores, patients[:89], reference="good", seed=0)
    with pytest.raises(ValueError, match="reference 'absent'"):
        compare(labels, scores, patients, reference="absent", seed=0)
    with pytest.raises(ValueError, match="a model to compare"):
        compare(labels, {"good": scores["good"]}, patients, reference="good", seed=0)


def test_slices_inside_scans_by_hand():
    # scan 0: slices 1 0 0; scan 1: all negative; scan 2: 1 1 0 and one unknown
    labels = np.array([1, 0, 0, 0, 0, 1, 1, 0, -1])
    scores = {
        "a": np.array([9.0, 1, 2, 5, 6, 3, 4, 1, 8]),  # AUC 1 and 1
        "b": np.array([2.0, 1, 3, 5, 6, 3, 1, 2, 8]),  # AUC 1/2 and 1/2
        "c": np.array([2.0, 1, 3, 5, 6, 3, 4, 1, 8]),  # AUC 1/2 and 1
    }
    offsets = np.array([0, 3, 5, 9])
    frame = compare_slices(labels, scores, ["x", "y", "z"], offsets, reference="a", seed=0, resamples=400)
    assert list(frame.columns) == COLUMNS
    assert frame.model.tolist() == ["b", "c"]
    assert set(frame.metric) == {"slice_auc_inside"}
    b, c = (row_of(frame, name, "slice_auc_inside") for name in "bc")
    assert (b["value"], b["reference_value"], b["difference"]) == (0.5, 1.0, -0.5)
    assert np.isnan([b["low"], b["high"], b["better"]]).all()
    assert b["note"] == "all resamples agree, so no interval"
    assert (c["difference"], c["low"], c["high"]) == (-0.25, -0.5, 0.0)
    assert c["better"] == pytest.approx(1 / 8, abs=0.05)  # half of the quarter of resamples with scan 2 twice
    assert (c["n"], c["patients"], c["note"]) == (2, 2, "")
    assert np.isnan(c["delong_p"])


def test_slices_pair_scan_by_scan_and_resample_patients():
    rng = np.random.default_rng(4)
    offsets = np.arange(0, 601, 15)
    bags, labels = np.repeat(np.arange(40), 15), rng.integers(0, 2, 600)
    labels[bags < 9] = 0  # negative scans come first, and take no part
    hard = rng.normal(size=600)
    scores = {"a": hard + labels, "b": hard + labels + 0.3 * rng.normal(size=600)}
    patients = [f"p{min(i, 30)}" for i in range(40)]  # the last ten scans are of one patient
    frame = compare_slices(labels, scores, patients, offsets, reference="a", seed=1, resamples=200)
    row = row_of(frame, "b", "slice_auc_inside")
    inside = {name: auc_inside(labels, score, bags)[1] for name, score in scores.items()}
    gap = inside["b"] - inside["a"]
    assert row["difference"] == pytest.approx(gap.mean())
    expected = patient_bootstrap(
        lambda counts: {"gap": gap @ counts / counts.sum(axis=0)}, patients[9:], resamples=200, seed=1
    )["gap"]
    assert (row["low"], row["high"], row["patients"]) == (expected.low, expected.high, 22)


def test_slices_that_cannot_be_compared():
    labels, offsets = np.array([0, 0, 1, 1]), np.array([0, 2, 4])
    scores = {"a": np.arange(4.0), "b": np.arange(4.0)}
    with pytest.raises(DataError, match="no scan has labelled slices of both kinds"):
        compare_slices(labels, scores, ["x", "y"], offsets, reference="a", seed=0)
    with pytest.raises(ValueError, match="1 patients, 3 offsets and 4 slice labels"):
        compare_slices(labels, scores, ["x"], offsets, reference="a", seed=0)
    nan = {**scores, "b": np.full(4, np.nan)}
    with pytest.raises(DataError, match="model 'b': 4 of 4 scores are NaN"):
        compare_slices(labels, nan, ["x", "y"], offsets, reference="a", seed=0)
    with pytest.raises(ValueError, match="reference 'c'"):
        compare_slices(labels, scores, ["x", "y"], offsets, reference="c", seed=0)
