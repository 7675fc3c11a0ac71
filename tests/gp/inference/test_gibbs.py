"""The Gibbs sampler: each draw against its distribution, the chain against the exact posterior, its
diagnostics."""

import math
import warnings
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import norm, truncnorm
from sklearn.metrics import roc_auc_score

from ich_mil.convergence import bulk_ess, r_hat
from ich_mil.gp.aggregation import scan_logit
from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.inference import gibbs as gibbs_module
from ich_mil.gp.inference.gibbs import (
    draw_margins,
    draw_sided,
    draw_weights,
    elliptical_move,
    log_ndtri,
    sample_posterior,
)
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.observations.probit import log_evidence, margin_mean
from ich_mil.gp.settings import HeadSettings
from ich_mil.kernels.leave_one_out import Turns
from ich_mil.kernels.segments import bag_index
from tests.gp.synthetic import scans

GIBBS = HeadSettings(family="gibbs", lengthscale_squared=3.0, n_inducing=12)


@pytest.fixture(autouse=True)
def chains(monkeypatch):
    """Numbers of chains and draws: 4 x (100 + 400), or others."""

    def change(chains=4, burn_in=100, draws=400):
        for name, value in (("CHAINS", chains), ("BURN_IN", burn_in), ("DRAWS", draws)):
            monkeypatch.setattr(gibbs_module, name, value)

    change()
    return change


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_quantiles_far_in_the_tail():
    y = row(-1e-12, -0.3, -5.0, -100.0, -649.0, -651.0, -1e4, -1e8)
    got = log_ndtri(y)
    with mpmath.workdps(40):
        back = [float(mpmath.log(mpmath.erfc(-mpmath.mpf(z) / mpmath.sqrt(2)) / 2)) for z in got.tolist()]
    # an ulp of z changes log Φ by z² ulp: twice |y|, hence the factor; near y = 0 by less
    torch.testing.assert_close(row(*back), y, rtol=1e-14, atol=1e-15)
    assert float(log_ndtri(row(math.log(0.5)))) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("side", [-1, 0, 1])
@pytest.mark.parametrize("mu", [-45.0, -4.0, 0.3, 4.0, 45.0])
def test_sided_draws_have_truncated_normal_moments(mu, side):
    n = 100_000
    shape = torch.full((n,), mu, dtype=torch.float64)
    m = draw_sided(shape, torch.full_like(shape, side), generator())
    if side == 0:
        expected = norm(mu, 1)
    else:
        expected = truncnorm(-np.inf, -mu, mu, 1) if side < 0 else truncnorm(-mu, np.inf, mu, 1)
        assert bool((m * side >= 0).all())
    mean, variance = (float(value) for value in expected.stats("mv"))
    # 4.5 standard errors; that of a variance from the fourth moment of the draws
    assert float(m.mean()) == pytest.approx(mean, abs=4.5 * math.sqrt(variance / n))
    error = float((m - mean).square().std()) / math.sqrt(n)
    assert float(m.var()) == pytest.approx(variance, abs=4.5 * error)
    quartile = float((m <= expected.ppf(0.25)).double().mean())
    assert quartile == pytest.approx(0.25, abs=4.5 * math.sqrt(0.25 * 0.75 / n))


def test_margins_of_scans_have_their_joint_distribution():
    # scans of 3 (positive), 2 (negative), 1 (positive), in the order of turns 0 1 2 | 0 1 | 0
    offsets, labels = torch.tensor([0, 1, 4, 6]), torch.tensor([1, 1, 0])
    turns = Turns(offsets)
    packed = row(-1.0, -1.5, -0.4, -2.0, 0.8, -0.5)
    n = 200_000
    mu = packed[turns.order].expand(n, -1)
    m = turns.restore(draw_margins(mu, labels[turns.bag_order], turns, generator()))
    assert bool((m[:, 4:] < 0).all())
    assert bool((m[:, 0] >= 0).all())
    three = m[:, 1:4] >= 0
    assert bool(three.any(1).all())
    # all seven patterns of signs of the scan of three
    p = torch.special.ndtr(packed[1:4])
    some = 1 - (1 - p).prod()
    for pattern in range(1, 8):
        signs = torch.tensor([bool(pattern & 1), bool(pattern & 2), bool(pattern & 4)])
        expected = float(torch.where(signs, p, 1 - p).prod() / some)
        share = float((three == signs).all(1).double().mean())
        assert share == pytest.approx(expected, abs=4.5 * math.sqrt(expected * (1 - expected) / n))
    # and the means are those of the closed form
    mean = margin_mean(packed, labels, bag_index(offsets))
    assert bool(((m.mean(0) - mean).abs() < 4.5 * m.std(0) / math.sqrt(n)).all())


def test_margins_where_all_slices_are_far_below():
    # P(some) underflows as 1 - P₀: a margin must still be positive, and it is the one with the least to climb
    turns = Turns(torch.tensor([0, 3]))
    mu = row(-42.0, -40.0, -44.0).expand(2000, -1)
    m = draw_margins(mu, torch.tensor([1]), turns, generator())
    assert bool((m[:, 1] >= 0).all())
    assert bool((m[:, [0, 2]] < 0).all())
    # excess over 0 is nearly exponential with rate 40
    assert float(m[:, 1].mean()) == pytest.approx(1 / 40, rel=0.1)


def test_weights_given_margins():
    n = 200_000
    A = torch.tensor([[2.0, 1.5, 0.0], [1.5, 4.0, -1.0], [0.0, -1.0, 1.5]], dtype=torch.float64)
    pull = row(1.0, -2.0, 0.5)
    root = torch.linalg.inv(torch.linalg.cholesky(A))
    w, mean = draw_weights(pull.expand(n, -1), root, generator())
    torch.testing.assert_close(mean[0], torch.linalg.solve(A, pull), rtol=1e-14, atol=0)
    S = torch.linalg.inv(A)
    size = S.diagonal().sqrt()
    assert bool(((w.mean(0) - mean[0]).abs() < 4.5 * size / math.sqrt(n)).all())
    bound = 4.5 * math.sqrt(2 / n) * size[:, None] * size
    assert bool(((torch.cov(w.mT) - S).abs() < bound).all())


def test_an_elliptical_move_keeps_its_target():
    # target N(0.7, 0.5²) × N(-0.3, 1.2²), base N(0, I); the starts are exact draws, and stay exact draws
    n, mean, std = 200_000, row(0.7, -0.3), row(0.5, 1.2)
    noise = generator()
    v = mean + std * torch.randn(n, 2, generator=noise, dtype=torch.float64)

    def log_ratio(v, mu):
        assert torch.equal(mu, 2 * v)  # μ goes along
        return (v.square() - ((v - mean) / std).square()).sum(1) / 2

    start = v
    for _ in range(3):
        other = torch.randn(n, 2, generator=noise, dtype=torch.float64)
        v, _ = elliptical_move(v, 2 * v, other, 2 * other, noise, log_ratio)
    assert bool(((v.mean(0) - mean).abs() < 4.5 * std / math.sqrt(n)).all())
    assert bool(((v.std(0) - std).abs() < 4.5 * std / math.sqrt(2 * n)).all())
    assert bool((v != start).all())
    correlation = torch.corrcoef(torch.stack([v[:, 0], start[:, 0]]))[0, 1]
    assert float(correlation) < 0.6  # it moves


def exact_posterior(model, x, offsets, labels):
    """Mean and covariance of w, two inducing points, by a grid."""
    phi, _ = model.project(model.standardise(x), model.prior_root())
    grid = torch.linspace(-6, 6, 241, dtype=torch.float64)
    w = torch.cartesian_prod(grid, grid)
    log_joint = log_evidence(w @ phi, labels, bag_index(offsets)) - w.square().sum(1) / 2
    p = torch.softmax(log_joint, 0)
    mean = p @ w
    return mean, (p[:, None] * (w - mean)).mT @ (w - mean)


@pytest.mark.parametrize("single", [False, True], ids=["scans", "probit regression"])
def test_the_chain_has_the_exact_posterior(single, chains):
    chains(8, 50, 500)
    x, offsets, labels = scans(10, 3, longest=4)
    if single:  # every label known: ordinary probit regression
        offsets, labels = torch.arange(len(x) + 1), (x[:, 0] > 6.0).long()
    settings = replace(GIBBS, n_inducing=2)
    model, report = fit(Bags(x, offsets, labels), settings)
    mean, covariance = exact_posterior(model, x, offsets, labels)
    draws = model.draws.view(8, 500, 2)
    error = covariance.diagonal().sqrt() / bulk_ess(draws).sqrt()
    assert bool(((model.draws.mean(0) - mean).abs() < 4.5 * error).all())
    assert bool(((model.q_mean - mean).abs() < 4.5 * error).all())
    assert float(error.max()) < 0.03
    # a covariance of Gaussian draws has a standard error of √2 of its size over the root of their number,
    # or less
    scale = covariance.diagonal().sqrt()
    bound = 4.5 * math.sqrt(2 / float(bulk_ess(draws).min())) * scale[:, None] * scale
    assert bool(((torch.cov(model.draws.mT) - covariance).abs() < bound).all())
    assert bool(((model.q_root @ model.q_root.mT - covariance).abs() < bound).all())
    assert report.r_hat < 1.02
    assert report.effective_samples > 1000


@pytest.mark.filterwarnings("ignore:the chains of the Gibbs sampler disagree")
def test_seeds_and_the_report(chains):
    chains(4, 20, 50)
    x, offsets, labels = scans()
    first, report = fit(Bags(x, offsets, labels), GIBBS)
    again, _ = fit(Bags(x, offsets, labels), GIBBS)
    chains(3, 20, 50)
    other, _ = fit(Bags(x, offsets, labels), GIBBS)
    assert torch.equal(first.draws, again.draws)
    assert first.draws.shape == (200, 12)
    assert first.draws.untyped_storage().nbytes() == first.draws.nbytes  # and holds no other memory
    assert other.draws.shape == (150, 12)
    assert not torch.equal(other.draws[:50], first.draws[:50])
    assert report.elbo == report.validation_log_loss == ()
    assert len(report.max_abs_mean) == report.best_sweep == 70
    assert report.stopped == "sweeps"
    assert f"R-hat at most {report.r_hat:.3f}" in report.message
    assert f"at least {report.effective_samples:.0f}, over 133 slices" in report.message


@pytest.mark.parametrize(("burn_in", "draws", "largest"), [(0, 8, 3.0), (10, 40, 1.2)])
def test_few_draws_are_told(burn_in, draws, largest, chains):
    chains(2, burn_in, draws)
    x, offsets, labels = scans()
    with pytest.warns(
        UserWarning, match=rf"disagree \(2 chains of {draws} draws .*use family probit"
    ) as told:
        model, report = fit(Bags(x, offsets, labels), GIBBS)
    assert 1.05 < report.r_hat < largest
    # draws are kept chain after chain, and with so few slices all are watched
    watched = model.draws.view(2, draws, 12) @ model.project(model.standardise(x), model.prior_root())[0]
    assert report.r_hat == pytest.approx(float(r_hat(watched).max()), rel=1e-8)
    assert report.effective_samples == pytest.approx(float(bulk_ess(watched).min()), rel=1e-8)
    assert report.max_abs_mean[-1] == pytest.approx(float(watched[:, -1].abs().max()), rel=1e-8)
    # commands show the warnings that come from this package
    assert [Path(one.filename).parts[-3:] for one in told] == [("gp", "inference", "replicates.py")]
    # few draws of 12 weights have a covariance of little use; q(w) has one of full rank
    assert float(torch.linalg.eigvalsh(model.q_root @ model.q_root.mT).min()) > 1e-3


@pytest.mark.filterwarnings("ignore:the chains of the Gibbs sampler disagree")
def test_another_seed_makes_other_draws(chains):
    chains(4, 0, 4)
    x, offsets, labels = scans()
    model, _ = fit(Bags(x, offsets, labels), GIBBS)
    first, turns = model.draws, Turns(offsets)
    model.settings = replace(GIBBS, random_state=1)  # and the same inducing points
    sample_posterior(model, Projection(model, x, rows=turns.order), labels[turns.bag_order], turns)
    assert bool((model.draws != first).all())


def test_chains_without_reach_are_told(chains):
    chains(4, 0, 4)
    settings = replace(GIBBS, lengthscale_squared=1e-7, n_inducing=2)
    with pytest.warns(UserWarning, match=r"chains have shrunk to 0: .*longer length scale") as told:
        _, report = fit(Bags(*scans()), settings)
    assert len(told) == 1
    assert report.stopped == "diverged"


def autoregressive(chains, length, quantities, rho, seed=0):
    noise = torch.randn(chains, length, quantities, generator=generator(seed), dtype=torch.float64)
    x = noise.clone()
    for t in range(1, length):
        x[:, t] = rho * x[:, t - 1] + math.sqrt(1 - rho * rho) * noise[:, t]
    return x


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_effective_sample_size_of_a_known_chain(rho):
    got = bulk_ess(autoregressive(4, 5000, 20, rho))
    expected = 20_000 * (1 - rho) / (1 + rho)
    # means over 20 chains; the estimate has a deviation of some 5 % at these lengths
    assert float(got.mean()) == pytest.approx(expected, rel=0.05)


def test_r_hat_sees_place_spread_and_drift():
    same = autoregressive(4, 1000, 1, 0.0)
    assert float(r_hat(same)) < 1.01
    moved, wider, drifting = same.clone(), same.clone(), same.clone()
    moved[0] += 1.0
    wider[0] *= 3.0
    drifting += torch.linspace(0, 2, 1000, dtype=torch.float64)[:, None]
    for draws in (moved, wider, drifting):
        assert float(r_hat(draws)) > 1.05


def test_constant_quantities_do_not_disagree():
    # as μ of a slice that the kernel does not reach
    draws = torch.cat([torch.zeros(4, 100, 1, dtype=torch.float64), autoregressive(4, 100, 1, 0.0)], 2)
    assert float(r_hat(draws)[0]) == 1
    assert float(bulk_ess(draws)[0]) == 400
    # chains that stand still in different places
    still = torch.arange(4, dtype=torch.float64)[:, None, None].expand(4, 100, 1)
    assert float(r_hat(still)) > 1e6
    assert float(bulk_ess(still)) < 5


@pytest.mark.slow
@pytest.mark.realdata
def test_real_slices(rsna_features, cq500_features, chains):
    chains(4, 100, 150)
    rsna, cq500 = rsna_features, cq500_features
    settings = HeadSettings(family="gibbs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # so few draws are near the limit
        model, report = fit(Bags(rsna.x, rsna.offsets, rsna.labels), settings)
    assert report.r_hat < 1.2
    assert report.effective_samples > 20  # 2,000 draws of the two blocks alone are worth 9
    phi, _ = model.project(model.standardise(cq500.x), model.prior_root())
    logits = scan_logit(model.q_mean @ phi, cq500.offsets, "max")
    assert roc_auc_score(cq500.labels, logits) >= 0.915
