"""Weighted log-loss of RSNA 2019 by hand, by scikit-learn, and its interval."""

import numpy as np
import pytest
from sklearn.metrics import log_loss

from ich_mil.errors import DataError
from ich_mil.evaluate.weighted_log_loss import image_losses, mean_loss


def test_any_weighs_twice():
    labels = np.zeros((1, 6), int)
    p = np.array([[0.0, 0.0, 0.0, 0.0, 0.0, 0.5]])
    assert image_losses(labels, p) == pytest.approx(np.log(2) * 2 / 7)
    assert image_losses(labels, p[:, ::-1]) == pytest.approx(np.log(2) / 7)


def test_value_is_that_of_scikit_learn():
    generator = np.random.default_rng(0)
    labels, p = generator.integers(2, size=(50, 6)), generator.random((50, 6))
    weights = np.tile([1, 1, 1, 1, 1, 2], 50)
    expected = log_loss(labels.ravel(), p.ravel(), sample_weight=weights)
    assert image_losses(labels, p).mean() == pytest.approx(expected)


def test_certain_errors_stay_finite():
    assert np.isfinite(image_losses(np.ones((1, 6), int), np.zeros((1, 6)))).all()


def test_interval_resamples_patients():
    """Copies of the images of 20 patients do not narrow it."""
    losses = np.random.default_rng(0).exponential(size=20)
    patients = np.array([f"patient {i}" for i in range(20)])
    value, ends = mean_loss(losses, patients)
    many, more = mean_loss(np.tile(losses, 30), np.tile(patients, 30))
    assert value == pytest.approx(many)
    assert (ends.low, ends.high) == pytest.approx((more.low, more.high))
    assert ends.low < value < ends.high


@pytest.mark.parametrize(("label", "p"), [(2, 0.5), (0, 1.1), (0, np.nan)])
def test_values_out_of_range_are_refused(label, p):
    with pytest.raises(DataError, match="weighted log-loss"):
        image_losses(np.full((1, 6), label), np.full((1, 6), p))
