"""Sampled predictions against quadrature, their independence of the batch, the heatmap's latent function."""

import pytest
import torch
from synthetic import scans

from ich_mil.errors import DataError
from ich_mil.gp.calibration import ScanCalibration
from ich_mil.gp.predict import (
    draw_weights,
    fit_calibration,
    latent_samples,
    predict,
    quadrature_mean,
    sample_scans,
)
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.vgpmil import fit

FIELDS = (
    "slice_mean",
    "slice_std",
    "slice_low",
    "slice_high",
    "scan_mean",
    "scan_std",
    "scan_low",
    "scan_high",
)


@pytest.fixture(scope="module")
def head():
    return fit(*scans(), settings=HeadSettings(n_inducing=12, sweeps=6))[0]


@pytest.fixture(scope="module")
def new():
    x, offsets, labels = scans(9, seed=5)
    return x, offsets, [f"scan {b}" for b in range(9)], labels


def test_quadrature_by_hand():
    mu = torch.tensor([0.0, 2.0, -2.0, 1.0], dtype=torch.float64)
    sigma = torch.tensor([3.0, 0.0, 0.0, 1.5], dtype=torch.float64)
    got = quadrature_mean(mu, sigma)
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    p = torch.sigmoid(1 + 1.5 * z) * torch.exp(-z.square() / 2) / (2 * torch.pi) ** 0.5
    expected = torch.stack([torch.tensor(0.5).double(), *torch.sigmoid(mu[1:3]), torch.trapezoid(p, z)])
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=0)


def test_sampled_means_lie_within_four_standard_errors_of_quadrature(head, new):
    x, offsets, ids, _ = new
    got = predict(head, x, offsets, ids, samples=4000, seed=1)
    q = head(x)
    expected = quadrature_mean(q.mean, q.stddev)
    assert float(((got.slice_mean - expected) / (got.slice_std / 4000**0.5)).abs().max()) < 4
    # the deviation too: E[sigmoid²] - E[sigmoid]², a Monte Carlo variance is good to √(2/L) = 2.2 %
    points = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.exp(-points.square() / 2) / (2 * torch.pi) ** 0.5
    p = torch.sigmoid(q.mean[:, None] + q.stddev[:, None] * points)
    std = (torch.trapezoid(p.square() * density, points) - expected.square()).sqrt()
    torch.testing.assert_close(got.slice_std, std, rtol=0.09, atol=0)
    # quantiles of a monotone function are the function of quantiles
    for bound, z in (("slice_low", -1.959964), ("slice_high", 1.959964)):
        logit = torch.logit(getattr(got, bound))
        assert float(((logit - q.mean - z * q.stddev) / q.stddev).abs().max()) < 0.25


def test_samples_keep_the_correlation_between_slices(head, new):
    x, _, _, _ = new
    part = x[:6]
    (f,) = sample_scans(head, part, torch.tensor([0, 6]), ["a"], samples=20_000, seed=2)
    expected = head(part).covariance_matrix
    phi, residual = head.project(part, head.prior_root())
    root = head.q_root.mT @ phi
    kept = root.mT @ root + torch.diag(residual)  # between inducing points the residuals are independent
    assert float((f.T.cov() - kept).abs().max()) < 0.05 * float(expected.diagonal().max())


@pytest.mark.parametrize("rule", ["max", "noisy_or", "top_3"])
def test_scan_probability_is_the_rule_per_sample(head, new, rule):
    x, offsets, ids, _ = new
    got = predict(head, x, offsets, ids, samples=200, rule=rule, calibration=ScanCalibration(0.7, -0.4, rule))
    for b, f in enumerate(sample_scans(head, x, offsets, ids, samples=200)):
        p = torch.sigmoid(f)
        raw = {
            "max": p.amax(1),
            "noisy_or": 1 - (1 - p).prod(1),
            "top_3": p.topk(min(3, p.shape[1])).values.mean(1),
        }
        calibrated = torch.sigmoid(0.7 * torch.logit(raw[rule]) - 0.4)
        assert float(got.scan_raw[b]) == pytest.approx(float(raw[rule].mean()), rel=1e-10)
        assert float(got.scan_mean[b]) == pytest.approx(float(calibrated.mean()), rel=1e-8)
        assert float(got.scan_std[b]) == pytest.approx(float(calibrated.std(correction=0)), rel=1e-7)
        assert float(got.scan_high[b]) == pytest.approx(float(calibrated.quantile(0.975)), rel=1e-8)


def test_a_scan_does_not_depend_on_its_batch_to_the_bit(head, new):
    x, offsets, ids, _ = new
    together = predict(head, x, offsets, ids, samples=50)
    parts = list(x.split(offsets.diff().tolist()))
    order = [4, 0, 7]
    part = torch.cat([parts[b] for b in order])
    cut = torch.tensor([0] + [len(parts[b]) for b in order]).cumsum(0)
    alone = predict(head, part, cut, [ids[b] for b in order], samples=50)
    for name in FIELDS:
        whole = getattr(together, name)
        if name.startswith("slice"):
            expected = torch.cat([whole.split(offsets.diff().tolist())[b] for b in order])
        else:
            expected = whole[order]
        assert torch.equal(getattr(alone, name), expected)
    assert not torch.equal(predict(head, x, offsets, ids, samples=50, seed=1).scan_mean, together.scan_mean)


def test_noise_is_keyed_by_the_scan_id(head, new):
    part, cut = new[0][:3], torch.tensor([0, 3, 6])
    one, two = sample_scans(head, torch.cat([part, part]), cut, ["a", "b"], samples=50)
    (again,) = sample_scans(head, part, torch.tensor([0, 3]), ["b"], samples=50)
    assert not torch.equal(one, two)
    assert torch.equal(two, again)


def test_latent_samples_are_the_samples_without_residual_and_differentiable(head, new):
    x, _, _, _ = new
    w = draw_weights(head, 5, seed=0)
    part = x[:4].clone().requires_grad_()
    f = latent_samples(head, part, w)
    phi, _ = head.project(x[:4], head.prior_root())
    torch.testing.assert_close(f.detach(), w @ phi, rtol=1e-12, atol=0)
    close = latent_samples(head, x[:4], head.q_mean[None])[0]
    torch.testing.assert_close(close, head(x[:4]).mean, rtol=1e-10, atol=0)
    assert torch.autograd.gradcheck(lambda v: latent_samples(head, v, w), (part,))


def test_calibration_of_a_head_is_platt_on_its_samples(head, new):
    x, offsets, ids, labels = new
    calibration = fit_calibration(head, x, offsets, ids, labels, samples=100)
    assert calibration.rule == head.settings.rule
    with pytest.raises(ValueError, match="fitted to the rule 'max', not to 'top_3'"):
        predict(head, x, offsets, ids, rule="top_3", calibration=calibration)
    before, after = (
        predict(head, x, offsets, ids, samples=100, calibration=c).scan_mean for c in (None, calibration)
    )
    loss = torch.nn.functional.binary_cross_entropy
    assert float(loss(after, labels.double())) < float(loss(before, labels.double()))


def test_bad_input_is_refused(head, new):
    x, offsets, ids, _ = new
    with pytest.raises(DataError, match=r"the head takes 3 features a slice, got features \(\d+, 2\)"):
        predict(head, x[:, :2], offsets, ids)
    with pytest.raises(DataError, match="8 scan ids do not fit offsets of 9 scans"):
        predict(head, x, offsets, ids[:-1])
    broken = x.clone()
    broken[-1, 0] = torch.inf
    with pytest.raises(DataError, match="scan 'scan 8': a feature is NaN or infinite"):
        predict(head, broken, offsets, ids, samples=2)
    with pytest.raises(ValueError, match="samples must be at least 2"):
        predict(head, x, offsets, ids, samples=1)
