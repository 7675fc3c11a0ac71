"""Calibration line against scipy and scikit-learn."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from ich_mil.evaluate import calibration_line as module


def calibration_line(labels, probability, counts=None):
    """Intercept and slope of all rows, or (R,) of each."""
    if counts is not None:
        return module.calibration_line(labels, probability, counts)
    once = np.ones((len(labels), 1))
    return [float(part[0]) for part in module.calibration_line(np.asarray(labels), probability, once)]


def extreme(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
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


@pytest.mark.parametrize("n", [30, 490])
def test_equals_scipy_and_scikit_learn_on_repeated_rows(n):
    labels, probability = extreme(n, seed=n)
    assert calibration_line(labels, probability) == pytest.approx(
        by_libraries(labels, probability), rel=1e-6, abs=1e-8
    )
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=5).T
    found = calibration_line(labels, probability, counts)
    for r in range(5):
        rows = np.repeat(np.arange(n), counts[:, r])
        expected = by_libraries(labels[rows], probability[rows])
        assert [part[r] for part in found] == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_far_probabilities_and_exact_0_and_1():
    # 1e-9 predicted, one in four positive: the first Newton step alone would go astray
    labels, low = np.array([0, 1, 0, 0] * 5), np.tile([1e-9, 1e-9, 2e-9, 1e-10], 5)
    assert calibration_line(labels, low) == pytest.approx(by_libraries(labels, low), rel=1e-4)
    line = calibration_line(np.array([0, 1, 0, 1]), np.array([0.0, 1.0, 1.0, 0.0]))
    assert line == pytest.approx([0, 0], abs=1e-9)


def test_undefined_lines_are_nan():
    probability = np.array([0.1, 0.2, 0.8, 0.9])
    assert np.isnan(calibration_line(np.ones(4, int), probability)).all()
    separated = [([0, 0, 1, 1], probability), ([1, 1, 0, 0], probability)]
    separated += [([0, 0, 1, 1], np.array([0.1, 0.5, 0.5, 0.9]))]  # separated but for a tie
    separated += [([0, 1, 1, 1], np.full(4, 0.5))]
    for labels, p in separated:
        np.testing.assert_array_equal(np.isfinite(calibration_line(np.array(labels), p)), [True, False])
    assert calibration_line([0, 1, 1, 1], np.full(4, 0.5))[0] == pytest.approx(np.log(3))
    # a resample of one class, and one that is separated, do not spoil the third
    counts = np.array([[1, 1, 2], [0, 1, 1], [0, 1, 1], [3, 0, 1]])
    intercept, slope = calibration_line(np.array([0, 1, 0, 0]), np.array([0.1, 0.7, 0.2, 0.9]), counts)
    np.testing.assert_array_equal(np.isfinite(intercept), [False, True, True])
    np.testing.assert_array_equal(np.isfinite(slope), [False, False, True])
