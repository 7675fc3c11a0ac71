"""Scans from independent samples, against the distribution of a maximum and numpy on the samples."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import expit, log_ndtr

from ich_mil.errors import DataError
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit import fit
from ich_mil.gp.predict import predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.kernels.counter import normals, scan_key
from ich_mil.reproduce.statistics.independent import independent_scans
from tests.gp.synthetic import scans

SETTINGS = HeadSettings(n_inducing=12, sweeps=6)


@pytest.fixture(scope="module")
def new():
    x, offsets, _ = scans(9, seed=5)
    return x, offsets, [f"scan {b}" for b in range(9)]


def heads(**how):
    return fit(Bags(*scans()), replace(SETTINGS, **how))[0]


def test_the_largest_of_independent_slices_has_the_product_of_their_distributions(new):
    x, offsets, ids = new
    head, calibration = heads(), Calibration("max", slope=1.5, intercept=-0.3)
    samples = 20_000
    mean, std = independent_scans(head, Bags(x, offsets, ids=ids), samples=samples, calibration=calibration)
    q = head(x)
    mu, sigma = q.mean.numpy(), q.stddev.numpy()
    t = np.linspace(-8, 8, 40_001)
    p = expit(1.5 * t - 0.3)
    for b, (start, end) in enumerate(pairwise(offsets.tolist())):
        below = np.exp(log_ndtr((t[:, None] - mu[start:end]) / sigma[start:end]).sum(1))  # P(max f ≤ t)
        mass = np.diff(below)
        middle = (p[1:] + p[:-1]) / 2
        expected = middle @ mass
        spread = np.sqrt(middle**2 @ mass - expected**2)
        assert abs(float(mean[b]) - expected) < 4 * spread / samples**0.5
        assert float(std[b]) == pytest.approx(spread, rel=0.04)
    # samples of the whole function know that slices rise together: their largest is lower, and less sure
    whole = predict(head, Bags(x, offsets, ids=ids), samples=samples, calibration=calibration)
    longest = int(offsets.diff().argmax())
    assert float(mean[longest]) > float(whole.scan_mean[longest])
    # a scan of one slice is the same either way
    (single,) = (offsets.diff() == 1).nonzero()[:1]
    assert float(mean[single]) == pytest.approx(
        float(whole.scan_mean[single]), abs=5 * float(std[single]) / 140
    )


@pytest.mark.parametrize(
    ("how", "calibration"),
    [
        ({}, Calibration("max", slope=1.5, intercept=-0.3)),
        ({"rule": "top_3"}, Calibration("top_3", slope=0.4, intercept=-0.9)),
        ({"rule": "noisy_or"}, Calibration("noisy_or", slope=0.4)),
        ({"rule": "noisy_or", "family": "probit"}, None),
    ],
    ids=["max", "top 3", "noisy-or", "probit"],
)
def test_equals_numpy_on_the_samples(new, how, calibration):
    x, offsets, ids = new
    head = heads(**how)
    mean, std = independent_scans(
        head, Bags(x, offsets, ids=ids), samples=300, seed=4, calibration=calibration
    )
    rule = how.get("rule", "max")
    for b, (start, end) in enumerate(pairwise(offsets.tolist())):
        q = head(x[start:end])
        m, covariance = q.mean, q.covariance_matrix
        noise = normals(4, scan_key(ids[b]), end - start, samples=300)
        f = (m + covariance.diagonal().sqrt() * noise).numpy()
        p = np.exp(log_ndtr(f)) if how.get("family") == "probit" else expit(f)
        scan = {"max": p.max(1), "noisy_or": 1 - (1 - p).prod(1), "top_3": np.sort(p, 1)[:, -3:].mean(1)}[
            rule
        ]
        if calibration is not None:
            scan = calibration.scan(torch.logit(torch.tensor(scan))[:, None])[:, 0].numpy()
        # μ of GPyTorch and of Φᵀm differ by the condition of the kernel matrix times 1e-16
        assert float(mean[b]) == pytest.approx(scan.mean(), rel=1e-6)
        assert float(std[b]) == pytest.approx(scan.std(), rel=1e-6)


def test_a_scan_does_not_depend_on_its_batch_to_the_bit(new):
    x, offsets, ids = new
    for how in ({}, {"rule": "top_3"}):
        head = heads(**how)
        both = independent_scans(head, Bags(x, offsets, ids=ids), samples=50)
        rows = slice(int(offsets[3]), int(offsets[5]))
        part = independent_scans(head, Bags(x[rows], offsets[3:6] - offsets[3], ids=ids[3:5]), samples=50)
        for a, b in zip(part, both, strict=True):
            assert torch.equal(a, b[3:5])


def test_bad_input_is_refused(new):
    x, offsets, ids = new
    head = heads()
    with pytest.raises(ValueError, match="fitted to the rule 'top_3', not to 'max'"):
        independent_scans(head, Bags(x, offsets, ids=ids), calibration=Calibration("top_3"))
    with pytest.raises(ValueError, match="samples must be at least 2"):
        independent_scans(head, Bags(x, offsets, ids=ids), samples=1)
    for bad in (
        Bags(x, offsets, ids=ids[:-1]),
        Bags(x.index_fill(0, offsets[:1], torch.nan), offsets, ids=ids),
    ):
        with pytest.raises(DataError):
            independent_scans(head, bad)
