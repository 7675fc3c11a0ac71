import numpy as np
import pytest

from ich_mil.evaluate.metrics import predictive_values, scan_metrics, slice_probability_metrics
from ich_mil.evaluate.resampled_metrics import (
    resampled_ece,
    resampled_losses,
    resampled_operating_points,
    resampled_predictive_values,
    resampled_ranking,
    resampled_scan_metrics,
    resampled_slice_probability_metrics,
)

SINGLE = [
    (resampled_scan_metrics, scan_metrics),
    (resampled_predictive_values, predictive_values),
    (resampled_slice_probability_metrics, slice_probability_metrics),
]


@pytest.mark.parametrize(("resampled", "single"), SINGLE)
@pytest.mark.parametrize("levels", [4, 10_000])  # of four, scans of both classes tie, at 0 and at ½ too
@pytest.mark.parametrize("positives", [1, 20, 35])
def test_resampled_metrics_are_those_of_the_repeated_rows(resampled, single, levels, positives):
    rng = np.random.default_rng(2)
    labels = rng.permutation(np.arange(40) < positives).astype(int)
    probability = np.clip(rng.integers(-1, levels, 40) + levels // 3 * labels, 0, levels) / levels
    # all rows once, then rows drawn one by one, then with patients of several rows, so of any total
    drawn = rng.multinomial(40, np.full(40, 1 / 40), size=6).T
    counts = np.column_stack(
        [np.ones(40), drawn, np.repeat(rng.integers(0, 4, (10, 3)), 4, axis=0)]
    )  # (40, 10)
    result = resampled(labels, probability, counts)
    for r in range(10):
        rows = np.repeat(np.arange(40), counts[:, r].astype(int))
        expected = single(labels[rows], probability[rows])
        found = {name: values[r] for name, values in result.items()}
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15, nan_ok=True)


@pytest.mark.parametrize("percent", [90, 95])
def test_a_threshold_that_just_reaches_its_mark_counts(percent):
    # 100 negatives; drawn as often as `counts` says, exactly 100 - percent or one more stand above
    above = 100 - percent
    labels = np.array([1, 0, 1, 0])
    score = np.array([9.0, 8.0, 7.0, 1.0])
    counts = np.array([[1, 1], [above, above + 1], [1, 1], [percent, percent - 1]], dtype=float)
    points = resampled_operating_points(labels, score, counts)
    np.testing.assert_array_equal(points[f"sensitivity_at_{percent}"], [1.0, 0.5])
    mirrored = resampled_operating_points(1 - labels, -score, counts)
    np.testing.assert_array_equal(mirrored[f"specificity_at_{percent}"], [1.0, 0.5])


def test_resamples_of_one_class_are_nan():
    labels, probability = np.array([0, 1, 1]), np.array([0.2, 0.1, 0.1])
    counts = np.array([[3.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.0, 1.0]])
    result = resampled_scan_metrics(labels, probability, counts)
    np.testing.assert_array_equal(result["auc"], [np.nan, np.nan, 0.0])
    np.testing.assert_array_equal(result["f1"], [np.nan, 0.0, 0.0])
    np.testing.assert_array_equal(result["balanced_accuracy"], [np.nan, np.nan, 0.5])
    np.testing.assert_array_equal(result["sensitivity"], [np.nan, 0.0, 0.0])
    np.testing.assert_array_equal(result["specificity"], [1.0, np.nan, 1.0])
    for name in ("sensitivity_at_90", "specificity_at_90", "sensitivity_at_95", "specificity_at_95"):
        np.testing.assert_array_equal(result[name], [np.nan, np.nan, 0.0])
    calls_all = resampled_scan_metrics(labels, np.full(3, 0.9), counts)
    np.testing.assert_allclose(calls_all["f1"], [np.nan, 1.0, 0.8])
    ranking = resampled_ranking(labels, probability, counts)
    np.testing.assert_allclose(ranking["ap"], [np.nan, np.nan, 2 / 3])
    assert np.isfinite(resampled_losses(labels, probability, counts)["brier"]).all()
    for resampled in (resampled_ranking, resampled_operating_points):
        for values in resampled(np.zeros(3, int), probability, counts).values():
            assert np.isnan(values).all()


def test_ranking_of_three_rows_by_hand():
    # from the top: right, a false alarm, right
    ranking = resampled_ranking(np.array([1, 0, 1]), np.array([3.0, 2.0, 1.0]), np.ones((3, 1)))
    assert ranking["ap"].tolist() == pytest.approx([(1 + 2 / 3) / 2], rel=1e-12)
    assert ranking["auc"].tolist() == [0.5]


def test_a_row_drawn_twice_weighs_as_two_rows_in_the_calibration_error():
    counts = np.array([[3.0], [1.0], [0.0]])
    value = resampled_ece(np.array([0, 1, 1]), np.array([0.2, 0.6, 0.9]), counts, bins=10)
    assert value[0] == pytest.approx((3 * 0.2 + 0.4) / 4)
