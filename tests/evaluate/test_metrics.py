"""Metrics by hand, against scikit-learn on repeated rows, and against thresholds tried in turn."""

import numpy as np
import pytest
from sklearn import metrics as sk

from ich_mil.errors import DataError
from ich_mil.evaluate.metrics import (
    METRICS,
    SCAN,
    SLICE,
    auc,
    auc_inside,
    metrics_of,
    resampled,
    scan_metrics,
)
from ich_mil.evaluate.sample import CALIBRATION_BINS, equal_mass
from ich_mil.evaluate.scores import known_or_none

POINTS = [f"{kind}_at_{x}" for x in (90, 95) for kind in ("sensitivity", "specificity")]
LINE = ["calibration_intercept", "calibration_slope"]


def by_scikit_learn(labels, p):
    """Oracle of all scan metrics but the calibration line."""
    two, called = len(set(labels.tolist())) == 2, (p >= 0.5).astype(int)
    calls = {"y_true": labels, "y_pred": called, "zero_division": np.nan}
    found = {
        "auc": sk.roc_auc_score(labels, p) if two else np.nan,
        "ap": sk.average_precision_score(labels, p) if two else np.nan,
        "accuracy": sk.accuracy_score(labels, called),
        "sensitivity": sk.recall_score(**calls, pos_label=1),
        "specificity": sk.recall_score(**calls, pos_label=0),
        "balanced_accuracy": sk.balanced_accuracy_score(labels, called) if two else np.nan,
        "f1": sk.f1_score(labels, called, zero_division=0) if labels.any() else np.nan,
        "ppv": sk.precision_score(**calls, pos_label=1) if two else np.nan,
        "npv": sk.precision_score(**calls, pos_label=0) if two else np.nan,
        "log_loss": sk.log_loss(labels, p, labels=[0, 1]),
        "brier": sk.brier_score_loss(labels, p, labels=[0, 1]),
    }
    bins = equal_mass(p, CALIBRATION_BINS)
    gaps = [abs((p - labels)[bins == k].sum()) for k in np.unique(bins)]
    found["ece"] = sum(gaps) / len(p)
    found |= dict.fromkeys(POINTS, np.nan)
    if two:
        alarms, sensitivity, _ = sk.roc_curve(labels, p, drop_intermediate=False)
        for x in (90, 95):
            found[f"sensitivity_at_{x}"] = sensitivity[1 - alarms >= x / 100].max()
            found[f"specificity_at_{x}"] = (1 - alarms)[sensitivity >= x / 100].max()
    return found


@pytest.mark.parametrize("levels", [4, 10_000])  # with four, scans of both classes tie, at 0 and at ½ too
@pytest.mark.parametrize("positives", [1, 20, 35])
def test_metrics_equal_scikit_learn_on_repeated_rows(levels, positives):
    rng = np.random.default_rng(2)
    labels = rng.permutation(np.arange(40) < positives).astype(int)
    p = np.clip(rng.integers(-1, levels, 40) + levels // 3 * labels, 0, levels) / levels
    # all rows once, then single rows drawn, then patients of several rows
    drawn = rng.multinomial(40, np.full(40, 1 / 40), size=6).T
    groups = np.repeat(rng.integers(0, 4, (10, 3)), 4, axis=0)
    counts = np.column_stack([np.ones(40), drawn, groups])  # (40, 10)
    found = resampled(metrics_of(SCAN), labels, p, counts)
    for r in range(10):
        rows = np.repeat(np.arange(40), counts[:, r].astype(int))
        expected = by_scikit_learn(labels[rows], p[rows])
        assert set(expected) == set(found) - set(LINE)
        for name, value in expected.items():
            assert found[name][r] == pytest.approx(value, rel=1e-12, abs=1e-15, nan_ok=True), name


def test_scan_metrics_by_hand():
    # pairs: (.9>.2) (.9>.6) (.4>.2) right, (.4>.6) wrong: AUC 3/4. Called: .9 and .6: TP 1, FP 1, FN 1
    result = scan_metrics(np.array([0, 1, 0, 1, -1]), np.array([0.2, 0.4, 0.6, 0.9, 0.5]))
    calls = ("accuracy", "sensitivity", "specificity", "balanced_accuracy", "f1", "ppv", "npv")
    expected = {
        "auc": 0.75,
        "ap": 1 / 2 * 1 + 1 / 2 * 2 / 3,  # positives at ranks 1 and 3
        # no false alarm allowed: t = .9 finds one of two; no miss allowed: t = .4 spares one of two
        **dict.fromkeys((*POINTS, *calls), 0.5),
        "log_loss": -np.log([0.8, 0.4, 0.4, 0.9]).mean(),
        "brier": (0.04 + 0.36 + 0.36 + 0.01) / 4,
        "ece": (0.2 + 0.6 + 0.6 + 0.1) / 4,  # four scans, each alone in its bin
    }
    assert {name: result[name] for name in expected} == pytest.approx(expected)
    assert set(result) == {*expected, *LINE}


@pytest.mark.parametrize(("spared", "reached"), [(19, 1.0), (18, 0.5), (20, 1.0)])
def test_threshold_that_just_reaches_95_percent_counts(spared, reached):
    # one negative stands above the lower of two positives: specificity 19/20, 18/19 and 20/21 there
    labels, score = np.array([1, 0, 1] + [0] * spared), np.array([0.9, 0.8, 0.7] + [0.1] * spared)
    points = scan_metrics(labels, score)
    assert points["sensitivity_at_95"] == reached
    assert points["specificity_at_95"] == pytest.approx(spared / (spared + 1))
    assert scan_metrics(1 - labels, 1 - score)["specificity_at_95"] == reached


def test_calibration_error_by_hand():
    # twenty scans, two a bin, one of them positive: bin k has the probabilities 2k/20 and (2k + 1)/20
    gaps = [abs((2 * k + 0.5) / 20 - 0.5) for k in range(10)]
    assert scan_metrics(np.tile([1, 0], 10), np.arange(20) / 20)["ece"] == pytest.approx(np.mean(gaps))
    assert scan_metrics(np.array([0, 1, 0, 1, 1] * 20), np.full(100, 0.6))["ece"] == pytest.approx(0)  # ties


def test_undefined_metrics_are_nan():
    counts = np.array([[3.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.0, 1.0]])  # negatives, positives, both
    found = resampled(metrics_of(SCAN), np.array([0, 1, 1]), np.array([0.2, 0.1, 0.1]), counts)
    both = {"auc", "ap", "balanced_accuracy", "npv", *POINTS, LINE[0]}
    undefined = [{name for name in found if np.isnan(found[name][r])} for r in range(3)]
    assert undefined == [
        {*both, "sensitivity", "f1", "ppv", LINE[1]},
        {*both, "specificity", "ppv", LINE[1]},
        {"ppv", LINE[1]},
    ]
    assert (found["auc"][2], found["balanced_accuracy"][2]) == (0, 0.5)


@pytest.mark.parametrize(
    ("labels", "probability", "message"),
    [
        ([0, 1, 1], [0.1, np.nan, 0.2], "1 of 3 .* number 1"),
        ([0, 1, 1], [0.1, 0.3, np.inf], "infinite"),
        ([0, 1], [0.1, 1 + 1e-7], "0.1 to 1.0000001"),
        ([0, 2], [0.1, 0.2], "got .*2"),
        ([-1, -1], [0.1, 0.2], "none of the 2 labels"),
    ],
)
def test_invalid_scores_are_refused(labels, probability, message):
    with pytest.raises(DataError, match=message):
        scan_metrics(np.array(labels), np.array(probability))


@pytest.mark.parametrize(
    ("labels", "score"), [([0, 1, -1], [0.1, 0.9, 0.5]), ([0, 1, 0], [0.1, np.nan, 0.5])]
)
def test_an_auc_of_unknown_labels_or_scores_is_refused(labels, score):
    assert auc([0, 1, 0], [0.1, 0.4, 0.5]) == 0.5
    with pytest.raises(DataError):
        auc(labels, score)


def test_auc_inside_equals_scikit_learn_by_scan():
    rng = np.random.default_rng(1)
    scans = rng.integers(0, 12, 300)
    labels, score = rng.integers(0, 2, 300), rng.integers(0, 9, 300).astype(float)
    labels[scans == 3] = 0
    ids, values = auc_inside(np.append(labels, -1), np.append(score, 99.0), np.append(scans, 0))
    assert ids.tolist() == sorted({*scans.tolist()} - {3})
    np.testing.assert_allclose(values, [sk.roc_auc_score(labels[scans == b], score[scans == b]) for b in ids])


def test_scores_without_probability_have_ranking_metrics_only():
    assert [metric.name for metric in metrics_of(SLICE, probability=False)] == ["auc", "ap"]
    assert len({(metric.level, metric.name) for metric in METRICS}) == len(METRICS)


def test_known_or_none():
    assert known_or_none(np.full(3, np.nan)) is None
    np.testing.assert_array_equal(known_or_none(np.array([np.nan, 1.0])), [np.nan, 1.0])
