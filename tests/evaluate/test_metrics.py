import numpy as np
import pytest
from sklearn import metrics as sk

from ich_mil.errors import DataError
from ich_mil.evaluate.metrics import (
    auc_inside,
    calibration_bins,
    operating_points,
    predictive_values,
    scan_metrics,
    slice_probability_metrics,
    slice_ranking,
)


def test_scan_metrics_by_hand():
    # pairs: (.9>.2) (.9>.6) (.4>.2) right, (.4>.6) wrong: AUC 3/4. Called: .9 and .6: TP 1, FP 1, FN 1
    result = scan_metrics(np.array([0, 1, 0, 1, -1]), np.array([0.2, 0.4, 0.6, 0.9, 0.5]))
    assert result["auc"] == 0.75
    assert result["accuracy"] == 0.5
    assert result["f1"] == 0.5
    assert result["brier"] == pytest.approx((0.04 + 0.36 + 0.36 + 0.01) / 4)
    assert result["log_loss"] == pytest.approx(-np.log([0.8, 0.4, 0.4, 0.9]).mean())
    assert result["ece"] == pytest.approx((0.2 + 0.6 + 0.6 + 0.1) / 4)  # four scans, each alone in its bin
    assert result["ap"] == pytest.approx(1 / 2 * 1 + 1 / 2 * 2 / 3)  # positives at ranks 1 and 3
    assert result["balanced_accuracy"] == 0.5
    # no false alarm allowed: t = .9 finds one of two; no miss allowed: t = .4 spares one of two
    assert result["sensitivity_at_90"] == result["sensitivity_at_95"] == 0.5
    assert result["specificity_at_90"] == result["specificity_at_95"] == 0.5


@pytest.mark.parametrize(("negatives", "spared", "reached"), [(20, 19, 1.0), (19, 18, 0.5), (21, 20, 1.0)])
def test_a_threshold_that_just_reaches_95_per_cent_counts(negatives, spared, reached):
    # one negative stands above the lower of two positives: specificity 19/20, 18/19 and 20/21 there
    labels = np.array([1, 0, 1] + [0] * spared)
    score = np.array([9.0, 8.0, 7.0] + [1.0] * spared)
    assert (labels == 0).sum() == negatives
    points = operating_points(labels, score)
    assert points["sensitivity_at_95"] == reached
    assert points["specificity_at_95"] == pytest.approx(spared / negatives)
    # the mirror image: positives and negatives swapped, scores turned round
    mirrored = operating_points(1 - labels, -score)
    assert mirrored["specificity_at_95"] == reached
    assert mirrored["sensitivity_at_95"] == pytest.approx(spared / negatives)


def test_operating_points_keep_ties_whole():
    labels = np.array([1, 1, 1, 0, 0, 0])
    tied = np.array([3.0, 2.0, 2.0, 2.0, 1.0, 1.0])
    # t = 3 finds 1/3 without a false alarm; t = 2 finds all three but calls one of three negatives too
    assert operating_points(labels, tied) == {
        "sensitivity_at_90": pytest.approx(1 / 3),
        "specificity_at_90": pytest.approx(2 / 3),
        "sensitivity_at_95": pytest.approx(1 / 3),
        "specificity_at_95": pytest.approx(2 / 3),
    }
    # ten ties of a positive and a negative: the curve is straight, yet its points between the ends count
    pairs = operating_points(np.arange(20) % 2, np.arange(20) // 2)
    assert (pairs["sensitivity_at_90"], pairs["specificity_at_90"]) == pytest.approx((0.1, 0.1))
    assert set(operating_points(labels, np.zeros(6)).values()) == {0.0}  # a constant score
    assert set(operating_points(labels, labels).values()) == {1.0}


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


def test_what_ranks_alone_decide_needs_the_order_only():
    rng = np.random.default_rng(6)
    labels, probability = rng.integers(0, 2, 60), rng.integers(0, 20, 60) / 20
    scan, other = scan_metrics(labels, probability), scan_metrics(labels, np.exp(5 * probability - 9))
    for name in ("auc", "ap", *operating_points(labels, probability)):
        assert scan[name] == other[name]
    assert scan["ap"] == sk.average_precision_score(labels, probability)
    assert scan["balanced_accuracy"] == sk.balanced_accuracy_score(labels, probability >= 0.5)
    called = (probability >= 0.5).astype(int)
    (spared, alarms), (missed, found) = sk.confusion_matrix(labels, called)
    assert scan["sensitivity"] == found / (found + missed)
    assert scan["specificity"] == spared / (spared + alarms)
    calls = {"ppv": found / (found + alarms), "npv": spared / (spared + missed)}
    assert predictive_values(labels, probability) == calls


@pytest.mark.parametrize(("labels", "absent"), [([0, 1], {"npv"}), ([1, 1], {"ppv", "npv"})])
def test_without_such_calls_or_with_one_class_there_is_no_predictive_value(labels, absent):
    found = predictive_values(np.array(labels), np.array([0.6, 0.9]))
    assert {name for name, value in found.items() if np.isnan(value)} == absent


def test_slice_probabilities_are_measured_as_scan_probabilities_are():
    rng = np.random.default_rng(7)
    labels, probability = rng.integers(-1, 2, 90), rng.random(90)
    scan = scan_metrics(labels, probability)
    slices = slice_probability_metrics(labels, probability)
    assert slices == {name: scan[name] for name in ("log_loss", "brier", "ece")}


def test_calibration_bins_by_hand():
    probability = np.array([0.1, 0.2, 0.3, 0.8, 0.9, 0.7])
    mean, fraction, count = calibration_bins(np.array([0, 0, 1, 1, 1, 0]), probability, bins=2)
    np.testing.assert_allclose(mean, [0.2, 0.8])
    np.testing.assert_allclose(fraction, [1 / 3, 2 / 3])
    np.testing.assert_array_equal(count, [3, 3])


def test_calibration_error_by_hand_is_over_ten_bins():
    # twenty scans, two a bin, one of them positive: bin k has the probabilities 2k/20 and (2k + 1)/20
    probability = np.arange(20) / 20
    labels = np.tile([1, 0], 10)
    gaps = [abs((2 * k + 0.5) / 20 - 0.5) for k in range(10)]
    assert scan_metrics(labels, probability)["ece"] == pytest.approx(np.mean(gaps), rel=1e-12)


def test_equal_probabilities_stay_in_one_bin_so_a_constant_prevalence_is_calibrated():
    labels = np.array([0, 1, 0, 1, 1] * 20)
    result = scan_metrics(labels, np.full(100, 0.6))
    assert result["ece"] == pytest.approx(0, abs=1e-15)
    assert result["auc"] == 0.5


def test_order_of_the_scans_does_not_matter():
    rng = np.random.default_rng(0)
    labels, probability = rng.integers(0, 2, 50), rng.integers(0, 8, 50) / 8
    shuffled = rng.permutation(50)
    assert scan_metrics(labels, probability) == pytest.approx(
        scan_metrics(labels[shuffled], probability[shuffled])
    )


def test_one_class_only():
    result = scan_metrics(np.zeros(3, int), np.array([0.1, 0.2, 0.3]))
    assert np.isnan(result["auc"])
    assert np.isnan(result["f1"])
    for name in ("ap", "balanced_accuracy", "sensitivity_at_90", "specificity_at_95"):
        assert np.isnan(result[name])
        assert np.isnan(scan_metrics(np.ones(2, int), np.array([0.9, 0.2]))[name])
    assert result["accuracy"] == result["specificity"] == 1
    assert np.isnan(result["sensitivity"])
    assert result["brier"] == pytest.approx(0.14 / 3)
    assert np.isnan(scan_metrics(np.zeros(3, int), np.array([0.1, 0.2, 0.9]))["f1"])  # though one is called
    assert scan_metrics(np.ones(2, int), np.array([0.9, 0.2]))["f1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("probability", [[0.0, 1.0], [1.0, 0.0]])
def test_probabilities_of_exactly_zero_and_one(probability):
    labels = np.array([0, 1])
    value = scan_metrics(labels, np.array(probability))["log_loss"]
    assert value == pytest.approx(0 if probability[0] == 0 else -np.log(np.finfo(float).eps), abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "probability", "message"),
    [
        ([0, 1, 1], [0.1, np.nan, 0.2], "1 of 3 scores are NaN or infinite, the first is number 1"),
        ([0, 1, 1], [0.1, 0.3, np.inf], "NaN or infinite"),
        ([0, 1], [0.1, 1.2], "0.1 to 1.2"),
        ([0, 1], [-0.1, 0.5], "-0.1 to 0.5"),
        ([0, 1], [0.1, 1 + 1e-7], "0.1 to 1.0000001"),
        ([0, 2], [0.1, 0.2], "got .*2"),
        ([-1, -1], [0.1, 0.2], "none of the 2 labels is known"),
    ],
)
def test_what_cannot_be_measured_says_why(labels, probability, message):
    with pytest.raises(DataError, match=message):
        scan_metrics(np.array(labels), np.array(probability))


def test_unequal_lengths_are_the_callers_mistake():
    with pytest.raises(ValueError, match="equal rows"):
        scan_metrics(np.array([0, 1]), np.array([0.1]))
    for scans in (np.array(["a", "a"]), np.array([0]), np.array([0.0, 0.0])):
        with pytest.raises(ValueError, match="a whole number for each of 2 slices, got"):
            auc_inside(np.array([0, 1]), np.array([0.1, 0.2]), scans)


def test_ranking_of_slices_by_hand():
    labels = np.array([0, 1, 0, 1, 0, 0, 1, -1])
    score = np.array([1.0, 3.0, 2.0, 2.0, 9.0, 8.0, 7.0, 99.0])
    scans = np.array([4, 4, 4, 4, 1, 1, 2, 2])
    # scan 4: pairs (3>1) (3>2) (2>1) right, (2=2) half: 3.5/4. Scans 1 and 2 have one kind only.
    ids, values = auc_inside(labels, score, scans)
    assert (ids.tolist(), values.tolist()) == ([4], [0.875])
    result = slice_ranking(labels, score)
    assert result["auc"] == pytest.approx(sk.roc_auc_score(labels[:7], score[:7]))
    assert result["ap"] == pytest.approx(sk.average_precision_score(labels[:7], score[:7]))


def test_auc_inside_is_sklearns_scan_by_scan():
    rng = np.random.default_rng(1)
    scans = rng.integers(0, 12, 300)
    labels, score = rng.integers(0, 2, 300), rng.integers(0, 9, 300).astype(float)
    ids, values = auc_inside(labels, score, scans)
    assert ids.tolist() == sorted(set(scans.tolist()))
    expected = [sk.roc_auc_score(labels[scans == b], score[scans == b]) for b in ids]
    np.testing.assert_allclose(values, expected)


def test_slices_of_one_kind():
    labels, score = np.zeros(3, int), np.arange(3.0)
    assert np.isnan(list(slice_ranking(labels, score).values())).all()
    ids, values = auc_inside(labels, score, np.zeros(3, int))
    assert (ids.tolist(), values.tolist()) == ([], [])
