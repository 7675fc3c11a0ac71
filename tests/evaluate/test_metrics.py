import numpy as np
import pytest
from sklearn import metrics as sk

from ich_mil.errors import DataError
from ich_mil.evaluate.metrics import auc_inside, calibration_bins, scan_metrics, slice_metrics
from ich_mil.evaluate.weighted import resampled_losses, resampled_ranking, resampled_scan_metrics


def test_scan_metrics_by_hand():
    # pairs: (.9>.2) (.9>.6) (.4>.2) right, (.4>.6) wrong: AUC 3/4. Called: .9 and .6: TP 1, FP 1, FN 1
    result = scan_metrics(np.array([0, 1, 0, 1, -1]), np.array([0.2, 0.4, 0.6, 0.9, 0.5]))
    assert result["auc"] == 0.75
    assert result["accuracy"] == 0.5
    assert result["f1"] == 0.5
    assert result["brier"] == pytest.approx((0.04 + 0.36 + 0.36 + 0.01) / 4)
    assert result["log_loss"] == pytest.approx(-np.log([0.8, 0.4, 0.4, 0.9]).mean())
    assert result["ece"] == pytest.approx((0.2 + 0.6 + 0.6 + 0.1) / 4)  # four scans, each alone in its bin


def test_calibration_bins_by_hand():
    probability = np.array([0.1, 0.2, 0.3, 0.8, 0.9, 0.7])
    mean, fraction, count = calibration_bins(np.array([0, 0, 1, 1, 1, 0]), probability, bins=2)
    np.testing.assert_allclose(mean, [0.2, 0.8])
    np.testing.assert_allclose(fraction, [1 / 3, 2 / 3])
    np.testing.assert_array_equal(count, [3, 3])


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
    assert result["accuracy"] == 1
    assert result["brier"] == pytest.approx(0.14 / 3)
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


def test_slice_metrics_by_hand():
    labels = np.array([0, 1, 0, 1, 0, 0, 1, -1])
    score = np.array([1.0, 3.0, 2.0, 2.0, 9.0, 8.0, 7.0, 99.0])
    scans = np.array([4, 4, 4, 4, 1, 1, 2, 2])
    # scan 4: pairs (3>1) (3>2) (2>1) right, (2=2) half: 3.5/4. Scans 1 and 2 have one kind only.
    result = slice_metrics(labels, score, scans)
    assert result["slice_auc_inside"] == 0.875
    assert result["slice_scans_inside"] == 1
    assert result["slice_auc"] == pytest.approx(sk.roc_auc_score(labels[:7], score[:7]))
    assert result["slice_ap"] == pytest.approx(sk.average_precision_score(labels[:7], score[:7]))
    ids, values = auc_inside(labels, score, scans)
    assert (ids.tolist(), values.tolist()) == ([4], [0.875])


def test_auc_inside_is_sklearns_scan_by_scan():
    rng = np.random.default_rng(1)
    scans = rng.integers(0, 12, 300)
    labels, score = rng.integers(0, 2, 300), rng.integers(0, 9, 300).astype(float)
    ids, values = auc_inside(labels, score, scans)
    assert ids.tolist() == sorted(set(scans.tolist()))
    expected = [sk.roc_auc_score(labels[scans == b], score[scans == b]) for b in ids]
    np.testing.assert_allclose(values, expected)


def test_slices_of_one_kind():
    result = slice_metrics(np.zeros(3, int), np.arange(3.0), np.zeros(3, int))
    assert np.isnan([result["slice_auc"], result["slice_ap"], result["slice_auc_inside"]]).all()
    assert result["slice_scans_inside"] == 0


@pytest.mark.parametrize("levels", [5, 10_000])
def test_resampled_metrics_are_those_of_the_repeated_rows(levels):
    rng = np.random.default_rng(2)
    labels, probability = rng.integers(0, 2, 40), rng.integers(0, levels + 1, 40) / levels
    counts = np.column_stack([np.ones(40), rng.multinomial(40, np.full(40, 1 / 40), size=6).T])  # (40, 7)
    result = resampled_scan_metrics(labels, probability, counts) | {
        "ap": resampled_ranking(labels, probability, counts)["ap"]
    }
    for r in range(7):
        rows = np.repeat(np.arange(40), counts[:, r].astype(int))
        expected = scan_metrics(labels[rows], probability[rows])
        expected["ap"] = sk.average_precision_score(labels[rows], probability[rows])
        assert {name: values[r] for name, values in result.items()} == pytest.approx(expected, rel=1e-12)


def test_resamples_of_one_class_are_nan():
    labels, probability = np.array([0, 1, 1]), np.array([0.2, 0.1, 0.1])
    counts = np.array([[3.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.0, 1.0]])
    result = resampled_scan_metrics(labels, probability, counts)
    np.testing.assert_array_equal(result["auc"], [np.nan, np.nan, 0.0])
    np.testing.assert_array_equal(result["f1"], [np.nan, 0.0, 0.0])
    ranking = resampled_ranking(labels, probability, counts)
    np.testing.assert_allclose(ranking["ap"], [np.nan, 1.0, 2 / 3])
    assert np.isfinite(resampled_losses(labels, probability, counts)["brier"]).all()
    assert np.isnan(resampled_ranking(np.zeros(3, int), probability, counts)["auc"]).all()
