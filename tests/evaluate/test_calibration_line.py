import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.calibration_line import calibration_line, resampled_line

NAMES = ("calibration_intercept", "calibration_slope")


def told(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels (n,) and probabilities (n,) that are too extreme, and too high."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 2, n)
    return (rng.random(n) < expit(0.6 * z - 0.5)).astype(int), expit(z)


def by_libraries(labels: np.ndarray, probability: np.ndarray) -> list[float]:
    """Intercept by a root of the likelihood's slope, slope by scikit-learn."""
    z = logit(probability)
    intercept = brentq(lambda a: (expit(a + z) - labels).sum(), -50, 50, xtol=1e-13)
    line = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(z[:, None], labels)
    return [intercept, line.coef_[0, 0]]


@pytest.mark.parametrize("n", [30, 60, 490])
def test_equals_scipy_and_scikit_learn_and_repeated_rows(n):
    labels, probability = told(n, seed=n)
    assert list(calibration_line(labels, probability).values()) == pytest.approx(
        by_libraries(labels, probability), rel=1e-6, abs=1e-8
    )
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=5).T
    found = resampled_line(labels, probability, counts)
    assert list(found) == list(NAMES)
    for r in range(5):
        rows = np.repeat(np.arange(n), counts[:, r])
        expected = by_libraries(labels[rows], probability[rows])
        assert [found[name][r] for name in NAMES] == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_finds_what_was_done_to_the_probabilities():
    labels, probability = told(200_000, seed=1)
    line = calibration_line(labels, probability)
    assert line["calibration_slope"] == pytest.approx(0.6, abs=0.01)
    assert line["calibration_intercept"] < -0.4
    right = calibration_line(labels, expit(0.6 * logit(probability) - 0.5))
    assert list(right.values()) == pytest.approx([0, 1], abs=0.02)


def test_far_probabilities_and_exact_0_and_1_are_fitted():
    # told 1e-9, and one in four bleeds: the first Newton step alone would go astray
    labels, low = np.array([0, 1, 0, 0] * 5), np.tile([1e-9, 1e-9, 2e-9, 1e-10], 5)
    intercept, slope = calibration_line(labels, low).values()
    assert [intercept, slope] == pytest.approx(by_libraries(labels, low), rel=1e-4)
    # at the float64 epsilon, where half of either kind bleeds
    line = calibration_line(np.array([0, 1, 0, 1]), np.array([0.0, 1.0, 1.0, 0.0]))
    assert list(line.values()) == pytest.approx([0, 0], abs=1e-9)


def test_labels_and_probabilities_are_taken_as_other_metrics_take_them():
    labels, probability = told(60, seed=3)
    line = calibration_line(labels, probability)
    assert calibration_line(labels.tolist(), pd.Series(probability, index=range(60, 0, -1))) == line
    more = np.append(labels, UNKNOWN), np.append(probability, 0.9)
    assert calibration_line(*more) == line
    sure = np.append(probability.astype(np.float32), np.float32(1.0))  # 1 - ε is 1 there
    assert np.isfinite(list(calibration_line(np.append(labels, 1), sure).values())).all()
    with pytest.raises(DataError, match=r"a probability must lie in \[0, 1\]"):
        calibration_line(labels, probability * 2)


def test_what_is_not_defined_is_nan():
    probability = np.array([0.1, 0.2, 0.8, 0.9])
    assert np.isnan(list(calibration_line(np.ones(4, int), probability).values())).all()
    for labels in ([0, 0, 1, 1], [1, 1, 0, 0]):  # told apart, rightly or the wrong way round
        line = calibration_line(np.array(labels), probability)
        assert np.isfinite(line["calibration_intercept"])
        assert np.isnan(line["calibration_slope"])
    tied = calibration_line(
        np.array([0, 0, 1, 1]), np.array([0.1, 0.5, 0.5, 0.9])
    )  # told apart but for a tie
    assert np.isnan(tied["calibration_slope"])
    alike = calibration_line(np.array([0, 1, 1, 1]), np.full(4, 0.5))
    assert alike["calibration_intercept"] == pytest.approx(np.log(3))
    assert np.isnan(alike["calibration_slope"])
    # a resample of one class, and one that is told apart, do not spoil the third
    counts = np.array([[1, 1, 2], [0, 1, 1], [0, 1, 1], [3, 0, 1]])
    found = resampled_line(np.array([0, 1, 0, 0]), np.array([0.1, 0.7, 0.2, 0.9]), counts)
    np.testing.assert_array_equal(np.isfinite(found["calibration_intercept"]), [False, True, True])
    np.testing.assert_array_equal(np.isfinite(found["calibration_slope"]), [False, False, True])


def test_classes_that_hardly_overlap_are_fitted_all_the_same():
    # log odds told reach 25 and the slope is 4: they go a hundred away, by 1 a step
    z = np.concatenate([np.linspace(-25, 0, 40), np.linspace(-0.2, 25, 40)])
    labels = np.repeat([0, 1], 40)
    line = calibration_line(labels, expit(z))
    assert line["calibration_slope"] == pytest.approx(by_libraries(labels, expit(z))[1], rel=1e-3)
    assert line["calibration_slope"] > 4


def test_values_that_rounding_alone_tells_apart_are_one():
    # all negative scans at one value, as isotonic regression gives it, and some positive ones too
    labels = np.array([0] * 97 + [1] * 103)
    p = np.array([0.06] * 102 + [0.5, 0.7] + [0.94] * 96)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(200, np.full(200, 1 / 200), size=50).T.astype(float)
    clean = resampled_line(labels, p, counts)
    rounded = p + np.where(rng.random(200) < 0.3, 2.0**-55, 0) * (labels == 0)
    found = resampled_line(labels, rounded, counts)
    for name in NAMES:
        np.testing.assert_allclose(found[name], clean[name], rtol=1e-9)
    assert np.isnan(found["calibration_slope"]).all()
