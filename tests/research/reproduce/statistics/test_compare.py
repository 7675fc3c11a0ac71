"""Paired comparison on shared draws; DeLong's test by hand and by the jackknife."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import patient_bootstrap
from ich_mil.evaluate.metrics import measured, resampled
from research.reproduce.statistics.compare import COLUMNS, COMPARED, compare, compare_slices, delong_p

ENDS = ["low", "high", "better"]


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


def test_intervals_are_of_differences_on_shared_draws(data):
    labels, scores, patients = data
    frame = compare(labels, scores, patients, reference="good", seed=3, resamples=150)
    assert list(frame.columns) == COLUMNS
    assert list(dict.fromkeys(frame.model)) == ["worse", "chance"]
    draws = []

    def statistic(counts):
        one, two = (resampled(COMPARED, labels, scores[name], counts) for name in ("worse", "good"))
        draws.append({metric: one[metric] - two[metric] for metric in one})
        return draws[-1]

    expected = patient_bootstrap(statistic, patients, resamples=150, seed=3)
    values, base = (measured(COMPARED, labels, scores[name]) for name in ("worse", "good"))
    assert list(frame[frame.model == "worse"].metric) == list(values)
    for metric, interval in expected.items():
        row = row_of(frame, "worse", metric)
        assert (row["value"], row["reference_value"]) == (values[metric], base[metric])
        assert row["difference"] == values[metric] - base[metric]
        assert (row["n"], row["positives"], row["patients"], row["resamples"]) == (90, 30, 60, 150)
        if metric == "ece":
            assert np.isnan([row[name] for name in ENDS]).all()
            assert row["note"]
            continue
        assert (row["low"], row["high"], row["ignored"]) == (interval.low, interval.high, interval.ignored)
        won = draws[0][metric] * (-1 if metric in ("log_loss", "brier", "ece") else 1)
        assert row["better"] == pytest.approx((won > 0).mean() + (won == 0).mean() / 2)
        assert np.isnan(row["delong_p"]) == (metric != "auc")
    assert row_of(frame, "worse")["delong_p"] == delong_p(labels, scores["worse"], scores["good"])
    assert "DeLong counts the scans of a patient" in row_of(frame, "worse")["note"]
    alone = compare(labels, scores, np.arange(90), reference="good", seed=0, resamples=20)
    assert row_of(alone, "worse")["note"] == ""


def test_models_that_never_differ_get_no_interval():
    labels, noise = np.arange(20) % 2, np.random.default_rng(0).random(20) / 5
    scores = {"perfect": labels * 0.8 + 0.1, "another": labels * 0.6 + noise, "constant": np.full(20, 0.4)}
    frame = compare(labels, scores, np.arange(20), reference="perfect", seed=0, resamples=50)
    for name, difference, p in (("another", 0, 1.0), ("constant", -0.5, None)):
        row = row_of(frame, name)
        assert row["difference"] == difference
        assert np.isnan([row[column] for column in ENDS]).all()
        assert row["note"].startswith("all resamples agree")
        assert row["delong_p"] == p or np.isnan(row["delong_p"])
    assert row_of(frame, "another", "brier")["low"] < row_of(frame, "another", "brier")["high"]


def test_one_patient_of_a_class_has_no_interval():
    labels, score = (np.arange(12) == 11).astype(int), np.linspace(0.1, 0.9, 12)
    scores = {"finds": score, "misses": np.where(labels == 1, 0.3, score)}
    frame = compare(labels, scores, np.arange(12), reference="misses", seed=0, resamples=50)
    row = row_of(frame, "finds")
    assert np.isnan([row[column] for column in ENDS]).all()
    assert row["note"].startswith("too few patients of a class")
    assert row_of(frame, "finds", "accuracy")["high"] > 0


def test_what_cannot_be_compared_says_why(data):
    labels, scores, patients = data
    with pytest.raises(DataError, match="90 of 90 labelled scans are positive"):
        compare(np.ones(90, int), scores, patients, reference="good", seed=0)
    with pytest.raises(DataError, match="no scan has labelled slices of both"):
        compare_slices(labels, {"a": scores["good"]}, patients, np.arange(91), reference="a", seed=0)


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
    b, c = (row_of(frame, name, "slice_auc_inside") for name in "bc")
    assert (b["value"], b["reference_value"], b["difference"]) == (0.5, 1.0, -0.5)
    assert b["note"].startswith("all resamples agree")
    assert (c["difference"], c["low"], c["high"]) == (-0.25, -0.5, 0.0)
    assert c["better"] == pytest.approx(1 / 8, abs=0.05)  # half of the quarter of resamples with scan 2 twice
    assert (c["n"], c["patients"], c["note"]) == (2, 2, "")


def jackknife(labels, scores):
    """Two-sample jackknife of scikit-learn's AUCs: the variance of their difference, by another road."""
    variance = 0.0
    for kind in (1, 0):
        rows = np.flatnonzero(labels == kind)
        n = len(rows)
        without = np.array(
            [[roc_auc_score(np.delete(labels, i), np.delete(score, i)) for score in scores] for i in rows]
        )
        variance += (without[:, 0] - without[:, 1]).var(ddof=1) * (n - 1) ** 2 / n
    return variance


def correlated(rng, n=80, levels=None, shift=1.0):
    labels = (np.arange(n) % 3 == 0).astype(int)
    common = rng.normal(size=n)
    scores = np.stack([common + rng.normal(size=n) + shift * labels for _ in range(2)])
    return labels, scores if levels is None else np.round(scores * levels)


@pytest.mark.parametrize("levels", [None, 2.0, 0.5])
def test_delong_agrees_with_the_jackknife(levels):
    rng = np.random.default_rng(0)
    labels, scores = correlated(rng, n=30, levels=levels)
    a, b = (roc_auc_score(labels, score) for score in scores)
    p = delong_p(labels, *scores)
    assert p == pytest.approx(2 * norm.sf(abs(a - b) / np.sqrt(jackknife(labels, scores))), rel=1e-9)
    order = rng.permutation(30)
    again = delong_p(labels[order], np.exp(scores[0][order]), 3 * scores[1][order] - 7)
    assert again == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize("n", [4, 60, 999])
def test_delong_where_the_variance_is_0(n):
    labels = np.arange(n) % 2
    rng = np.random.default_rng(5)
    score = rng.normal(size=n)
    assert delong_p(labels, score, np.exp(score)) == 1
    assert delong_p(labels, labels + rng.random(n) / 2, labels * 7.0) == 1
    assert np.isnan(delong_p(labels, labels, -labels))
