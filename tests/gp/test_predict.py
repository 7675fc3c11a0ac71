"""Sampled predictions against quadrature, their independence of the batch."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from ich_mil.errors import DataError, ScanError
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit import fit
from ich_mil.gp.predict import draw, draw_weights, mean_logits, predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import CLIP
from ich_mil.heads.counterfactual import scan_logits
from ich_mil.kernels.counter import normals, scan_key
from tests.gp.synthetic import scans


def quadrature_mean(mu, sigma):
    """E[sigmoid(f)] for f ~ N(μ, σ²), (Eq. 31), by Gauss-Hermite nodes: good to 1e-6 for σ ≤ 5."""
    points, weights = np.polynomial.hermite_e.hermegauss(64)
    z, w = torch.as_tensor(points), torch.as_tensor(weights / weights.sum())
    return (torch.sigmoid(mu[..., None] + sigma[..., None] * z) * w).sum(-1)


def test_sampled_moments_and_quantiles_are_those_of_quadrature(head, new):
    got = predict(head, new, samples=4000, seed=1)
    q = head(new.x)
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


def test_samples_have_the_covariance_of_gpytorchs_q(head, new):
    part, cut = new.x[:6], torch.tensor([0, 6])
    expected = head(part).covariance_matrix
    scale = float(expected.diagonal().max())
    # the error of a covariance from 20,000 samples is √(2/L) = 1 % of the variance
    ((f, *_),) = [vars(one).values() for one in draw(head, Bags(part, cut), samples=20_000, seed=2)]
    assert float((f.T.cov() - expected).abs().max()) < 0.04 * scale
    off = expected - torch.diag(expected.diagonal())
    assert float(off.abs().max()) > 0.3 * scale
    assert float((f.mean(0) - head(part).mean).abs().max()) < 0.04 * scale**0.5


def test_the_residual_root_of_equal_slices_is_finite(head, new):
    same = new.x[:1].expand(5, -1)
    z = head.standardise(same)
    root = head.residual_root(z, *head.project(z, head.prior_root()))
    assert bool(root.isfinite().all())
    (drawn,) = draw(head, Bags(same, torch.tensor([0, 5])), samples=200)
    assert float(drawn.f.std(1).max()) < 0.02  # √ε = 0.001 is all that tells them apart


def test_a_kernel_not_positive_definite_is_refused(new):
    """cos(π ‖x - x'‖ / p) is positive definite for one feature only; few inducing points hide it."""
    model = fit(Bags(*scans()), HeadSettings(kernel="CosineKernel", n_inducing=2, sweeps=2))[0]
    with pytest.raises(DataError, match=r"slices of a scan cannot be factorised, .* take a kernel"):
        predict(model, new, samples=2)


@pytest.mark.parametrize("preset", ["default", "public"])
@pytest.mark.parametrize("variance", [0.5, 3.0])
def test_the_residual_root_of_the_remaining_prior(preset, variance):
    short = HeadSettings(preset=preset, n_inducing=4, sweeps=2, lengthscale_squared=0.5, variance=variance)
    model = fit(Bags(*scans()), short)[0]
    x = scans(3, seed=8)[0][:9]
    standard = model.standardise(x)
    phi, residual = model.project(standard, model.prior_root())
    root = model.residual_root(standard, phi, residual)
    K = variance * torch.exp(-torch.cdist(standard, standard).square())
    left = K - phi.T @ phi
    off = ~torch.eye(len(x)).bool()
    torch.testing.assert_close((root @ root.T)[off], left[off], rtol=1e-8, atol=1e-9)
    diagonal = torch.maximum(residual, left.diagonal() + 5e-7)
    torch.testing.assert_close((root @ root.T).diagonal(), diagonal, rtol=1e-8, atol=0)
    assert float(left[off].abs().max()) > 0.1


@pytest.mark.parametrize("named", [True, False])
def test_order_and_precision_of_slices_change_nothing(head, new, named):
    x, offsets = new.x.float(), new.offsets
    ids = new.ids if named else None
    bags = torch.repeat_interleave(torch.arange(9), offsets.diff())
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    order = order[bags[order].argsort(stable=True)]  # within each scan
    one = predict(head, Bags(x, offsets, ids=ids), samples=50)
    two = predict(head, Bags(x[order].double(), offsets, ids=ids), samples=50)
    assert not torch.equal(order, torch.arange(len(x)))
    assert torch.equal(two.slice_mean, one.slice_mean[order])
    assert torch.equal(two.scan_mean, one.scan_mean)
    assert torch.equal(two.scan_std, one.scan_std)


@pytest.mark.parametrize("rule", ["max", "noisy_or", "top_3", "top_20%"])
def test_scan_probabilities_follow_the_rule(head, new, rule):
    offsets = new.offsets
    calibration = Calibration(rule, slope=0.7, intercept=-0.4, slice_slope=0.5, slice_intercept=0.1)
    head = copy.deepcopy(head)
    head.settings = replace(head.settings, rule=rule)
    got = predict(head, new, samples=200, calibration=calibration)
    plain = predict(head, new, samples=200)
    for b, one in enumerate(draw(head, new, samples=200)):
        f = one.logits
        p = torch.sigmoid(f)
        order = p.mean(0).argsort(descending=True)
        raw = {
            "max": p[:, order[0]],
            "noisy_or": 1 - (1 - p).prod(1),
            "top_3": p[:, order[:3]].mean(1),
            "top_20%": p[:, order[: -(-p.shape[1] // 5)]].mean(1),
        }
        calibrated = torch.sigmoid(0.7 * torch.logit(raw[rule]) - 0.4)
        assert float(plain.scan_mean[b]) == pytest.approx(float(raw[rule].mean()), rel=1e-10)
        assert float(got.scan_mean[b]) == pytest.approx(float(calibrated.mean()), rel=1e-8)
        assert float(got.scan_std[b]) == pytest.approx(float(calibrated.std(correction=0)), rel=1e-7)
        assert float(got.scan_high[b]) == pytest.approx(float(calibrated.quantile(0.975)), rel=1e-8)
        slices = torch.minimum(torch.sigmoid(0.5 * f + 0.1), calibrated[:, None])
        own = slice(int(offsets[b]), int(offsets[b + 1]))
        torch.testing.assert_close(got.slice_mean[own], slices.mean(0), rtol=1e-8, atol=0)
        torch.testing.assert_close(got.slice_low[own], slices.quantile(0.025, dim=0), rtol=1e-8, atol=0)


def test_a_scan_does_not_depend_on_its_batch(head, new):
    together, order = predict(head, new, samples=50), [4, 0, 7]
    alone = predict(head, new.take(order), samples=50)
    for name, whole in vars(together).items():
        parts = whole.split(new.offsets.diff().tolist()) if name.startswith("slice") else whole[:, None]
        assert torch.equal(getattr(alone, name), torch.cat([parts[b] for b in order]))
    assert not torch.equal(predict(head, new, samples=50, seed=1).scan_mean, together.scan_mean)


def test_the_residual_uses_the_counters_numbers(head, new):
    """Noise is keyed by the scan id; slices are in the order of a projection of their features."""
    w = draw_weights(head, 50, seed=3)
    direction = torch.randn(3, generator=torch.Generator().manual_seed(0)).double()
    rows_of = new.x.split(new.offsets.diff().tolist())
    for one, scan, rows in zip(draw(head, new, samples=50, seed=3), new.ids, rows_of, strict=True):
        z = head.standardise(rows)
        order = (z @ direction).argsort()
        phi, residual = head.project(z[order], head.prior_root())
        noise = normals(3, scan_key(scan), len(rows), samples=50)
        expected = w @ phi + noise @ head.residual_root(z[order], phi, residual).mT
        torch.testing.assert_close(one.f[:, order], expected, rtol=1e-12, atol=1e-12)


def test_scan_logits_are_the_rules_over_the_samples(head, new):
    of_scan, of_slices = scan_logits(draw(head, new, samples=30))
    for b, one in enumerate(draw(head, new, samples=30)):
        f = one.logits
        order = torch.sigmoid(f).mean(0).argsort(descending=True)
        assert torch.equal(of_scan[:, b], f[:, order[0]])
        top = torch.sigmoid(f)[:, order[: -(-f.shape[1] // 5)]].mean(1)
        torch.testing.assert_close(torch.sigmoid(of_slices[:, b]), top, rtol=1e-12, atol=0)


def test_probit_heads_predict_probit_probabilities(new):
    """E Φ(f) = Φ(μ / √(1 + σ²)) for f ~ N(μ, σ²)."""
    probit = fit(Bags(*scans()), HeadSettings(family="probit", n_inducing=12, sweeps=6))[0]
    q = probit(new.x)
    exact = torch.special.ndtr(q.mean / torch.sqrt(1 + q.variance))
    torch.testing.assert_close(torch.sigmoid(mean_logits([probit], new)[0]), exact, rtol=1e-9, atol=0)
    got = predict(probit, new, samples=4000)
    assert float(((got.slice_mean - exact) / (got.slice_std / 4000**0.5)).abs().max()) < 4
    sampled = copy.deepcopy(probit)  # the same model, however it was fitted
    sampled.settings = replace(probit.settings, family="gibbs")
    assert torch.equal(predict(sampled, new, samples=4000).scan_mean, got.scan_mean)


def test_draws_of_a_sampler_are_spread(head):
    sampled = copy.deepcopy(head)
    sampled.draws = torch.arange(1000).double()[:, None].expand(-1, 12).clone()
    rows = draw_weights(sampled, 100, seed=0)
    assert torch.equal(rows, rows[:, :1].expand(-1, 12))
    assert float(rows.mean()) == pytest.approx(499.5, abs=4 * 289 / 10)  # four standard errors


def test_far_features_are_clipped_and_leave_other_slices(head, new):
    """A slice so far out has no correlation with any: what is left is the scan without it."""
    x, cut = new.x[:10].clone(), torch.tensor([0, 10])
    x[9, 1] = head.x_mean[1] - CLIP * head.x_std[1]
    z = head.standardise(x)
    part, whole = (head.residual_root(rows, *head.project(rows, head.prior_root())) for rows in (z[:9], z))
    covariance = whole @ whole.T
    torch.testing.assert_close(covariance[:9, :9], part @ part.T, rtol=0, atol=1e-9)
    assert covariance[9].tolist() == pytest.approx([0.0] * 9 + [0.5 + 1e-6], abs=1e-12)  # v + ε
    clipped, clipped_mean = predict(head, Bags(x, cut), samples=20), mean_logits([head], Bags(x, cut))
    x[9, 1] = head.x_mean[1] - 1e4 * CLIP * head.x_std[1]
    torch.testing.assert_close(predict(head, Bags(x, cut), samples=20).slice_mean, clipped.slice_mean)
    torch.testing.assert_close(mean_logits([head], Bags(x, cut)), clipped_mean)
    for value in (-1e38, torch.nan, torch.inf):  # stands for a missing value
        x[9, 1] = value
        with pytest.raises(DataError, match="'a': feature 1 of slice 9"):
            predict(head, Bags(x, cut, ids=["a"]), samples=2)
        with pytest.raises(ScanError) as caught:
            predict(head, Bags(x, cut), samples=2)
        assert caught.value.scan == 0


def test_bad_input_is_refused(head, new):
    for width in (1, 2):  # one feature would be taken for all three
        for call in (predict, lambda model, bags: mean_logits([model], bags)):
            with pytest.raises(DataError, match=rf"3 features .* {width}\)"):
                call(head, new._replace(x=new.x[:, :width]))
    with pytest.raises(ValueError, match="samples must be at least 2"):
        predict(head, new, samples=1)
    with pytest.raises(ValueError, match="'top_3', not to 'max'"):
        predict(head, new, calibration=Calibration("top_3"))
