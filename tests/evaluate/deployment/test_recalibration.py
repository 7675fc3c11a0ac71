"""Recalibration: the fitted intercept, cross-fitted probabilities, refitted differences."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.recalibration import (
    LEAST_SCANS,
    cross_fitted,
    fit_intercept,
    recalibrate,
    refitted_differences,
)
from ich_mil.gp.calibration import Calibration, smoothed_targets

OWN = Calibration(slice_slope=2.0, slice_intercept=0.5)


def site(n=400, intercept=-1.5, slope=1.0, seed=0):
    """Logits of scans and labels that follow sigmoid(slope · logit + intercept)."""
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=2, size=n)
    return z, (rng.random(n) < 1 / (1 + np.exp(-slope * z - intercept))).astype(int)


def names(n, each=1):
    return [f"p{i // each}" for i in range(n)]


def sampled(z, n=5):
    noise = torch.randn(n, len(z), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.as_tensor(z) + noise


def test_intercept_maximises_the_likelihood():
    z, y = (torch.as_tensor(part) for part in site(60))
    target = smoothed_targets(y).numpy()

    def loss(b):
        f = 1.3 * z.numpy() + b
        return np.mean(np.logaddexp(0, f) - target * f)

    expected = minimize_scalar(loss, bracket=(-5, 5)).x
    assert fit_intercept(z, y, slope=1.3) == pytest.approx(expected, abs=1e-6)
    at_0, at_5 = (fit_intercept(z + shift, y, slope=2.0) for shift in (0, 5))
    assert at_5 == pytest.approx(at_0 - 10, abs=1e-6)
    assert np.isfinite(fit_intercept(1e4 * z, y, slope=1.0))


def test_intercept_of_samples_gives_the_target_mean():
    z, y = (torch.as_tensor(part) for part in site(60))
    samples = sampled(z, 50)
    b = fit_intercept(samples, y, slope=0.7)
    p = Calibration(slope=0.7, intercept=b).scan(samples).mean(0)
    assert float(p.mean()) == pytest.approx(float(smoothed_targets(y).mean()), rel=1e-9)


def test_recalibration_finds_the_site_and_keeps_the_rest():
    z, y = site(20_000, intercept=-1.5, slope=1.0)
    moved = recalibrate(z, y, OWN)
    assert (moved.slope, moved.slice_slope, moved.slice_intercept) == (1, 2, 0.5)
    assert moved.intercept == pytest.approx(-1.5, abs=0.1)
    z, y = site(20_000, intercept=0.7, slope=0.5)
    moved = recalibrate(z, y, Calibration("top_3", slope=0.5))
    assert (moved.slope, moved.intercept, moved.rule) == (0.5, pytest.approx(0.7, abs=0.1), "top_3")


def test_unlabelled_scans_are_left_out():
    z, y = site(LEAST_SCANS)
    found = recalibrate(np.append(z, [9, 9]), np.append(y, [-1, -1]), OWN)
    assert found == recalibrate(z, y, OWN)


@pytest.mark.parametrize(
    ("n", "change", "message"),
    [
        (LEAST_SCANS - 1, lambda z, y: (z, y), "at least 20 .* got 19"),
        (30, lambda z, y: (z, 0 * y), "got 30, 0 positive"),
        (30, lambda z, y: (z * np.where(np.arange(30) == 3, np.nan, 1), y), "scan number 3 are NaN"),
    ],
)
def test_unusable_scans_are_refused(n, change, message):
    with pytest.raises(DataError, match=message):
        recalibrate(*change(*site(n)), OWN)


def test_cross_fitting_has_no_leak():
    z, y = site(60)
    keys, samples = np.array(names(60, each=3)), sampled(z)
    p = cross_fitted(samples, y, keys, OWN, seed=0)
    patient = keys == "p4"
    turned = cross_fitted(samples, np.where(patient, 1 - y, y), keys, OWN, seed=0)
    assert np.array_equal(p[patient], turned[patient])
    assert (p[~patient] != turned[~patient]).sum() >= 40  # of the nine other parts
    # two patients: each by the other's intercept
    two = np.where(np.arange(60) < 30, "a", "b")
    p = cross_fitted(samples, y, two, OWN, seed=0)
    for held_out, others in ((two == "a", two == "b"), (two == "b", two == "a")):
        b = fit_intercept(samples[:, others], torch.as_tensor(y[others]), slope=1.0)
        assert p[held_out] == pytest.approx(torch.sigmoid(samples[:, held_out] + b).mean(0).numpy())


def test_refitted_differences_by_hand():
    """A resample that leaves a patient out has the other twice: measured on the one left out."""
    z, y = site(40)
    owner = np.arange(40) // 20
    wanted = []
    for drawn in (0, 1):
        rest = torch.as_tensor(z[owner != drawn])
        twice = (torch.as_tensor(np.tile(part[owner == drawn], 2)) for part in (z, y))
        b = fit_intercept(*twice, slope=1.0)
        old, new = (np.mean((torch.sigmoid(rest + add).numpy() - y[owner != drawn]) ** 2) for add in (0, b))
        wanted.append(new - old)
    found = refitted_differences(z, y, names(40, each=20), OWN, resamples=20, seed=0)["brier"]
    assert np.unique(found) == pytest.approx(np.sort(wanted), rel=1e-9)
