"""Metrics by hand and against scikit-learn; the resampled metrics against both on repeated rows."""

import numpy as np
import pytest
from sklearn import metrics as sk

from ich_mil.errors import DataError
from ich_mil.evaluate.metrics import (
    auc_inside,
    operating_points,
    predictive_values,
    scan_metrics,
    slice_probability_metrics,
    slice_ranking,
)
from ich_mil.evaluate.resampled_metrics import (
    resampled_ece,
    resampled_operating_points,
    resampled_predictive_values,
    resampled_ranking,
    resampled_scan_metrics,
    resampled_slice_probability_metrics,
)


def test_scan_metrics_by_hand():
    # pairs: (.9>.2) (.9>.6) (.4>.2) right, (.4>.6) wrong: AUC 3/4. Called: .9 and .6: TP 1, FP 1, FN 1
    result = scan_metrics(np.array([0, 1, 0, 1, -1]), np.array([0.2, 0.4, 0.6, 0.9, 0.5]))
    assert result == pytest.approx(
        {
            "auc": 0.75,
            "ap": 1 / 2 * 1 + 1 / 2 * 2 / 3,  # positives at ranks 1 and 3
            # no false alarm allowed: t = .9 finds one of two; no miss allowed: t = .4 spares one of two
            **dict.fromkeys(operating_points(np.array([0, 1]), np.zeros(2)), 0.5),
            **dict.fromkeys(("accuracy", "sensitivity", "specificity", "balanced_accuracy", "f1"), 0.5),
            "log_loss": -np.log([0.8, 0.4, 0.4, 0.9]).mean(),
            "brier": (0.04 + 0.36 + 0.36 + 0.01) / 4,
            "ece": (0.2 + 0.6 + 0.6 + 0.1) / 4,  # four scans, each alone in its bin
        }
    )


@pytest.mark.parametrize(("spared", "reached"), [(19, 1.0), (18, 0.5), (20, 1.0)])
def test_a_threshold_that_just_reaches_95_per_cent_counts(spared, reached):
    # one negative stands above the lower of two positives: specificity 19/20, 18/19 and 20/21 there
    labels = np.array([1, 0, 1] + [0] * spared)
    score = np.array([9.0, 8.0, 7.0] + [1.0] * spared)
    points = operating_points(labels, score)
    assert (points["sensitivity_at_95"], points["specificity_at_95"]) == (
        reached,
        pytest.approx(spared / (spared + 1)),
    )
    mirrored = operating_points(1 - labels, -score)
    assert mirrored["specificity_at_95"] == reached


def test_operating_points_at_thresholds_tried_one_by_one():
    rng = np.random.default_rng(5)
    labels, score = np.arange(120) % 2, rng.integers(0, 30, 120) + 8.0 * (np.arange(120) % 2)
    pairs = [(1.0, 0.0)]  # specificity, sensitivity of calling none
    for t in np.unique(score):
        called = score >= t
        pairs.append((sk.recall_score(labels, called, pos_label=0), sk.recall_score(labels, called)))
    points = operating_points(labels, score)
    for x in (90, 95):
        best = max(sensitivity for specificity, sensitivity in pairs if specificity >= x / 100)
        assert points[f"sensitivity_at_{x}"] == pytest.approx(best)
        best = max(specificity for specificity, sensitivity in pairs if sensitivity >= x / 100)
        assert points[f"specificity_at_{x}"] == pytest.approx(best)
    # ten ties of a positive and a negative: the curve is straight, yet its points between the ends count
    tied = operating_points(np.arange(20) % 2, np.arange(20) // 2)
    assert (tied["sensitivity_at_90"], tied["specificity_at_90"]) == pytest.approx((0.1, 0.1))


def test_rankings_need_the_order_only_and_calls_are_those_of_scikit_learn():
    rng = np.random.default_rng(6)
    labels, probability = rng.integers(0, 2, 60), rng.integers(0, 20, 60) / 20
    scan, other = scan_metrics(labels, probability), scan_metrics(labels, np.exp(5 * probability - 9))
    for name in ("auc", "ap", *operating_points(labels, probability)):
        assert scan[name] == other[name]
    shuffled = rng.permutation(60)
    assert scan_metrics(labels[shuffled], probability[shuffled]) == pytest.approx(scan)
    (spared, alarms), (missed, found) = sk.confusion_matrix(labels, (probability >= 0.5).astype(int))
    assert scan["sensitivity"] == found / (found + missed)
    assert scan["specificity"] == spared / (spared + alarms)
    calls = {"ppv": found / (found + alarms), "npv": spared / (spared + missed)}
    assert predictive_values(labels, probability) == calls


@pytest.mark.parametrize(("labels", "absent"), [([0, 1], {"npv"}), ([1, 1], {"ppv", "npv"})])
def test_without_such_calls_or_with_one_class_there_is_no_predictive_value(labels, absent):
    found = predictive_values(np.array(labels), np.array([0.6, 0.9]))
    assert {name for name, value in found.items() if np.isnan(value)} == absent


def test_calibration_error_by_hand_is_over_ten_bins_and_keeps_ties_together():
    # twenty scans, two a bin, one of them positive: bin k has the probabilities 2k/20 and (2k + 1)/20
    gaps = [abs((2 * k + 0.5) / 20 - 0.5) for k in range(10)]
    assert scan_metrics(np.tile([1, 0], 10), np.arange(20) / 20)["ece"] == pytest.approx(np.mean(gaps))
    assert scan_metrics(np.array([0, 1, 0, 1, 1] * 20), np.full(100, 0.6))["ece"] == pytest.approx(0)


def test_one_class_only():
    both = ("auc", "ap", "balanced_accuracy", "sensitivity_at_90", "specificity_at_95")
    none = scan_metrics(np.zeros(3, int), np.array([0.1, 0.2, 0.9]))
    every = scan_metrics(np.ones(2, int), np.array([0.9, 0.2]))
    assert {name for name in none if np.isnan(none[name])} >= {*both, "f1", "sensitivity"}
    assert none["specificity"] == none["accuracy"] == pytest.approx(2 / 3)
    assert {name for name in every if np.isnan(every[name])} >= {*both, "specificity"}
    assert every["f1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("probability", [[0.0, 1.0], [1.0, 0.0]])
def test_probabilities_of_exactly_zero_and_one(probability):
    value = scan_metrics(np.array([0, 1]), np.array(probability))["log_loss"]
    assert value == pytest.approx(0 if probability[0] == 0 else -np.log(np.finfo(float).eps), abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "probability", "message"),
    [
        ([0, 1, 1], [0.1, np.nan, 0.2], "1 of 3 .* number 1"),
        ([0, 1, 1], [0.1, 0.3, np.inf], "infinite"),
        ([0, 1], [-0.1, 0.5], "-0.1 to 0.5"),
        ([0, 1], [0.1, 1 + 1e-7], "0.1 to 1.0000001"),
        ([0, 2], [0.1, 0.2], "got .*2"),
        ([-1, -1], [0.1, 0.2], "none of the 2 labels"),
    ],
)
def test_what_cannot_be_measured_says_why(labels, probability, message):
    with pytest.raises(DataError, match=message):
        scan_metrics(np.array(labels), np.array(probability))


def test_unequal_lengths_are_the_callers_mistake():
    with pytest.raises(ValueError, match="equal rows"):
        scan_metrics(np.array([0, 1]), np.array([0.1]))
    for scans in (np.array(["a", "a"]), np.array([0]), np.array([0.0, 0.0])):
        with pytest.raises(ValueError, match="2 slices"):
            auc_inside(np.array([0, 1]), np.array([0.1, 0.2]), scans)


def test_ranking_of_slices_by_hand():
    labels = np.array([0, 1, 0, 1, 0, 0, 1, -1])
    score = np.array([1.0, 3.0, 2.0, 2.0, 9.0, 8.0, 7.0, 99.0])
    # scan 4: pairs (3>1) (3>2) (2>1) right, (2=2) half: 3.5/4. Scans 1 and 2 have one kind only.
    ids, values = auc_inside(labels, score, np.array([4, 4, 4, 4, 1, 1, 2, 2]))
    assert (ids.tolist(), values.tolist()) == ([4], [0.875])
    result = slice_ranking(labels, score)
    assert result["auc"] == pytest.approx(sk.roc_auc_score(labels[:7], score[:7]))
    assert result["ap"] == pytest.approx(sk.average_precision_score(labels[:7], score[:7]))
    assert np.isnan(list(slice_ranking(0 * labels, score).values())).all()
    ids, values = auc_inside(0 * labels, score, np.zeros(8, int))
    assert (ids.tolist(), values.tolist()) == ([], [])


def test_auc_inside_is_sklearns_scan_by_scan():
    rng = np.random.default_rng(1)
    scans = rng.integers(0, 12, 300)
    labels, score = rng.integers(0, 2, 300), rng.integers(0, 9, 300).astype(float)
    ids, values = auc_inside(labels, score, scans)
    assert ids.tolist() == sorted(set(scans.tolist()))
    expected = [sk.roc_auc_score(labels[scans == b], score[scans == b]) for b in ids]
    np.testing.assert_allclose(values, expected)


@pytest.mark.parametrize(
    ("resampled", "single"),
    [
        (resampled_scan_metrics, scan_metrics),
        (resampled_predictive_values, predictive_values),
        (resampled_slice_probability_metrics, slice_probability_metrics),
    ],
)
@pytest.mark.parametrize("levels", [4, 10_000])  # of four, scans of both classes tie, at 0 and at ½ too
@pytest.mark.parametrize("positives", [1, 20, 35])
def test_resampled_metrics_are_those_of_the_repeated_rows(resampled, single, levels, positives):
    rng = np.random.default_rng(2)
    labels = rng.permutation(np.arange(40) < positives).astype(int)
    probability = np.clip(rng.integers(-1, levels, 40) + levels // 3 * labels, 0, levels) / levels
    # all rows once, then rows drawn one by one, then with patients of several rows, so of any total
    drawn = rng.multinomial(40, np.full(40, 1 / 40), size=6).T
    groups = np.repeat(rng.integers(0, 4, (10, 3)), 4, axis=0)
    counts = np.column_stack([np.ones(40), drawn, groups])  # (40, 10)
    result = resampled(labels, probability, counts)
    for r in range(10):
        rows = np.repeat(np.arange(40), counts[:, r].astype(int))
        expected = single(labels[rows], probability[rows])
        found = {name: values[r] for name, values in result.items()}
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15, nan_ok=True)


@pytest.mark.parametrize("percent", [90, 95])
def test_a_resampled_threshold_that_just_reaches_its_mark_counts(percent):
    # 100 negatives; drawn as often as `counts` says, exactly 100 - percent or one more stand above
    above = 100 - percent
    labels, score = np.array([1, 0, 1, 0]), np.array([9.0, 8.0, 7.0, 1.0])
    counts = np.array([[1, 1], [above, above + 1], [1, 1], [percent, percent - 1]], dtype=float)
    points = resampled_operating_points(labels, score, counts)
    np.testing.assert_array_equal(points[f"sensitivity_at_{percent}"], [1.0, 0.5])
    mirrored = resampled_operating_points(1 - labels, -score, counts)
    np.testing.assert_array_equal(mirrored[f"specificity_at_{percent}"], [1.0, 0.5])


def test_resamples_of_one_class_are_nan():
    labels, probability = np.array([0, 1, 1]), np.array([0.2, 0.1, 0.1])
    counts = np.array([[3.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.0, 1.0]])
    result = resampled_scan_metrics(labels, probability, counts)
    both = ("auc", "balanced_accuracy", *operating_points(labels, probability))
    for name, values in (
        *((name, [np.nan, np.nan, 0.5 if name == "balanced_accuracy" else 0.0]) for name in both),
        ("f1", [np.nan, 0.0, 0.0]),
        ("sensitivity", [np.nan, 0.0, 0.0]),
        ("specificity", [1.0, np.nan, 1.0]),
    ):
        np.testing.assert_array_equal(result[name], values, name)
    assert np.isfinite(result["brier"]).all()
    for resampled in (resampled_ranking, resampled_operating_points):
        for values in resampled(np.zeros(3, int), probability, counts).values():
            assert np.isnan(values).all()


def test_a_row_drawn_twice_weighs_as_two_rows_in_the_calibration_error():
    counts = np.array([[3.0], [1.0], [0.0]])
    value = resampled_ece(np.array([0, 1, 1]), np.array([0.2, 0.6, 0.9]), counts)
    assert value[0] == pytest.approx((3 * 0.2 + 0.4) / 4)
