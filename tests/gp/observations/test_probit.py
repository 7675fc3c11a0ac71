"""MIL-GP-Probit: the truncated mean against quadrature, Monte Carlo and 60 digits; the fit against loops."""

import math
from dataclasses import replace
from itertools import pairwise

import mpmath
import pytest
import torch

from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import Job, fit, fit_replicates
from ich_mil.gp.observations.probit import (
    ProbitObservation,
    log_evidence,
    log_hazard,
    log_none_and_some,
    margin_mean,
)
from ich_mil.gp.settings import HeadSettings
from ich_mil.kernels.leave_one_out import Turns
from ich_mil.kernels.segments import bag_index
from tests.gp.synthetic import close, kl_of_prior, scans

PROBIT = HeadSettings(family="probit", lengthscale_squared=3.0, n_inducing=12, sweeps=6)


def below(x):
    """Φ(x)."""
    return math.erfc(-x / math.sqrt(2)) / 2


def density(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def closed_form(mu, label):
    """E[m] of one scan as the supplement's density gives it, product by product."""
    if not label:
        return [m - density(m) / below(-m) for m in mu]
    none = math.prod(below(-m) for m in mu)
    others = [math.prod(below(-m) for j, m in enumerate(mu) if j != i) for i in range(len(mu))]
    return [m + density(m) * rest / (1 - none) for m, rest in zip(mu, others, strict=True)]


def textbook(model, x, offsets, labels):
    """Supplement section 1 as printed: unwhitened u, explicit inverses, loops over scans; μ, σ² and the
    bound."""
    settings, eps, z = model.settings, 1e-6, model.inducing
    x = (x - x.mean(0)) / x.std(0, correction=0)

    def k(a, b):
        return model.covar_module(a, b).to_dense()

    Kzz = k(z, z) + eps * torch.eye(len(z), dtype=torch.float64)
    Kinv = torch.linalg.inv(Kzz)
    A = k(x, z) @ Kinv
    spans = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), labels.tolist(), strict=True))
    mu = torch.zeros(len(x), dtype=torch.float64)
    S = torch.linalg.inv(A.T @ A + Kinv)
    for _ in range(settings.sweeps):
        m = [value for start, end, t in spans for value in closed_form(mu[start:end].tolist(), t)]
        mean = S @ A.T @ torch.tensor(m, dtype=torch.float64)
        mu = A @ mean
    var = ((A @ S) * A).sum(1) + k(x, x).diagonal() + eps - (A * k(x, z)).sum(1)
    bound = -0.5 * float(var.sum())
    for start, end, t in spans:
        none = math.prod(below(-m) for m in mu[start:end].tolist())
        bound += math.log(1 - none if t else none)
    return mu, var, bound - kl_of_prior(mean, S, Kzz)


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


def one_bag(mu, label):
    """E[m] of one scan."""
    return margin_mean(mu, torch.tensor([label]), torch.zeros(mu.shape[-1], dtype=torch.int64))


def test_at_zero_by_hand():
    # h(0) = 2φ(0) = √(2/π); P₀ = 2⁻ⁿ, so P₀/(1 - P₀) = 1/(2ⁿ - 1)
    h = math.sqrt(2 / math.pi)
    torch.testing.assert_close(one_bag(row(0.0, 0.0), 0), row(-h, -h), rtol=1e-15, atol=0)
    torch.testing.assert_close(one_bag(row(0.0), 1), row(h), rtol=1e-15, atol=0)
    torch.testing.assert_close(one_bag(row(0.0, 0.0), 1), row(h / 3, h / 3), rtol=1e-14, atol=0)
    torch.testing.assert_close(one_bag(row(0.0, 0.0, 0.0), 1), row(h / 7, h / 7, h / 7), rtol=1e-14, atol=0)


EXTREME = [
    (0.3,),
    (-1e-3, 1e-3, 5.0),
    (-9.0, -9.5, -8.7, -12.0),
    (-30.0, -36.9, -38.1, -44.0),
    (-45.0, -47.0),
    (40.0, -40.0, 0.0),
    tuple(-6.0 - 0.1 * i for i in range(57)),
]


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("mu", EXTREME, ids=str)
def test_exact_in_both_tails_against_sixty_digits(mu, label):
    with mpmath.workdps(60):
        # neither Φ nor 1 - Φ may be rounded to 1: 60 digits end at |μ| = 16
        tails = [mpmath.erfc(abs(mpmath.mpf(m)) / mpmath.sqrt(2)) / 2 for m in mu]
        log_not = [mpmath.log(p) if m > 0 else mpmath.log1p(-p) for m, p in zip(mu, tails, strict=True)]
        log_none = mpmath.fsum(log_not)
        some = -mpmath.expm1(log_none)
        factor = mpmath.exp(log_none) / some if label else mpmath.mpf(-1)
        expected = []
        for m in mu:
            hazard = mpmath.npdf(m) / (mpmath.erfc(mpmath.mpf(m) / mpmath.sqrt(2)) / 2)
            expected.append(float(mpmath.mpf(m) + hazard * factor))
        logs = float(log_none), float(mpmath.log(some))
    got = one_bag(row(*mu), label)
    # ulps of μ itself: for |μ| ≫ 1 the mean is a small difference of μ and h
    scale = max(1.0, *(abs(m) for m in mu))
    torch.testing.assert_close(got / scale, row(*expected) / scale, rtol=0, atol=2e-13)
    none, some = log_none_and_some(row(*mu), torch.zeros(len(mu), dtype=torch.int64), 1)
    assert float(none) == pytest.approx(logs[0], rel=1e-13, abs=1e-300)
    assert float(some) == pytest.approx(logs[1], rel=1e-13, abs=1e-300)


def test_hazard_against_sixty_digits():
    mu = torch.linspace(-60, 60, 241, dtype=torch.float64)
    with mpmath.workdps(60):
        expected = [
            float(mpmath.log(mpmath.npdf(m) / (mpmath.erfc(mpmath.mpf(m) / mpmath.sqrt(2)) / 2)))
            for m in mu.tolist()
        ]
    # absolute, of a logarithm: a relative error of the hazard. φ(-60) is e^-1801, of which 1e-13 is 1/4 ulp
    torch.testing.assert_close(log_hazard(mu), row(*expected), rtol=1e-15, atol=1e-15)


def test_two_slices_against_quadrature():
    mu = row(-0.7, 0.4)
    grid = torch.linspace(-9, 9, 3601, dtype=torch.float64) + 0.0025  # no node at 0
    a, b = torch.meshgrid(grid, grid, indexing="ij")
    weight = torch.exp(-((a - mu[0]) ** 2 + (b - mu[1]) ** 2) / 2) * ((a > 0) | (b > 0))
    expected = torch.stack([(weight * a).sum(), (weight * b).sum()]) / weight.sum()
    # the midpoint rule with an edge of the region between two nodes: h² = 2.5e-5
    torch.testing.assert_close(one_bag(mu, 1), expected, rtol=1e-5, atol=0)


def test_the_mean_is_the_gradient_of_the_evidence():
    x, offsets, labels = scans(8)
    bags = bag_index(offsets)
    mu = torch.randn(len(x), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mu.requires_grad_()
    log_evidence(mu, labels, bags).backward()
    torch.testing.assert_close(margin_mean(mu, labels, bags), mu + mu.grad, rtol=1e-12, atol=1e-13)


def test_equals_the_textbook():
    x, offsets, labels = scans()
    model, report = fit(Bags(x, offsets, labels), PROBIT)
    mu, var, bound = textbook(model, x, offsets, labels)
    q = model(x)
    close(q.mean, mu)
    close(q.variance, var)
    assert report.elbo[-1] == pytest.approx(bound, rel=1e-10)
    assert float(mu.max()) > 0.1
    assert float(mu.min()) < -0.5


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_bound_never_falls(seed):
    x, offsets, labels = scans(30, seed)
    elbo = fit(Bags(x, offsets, labels), replace(PROBIT, n_inducing=20, sweeps=40))[1].elbo
    assert len(elbo) >= 20
    for before, after in pairwise(elbo):
        assert after >= before - 1e-10 * abs(before)


def test_the_bound_is_below_the_evidence():
    # Two inducing points: the evidence by a grid over w, without the residual, which the bound can leave
    # out too.
    x, offsets, labels = scans(8, longest=4)
    settings = replace(PROBIT, n_inducing=2, sweeps=200)
    model, report = fit(Bags(x, offsets, labels), settings)
    phi, residual = model.project(model.standardise(x), model.prior_root())
    grid = torch.linspace(-7, 7, 281, dtype=torch.float64)
    w = torch.cartesian_prod(grid, grid)
    log_joint = log_evidence(w @ phi, labels, bag_index(offsets)) - w.square().sum(1) / 2
    exact = float(torch.logsumexp(log_joint, 0)) + math.log(0.05**2 / (2 * math.pi))
    bound = report.elbo[-1] + float(residual.sum()) / 2
    assert exact - 1 < bound < exact


def test_scans_of_one_slice_are_probit_regression():
    # Every label is known: the best w is that of the EM algorithm of probit regression,
    # w = A⁻¹ Φ (μ ± φ(μ)/Φ(±μ)).
    x, _, _ = scans(20)
    offsets, labels = torch.arange(len(x) + 1), (x[:, 0] > 6.0).long()
    settings = replace(PROBIT, sweeps=30)
    model, _ = fit(Bags(x, offsets, labels), settings)
    phi, _ = model.project(model.standardise(x), model.prior_root())
    w, sign = torch.zeros(12, dtype=torch.float64), (2 * labels - 1).tolist()
    for _ in range(30):
        mu = (w @ phi).tolist()
        m = [a + s * density(a) / below(s * a) for a, s in zip(mu, sign, strict=True)]
        w = torch.linalg.solve(torch.eye(12) + phi @ phi.mT, phi @ row(*m))
    close(model.q_mean, w, rtol=1e-9)


def test_replicates_are_alike_and_kept():
    x, offsets, labels = scans()
    ((first, second),) = fit_replicates(Bags(x, offsets, labels), [Job(PROBIT), Job(PROBIT)])
    assert torch.equal(first.model.q_mean, second.model.q_mean)
    turns = Turns(offsets)
    seen = ProbitObservation(3, labels[turns.bag_order], turns)
    mu = torch.randn(3, len(x), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen.update(mu, mu.square())
    before = seen.target().clone()
    seen.keep(torch.tensor([2, 0]))
    assert torch.equal(seen.target(), before[[2, 0]])


def test_means_follow_slices_and_ignore_other_scans():
    mu = row(-1.0, 0.5, 2.0, -0.3, 0.1)
    bags, labels = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1, 0])
    got = margin_mean(mu, labels, bags)
    order = torch.tensor([4, 2, 0, 3, 1])
    # sums in another order: an ulp of a value near 1
    torch.testing.assert_close(margin_mean(mu[order], labels, bags[order]), got[order], rtol=0, atol=1e-15)
    changed = margin_mean(torch.cat([mu[:3], row(3.0, 4.0)]), labels, bags)
    assert torch.equal(changed[:3], got[:3])
