"""LM-VGPMIL against the supplement's updates as loops, its objective, and the limit in which it is VGPMIL."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch

from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.observations.densities import Logistic
from ich_mil.gp.observations.large_margin import MarginObservation
from ich_mil.gp.observations.vgpmil import PsiObservation
from ich_mil.gp.settings import HeadSettings
from ich_mil.kernels.leave_one_out import Turns
from tests.gp.synthetic import close, kl_of_prior, scans

MARGIN = HeadSettings(family="large_margin", lengthscale_squared=3.0, n_inducing=12, sweeps=6)
LOG_H = math.log(100)


def with_margin(monkeypatch, **constants):
    """Fit with other constants of the observation model."""
    other = partial(MarginObservation, **constants)
    monkeypatch.setattr("ich_mil.gp.inference.replicates.MarginObservation", other)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def lam(c):
    return math.tanh(c / 2) / (4 * c)


def jaakkola(mean, square, xi):
    """The bound of E log sigmoid(a) from E a and E a²."""
    return math.log(sigmoid(xi)) + (mean - xi) / 2 - lam(xi) * (square - xi * xi)


def textbook(model, x, offsets, labels, *, C, V, log_h):
    """The supplement's section 2 as printed: unwhitened u, explicit inverses, loops, λ, π and τ as
    probabilities.

    Returns μ, σ² and the objective of the last sweep, the latter with both Jaakkola bounds written out.
    """
    eps, z, n_all = 1e-6, model.inducing, len(x)
    x = (x - x.mean(0)) / x.std(0, correction=0)

    def k(a, b):
        return model.covar_module(a, b).to_dense()

    Kzz = k(z, z) + eps * torch.eye(len(z), dtype=torch.float64)
    Kinv = torch.linalg.inv(Kzz)
    A = k(x, z) @ Kinv
    prior = k(x, x).diagonal() + eps - (A * k(x, z)).sum(1)
    S, m = Kzz, torch.zeros(len(z), dtype=torch.float64)
    spans = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), labels.tolist(), strict=True))
    pi = [0.5 if t else 1 / (1 + math.exp(log_h)) for start, end, t in spans for _ in range(start, end)]
    tau = [1.0] * n_all

    def moments():
        mu, var = (A @ m).tolist(), (((A @ S) * A).sum(1) + prior).tolist()
        square = [a * a + b for a, b in zip(mu, var, strict=True)]
        xi = [math.sqrt(C * C * (square[n] - 2 * (2 * pi[n] - 1) * mu[n] * V + V * V)) for n in range(n_all)]
        phi = [math.sqrt(square[n] * tau[n]) for n in range(n_all)]
        return mu, square, xi, phi

    for _ in range(model.settings.sweeps):
        mu, square, xi, phi = moments()
        Lam, r = [], []
        for n in range(n_all):
            y = 2 * pi[n] - 1
            Lam.append(2 * (lam(xi[n]) * C * C + lam(phi[n]) * tau[n]))
            r.append(C * y * (tau[n] - 0.5) + 2 * C * C * lam(xi[n]) * y * V + tau[n] * (pi[n] - 0.5))
        S = torch.linalg.inv(A.T @ torch.diag(torch.tensor(Lam, dtype=torch.float64)) @ A + Kinv)
        m = S @ A.T @ torch.tensor(r, dtype=torch.float64)
        mu, square, xi, phi = moments()
        for start, end, t in spans:
            for n in range(start, end):
                others = 1 - math.prod(1 - pi[j] for j in range(start, end) if j != n)
                a = 2 * tau[n] * C * mu[n] - C * mu[n] + 4 * lam(xi[n]) * C * C * mu[n] * V + mu[n] * tau[n]
                pi[n] = sigmoid(a + log_h * (2 * t - 2 * t * others - 1 + others))
        tau = [
            sigmoid(C * ((2 * pi[n] - 1) * mu[n] - V) + mu[n] * (pi[n] - 0.5) - lam(phi[n]) * square[n])
            for n in range(n_all)
        ]
    mu, square, xi, phi = moments()
    bound = 0.0
    for n in range(n_all):
        p, q, y = pi[n], tau[n], 2 * pi[n] - 1
        # (2g - 1) a, whose square is a²; and (2y - 1) g f, whose square is g f²
        bound += jaakkola((2 * q - 1) * C * (y * mu[n] - V), xi[n] ** 2, xi[n])
        bound += jaakkola(y * q * mu[n], q * square[n], phi[n])
        bound -= p * math.log(p) + (1 - p) * math.log(1 - p) + q * math.log(q) + (1 - q) * math.log(1 - q)
    for start, end, t in spans:
        none = math.prod(1 - pi[j] for j in range(start, end))
        bound += log_h * ((1 - none) if t else none) - math.log(1 + math.exp(log_h))
    return A @ m, ((A @ S) * A).sum(1) + prior, bound - kl_of_prior(m, S, Kzz)


def moments_of(n, seed=0, replicates=1):
    generator = torch.Generator().manual_seed(seed)
    mu = torch.randn(replicates, n, generator=generator, dtype=torch.float64)
    return mu, torch.rand(replicates, n, generator=generator, dtype=torch.float64) + 0.1


@pytest.mark.parametrize("log_h", [1.0, 20.5, 690.0])
def test_the_objective_of_one_negative_slice(log_h):
    # f = 0 is known, V = 0: log ψ(0) twice, H(τ) = log 2, and H(π) + (1 - π) log H = log(1 + H)
    seen = MarginObservation(1, torch.tensor([0]), Turns(torch.tensor([0, 1])), v=0.0, log_h=log_h)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    seen.update(zero, zero)
    assert float(seen.bound(zero, zero)) == pytest.approx(-math.log(2), abs=1e-15 * max(log_h, 1))


@pytest.mark.parametrize(("c", "v"), [(1.0, 0.5), (0.5, 2.0), (3.0, 0.1)])
def test_equals_the_textbook(c, v, monkeypatch):
    with_margin(monkeypatch, c=c, v=v, log_h=LOG_H)
    x, offsets, labels = scans()
    model, report = fit(Bags(x, offsets, labels), MARGIN)
    mu, var, bound = textbook(model, x, offsets, labels, C=c, V=v, log_h=LOG_H)
    q = model(x)
    close(q.mean, mu)
    close(q.variance, var)
    assert report.elbo[-1] == pytest.approx(bound, rel=1e-9)
    assert float(mu.max() - mu.min()) > 1  # it tells slices apart


@pytest.mark.parametrize("log_h", [math.log(100), 12 * math.log(10)])
@pytest.mark.parametrize(("c", "v"), [(1.0, 0.5), (0.3, 0.0), (4.0, 2.0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_objective_never_falls(c, v, log_h, seed, monkeypatch):
    with_margin(monkeypatch, c=c, v=v, log_h=log_h)
    x, offsets, labels = scans(30, seed)
    settings = replace(MARGIN, n_inducing=20, sweeps=12)
    elbo = fit(Bags(x, offsets, labels), settings)[1].elbo
    assert len(elbo) >= 8
    for before, after in pairwise(elbo):
        assert after >= before - 1e-9 * abs(before)


def test_each_update_is_the_optimum_of_the_objective():
    # F at its best ξ, φ has the same derivatives in π, τ as F at those ξ, φ: zero once updates have settled.
    x, offsets, labels = scans(6)
    turns = Turns(offsets)
    seen = MarginObservation(1, labels[turns.bag_order], turns, log_h=2.0)
    mu, variance = moments_of(len(x))
    for _ in range(300):
        seen.update(mu, variance)
    seen.logits.requires_grad_()
    seen.margins.requires_grad_()
    seen.bound(mu, variance).sum().backward()
    assert float(seen.logits.grad.abs().max()) < 1e-12
    assert float(seen.margins.grad.abs().max()) < 1e-12


def test_far_below_every_margin_it_is_vgpmil():
    # V → -∞: every slice lies beyond its margin, g = 1 and the margin says nothing. θ(ξ) ~ 1/(2C|V|) leaves
    # differences of the order of 1/|V|.
    x, offsets, labels = scans(10)
    turns = Turns(offsets)
    ranked = labels[turns.bag_order]
    margin = MarginObservation(1, ranked, turns, c=1.0, v=-1e9, log_h=4.0)
    log_h = torch.tensor([4.0], dtype=torch.float64)
    plain = PsiObservation([Logistic()], log_h, ranked, turns, MARGIN.variant)
    for seed in range(4):
        mu, variance = moments_of(len(x), seed)
        torch.testing.assert_close(
            margin.precision(mu, variance), plain.precision(mu, variance), rtol=1e-7, atol=0
        )
        close(margin.target(), plain.target(), rtol=1e-7)
        margin.update(mu, variance)
        plain.update(mu, variance)
        close(margin.logits, plain.logits, rtol=1e-7)
        assert float(margin.bound(mu, variance) - plain.bound(mu, variance)) == pytest.approx(0, abs=1e-6)


def test_replicates_are_kept_and_independent():
    x, offsets, labels = scans()
    turns = Turns(offsets)
    seen, kept = (MarginObservation(3, labels[turns.bag_order], turns) for _ in range(2))
    mu, variance = moments_of(len(x), replicates=3)
    for one in (seen, kept):
        one.precision(mu, variance)
        one.update(mu, variance)
    rows = torch.tensor([2, 0])
    kept.keep(rows)
    seen.update(mu.sin(), variance)
    kept.update(mu.sin()[rows], variance[rows])
    assert torch.equal(kept.logits, seen.logits[rows])
    assert torch.equal(kept.bound(mu[rows], variance[rows]), seen.bound(mu, variance)[rows])
