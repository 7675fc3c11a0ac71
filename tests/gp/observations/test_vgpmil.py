"""The fit against a dense textbook implementation, its bound, its stops, GPyTorch on the result."""

import math
from itertools import pairwise

import pytest
import torch

from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.observations.densities import Gamma, GammaLogisticTail, Logistic
from ich_mil.gp.observations.vgpmil import PsiObservation
from ich_mil.gp.settings import VARIANTS, HeadSettings
from ich_mil.kernels.leave_one_out import Turns
from tests.gp.synthetic import close, kl_of_prior, scans

DENSITIES = {
    "logistic": {"density": "logistic"},
    "gamma": {"density": "gamma", "alpha": 1.0, "beta": 2.5},
    "tail": {"density": "gamma", "alpha": 0.5, "beta": 1.0},
}
"""`gamma` is without the logistic tail, by the fixture `preset`."""


def theta_and_log_psi(c, settings):
    logistic, log_psi = math.tanh(c / 2) / (2 * c), -math.log(2 * math.cosh(c / 2))
    if settings.density == "logistic":
        return logistic, log_psi
    gamma = settings.alpha / (settings.beta + c * c / 2)
    return max(gamma, logistic) if settings.variant.logistic_tail else gamma, -settings.alpha * math.log(
        settings.beta + c * c / 2
    )


def textbook_bound(mu, var, pi, spans, settings):
    """The evidence bound without the divergence, slice by slice and scan by scan."""
    log_h, bound = settings.variant.log_h, 0.0
    for n, p in enumerate(pi):
        c = math.sqrt(float(mu[n]) ** 2 + float(var[n]))
        bound += theta_and_log_psi(c, settings)[1] + (p - 0.5) * float(mu[n])
        bound -= p * math.log(p) + (1 - p) * math.log(1 - p)
    for start, end, t in spans:
        none = math.prod(1 - pi[j] for j in range(start, end))
        bound += log_h * ((1 - none) if t else none) - math.log(1 + math.exp(log_h))
    return bound


def textbook(x, offsets, labels, z, settings):
    """Eq. 23-28 as printed: unwhitened u, explicit inverses, loops over bags and instances, π as
    probabilities.

    Returns μ, σ² and the evidence bound of the last sweep.
    """
    ell = settings.lengthscale_squared or settings.variant.length_per_feature * x.shape[1]
    v, eps, log_h = settings.variant.variance, 1e-6, settings.variant.log_h

    def k(a, b):
        return v * torch.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * ell))

    Kzz = k(z, z) + eps * torch.eye(len(z), dtype=torch.float64)
    Kinv = torch.linalg.inv(Kzz)
    A = k(x, z) @ Kinv
    prior = v + eps - (A * k(x, z)).sum(1)
    S, m = Kzz, torch.zeros(len(z), dtype=torch.float64)
    spans = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), labels.tolist(), strict=True))
    pi = [0.5 if t else 1 / (1 + math.exp(log_h)) for start, end, t in spans for _ in range(start, end)]
    for _ in range(settings.sweeps):
        mu, var = A @ m, ((A @ S) * A).sum(1) + prior
        Theta = torch.diag(
            torch.tensor(
                [theta_and_log_psi(math.sqrt(q), settings)[0] for q in mu**2 + var], dtype=torch.float64
            )
        )
        S = torch.linalg.inv(A.T @ Theta @ A + Kinv)
        m = S @ A.T @ (torch.tensor(pi, dtype=torch.float64) - 0.5)
        mu, var = A @ m, ((A @ S) * A).sum(1) + prior
        seen = pi if settings.variant.update == "gauss_seidel" else list(pi)
        new = pi if settings.variant.update == "gauss_seidel" else list(pi)
        for start, end, t in spans:
            for n in range(start, end):
                others = math.prod(1 - seen[j] for j in range(start, end) if j != n)
                new[n] = 1 / (1 + math.exp(-(float(mu[n]) + log_h * (2 * t - 1) * others)))
        pi = new
    return mu, var, textbook_bound(mu, var, pi, spans, settings) - kl_of_prior(m, S, Kzz)


@pytest.mark.parametrize("update", ["gauss_seidel", "jacobi"])
@pytest.mark.parametrize("density", DENSITIES)
def test_equals_the_textbook(density, update, preset):
    preset(update=update, log_h=math.log(100), logistic_tail=density == "tail")
    x, offsets, labels = scans()
    settings = HeadSettings(**DENSITIES[density], n_inducing=12, sweeps=6, lengthscale_squared=3.0)
    model, report = fit(Bags(x, offsets, labels), settings)
    assert report.stopped == "sweeps"
    standard = (x - x.mean(0)) / x.std(0, correction=0)
    mu, var, bound = textbook(standard, offsets, labels, model.inducing, settings)
    q = model(x)
    close(q.mean, mu)
    close(q.variance, var)
    if density != "tail":  # the oracle has no log ψ for the tail
        assert report.elbo[-1] == pytest.approx(bound, rel=1e-9)
    assert report.max_abs_mean[-1] == pytest.approx(float(mu.abs().max()), rel=1e-8)
    assert float(mu.max()) > 0.1
    assert float(mu.min()) < -0.5
    # the whole covariance, not only its diagonal: ΦᵀSΦ + K - ΦᵀΦ + ε
    phi, _ = model.project(model.standardise(x), model.prior_root())
    K = model.covar_module(standard).to_dense() + 1e-6 * torch.eye(len(x))
    root = model.q_root.mT @ phi
    close(q.covariance_matrix, root.mT @ root + K - phi.mT @ phi, rtol=1e-10)


def test_the_prior_kl_of_gpytorch_is_ours():
    # q(w) is stored so that GPyTorch does not overwrite it on the first call
    x, offsets, labels = scans()
    model, _ = fit(Bags(x, offsets, labels), HeadSettings(n_inducing=8, sweeps=3))
    m, S = model.q_mean.clone(), model.q_root @ model.q_root.mT
    model(x)
    assert torch.equal(model.q_mean, m)
    kl = 0.5 * (S.trace() + m @ m - len(m) - torch.logdet(S))
    assert float(model.variational_strategy.kl_divergence()) == pytest.approx(float(kl), rel=1e-10)


@pytest.mark.parametrize("log_h", [math.log(100), 12 * math.log(10)])
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_gauss_seidel_never_lets_the_bound_fall(density, log_h, seed, preset):
    preset(log_h=log_h, logistic_tail=density == "tail")
    x, offsets, labels = scans(30, seed)
    settings = HeadSettings(**DENSITIES[density], n_inducing=20, sweeps=12)
    elbo = fit(Bags(x, offsets, labels), settings)[1].elbo
    assert len(elbo) >= 8
    for before, after in pairwise(elbo):
        assert after >= before - 1e-9 * abs(before)


@pytest.mark.parametrize("log_h", [1.0, 20.5, 690.0])
def test_the_bound_of_one_slice_is_the_evidence(log_h):
    # f = 0 is known, π = 1 / (1 + H) the posterior: H(π) + (1 - π) log H = log(1 + H), and log ψ(0) is left
    turns, labels = Turns(torch.tensor([0, 1])), torch.tensor([0])
    H, zero = torch.tensor([log_h], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    seen = PsiObservation([Logistic()], H, labels, turns, VARIANTS["default"])
    assert float(seen.bound(zero, zero)) == pytest.approx(-math.log(2), abs=1e-15 * max(log_h, 1))


def test_each_replicate_is_bounded_as_its_density_is():
    turns, labels = Turns(torch.tensor([0, 2, 3])), torch.tensor([1, 0])
    densities = [Logistic(), Gamma(1.0, 2.5), GammaLogisticTail(1.0, 2.5)]
    three = PsiObservation(densities, torch.ones(3).double(), labels, turns, VARIANTS["default"])
    assert three.bounded == [True, False, True]


def test_validation_stops_early_and_keeps_the_best_sweep(monkeypatch):
    monkeypatch.setattr("ich_mil.gp.inference.replicates.PATIENCE", 3)
    x, offsets, labels = scans(24, 0)
    validation = Bags(*scans(12, 7))
    settings = HeadSettings(n_inducing=20, sweeps=40)
    model, report = fit(Bags(x, offsets, labels), settings, validation=validation)
    assert report.stopped == "validation"
    losses = report.validation_log_loss
    assert len(losses) == report.best_sweep + 3
    assert losses[report.best_sweep - 1] == min(losses)
    # the returned state is that of the best sweep: a fit of just so many sweeps gives it too
    again, _ = fit(Bags(x, offsets, labels), HeadSettings(n_inducing=20, sweeps=report.best_sweep))
    assert torch.equal(model.q_mean, again.q_mean)
    assert torch.equal(model.q_root, again.q_root)


@pytest.mark.parametrize("with_validation", [False, True])
def test_a_runaway_fit_returns_a_good_state(with_validation, preset, monkeypatch):
    preset(logistic_tail=False)
    monkeypatch.setattr("ich_mil.gp.inference.replicates.PATIENCE", 50)
    x, offsets, labels = scans(80, 0, longest=40)
    settings = HeadSettings(density="gamma", alpha=0.5, beta=4.0, n_inducing=30)
    validation = Bags(*scans(20, 1)) if with_validation else None
    with pytest.warns(UserWarning, match=r"has run away: \|μ\| reached .* in sweep"):
        model, report = fit(Bags(x, offsets, labels), settings, validation=validation)
    assert report.stopped == "diverged"
    assert "run away" in report.message
    assert 1 <= report.best_sweep < len(report.elbo)
    q = model(x)
    assert bool(torch.isfinite(q.mean).all())
    assert bool((q.variance > 0).all())
    assert float(q.mean.abs().max()) == pytest.approx(report.max_abs_mean[report.best_sweep - 1], rel=1e-10)


@pytest.mark.parametrize("family", ["psi", "large_margin", "probit"])
def test_a_kernel_too_short_collapses_the_fit(family):
    x, offsets, labels = scans(80, 0, longest=40)
    settings = HeadSettings(family=family, lengthscale_squared=1e-7, n_inducing=2)
    with pytest.warns(UserWarning, match="has shrunk to 0"):
        model, report = fit(Bags(x, offsets, labels), settings, validation=Bags(*scans(10, 1)))
    assert report.stopped == "diverged"
    assert bool(model.q_mean.isfinite().all())
