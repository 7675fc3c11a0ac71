"""J and F against dense textbook ones, quadratures, gradients by differences, and what learning reaches."""

import copy
import math
from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch.distributions import MultivariateNormal, kl_divergence

import ich_mil.gp.inference.objective as objective_module
from ich_mil.errors import ConfigError
from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.inference.hyperparameters import learn_hyperparameters
from ich_mil.gp.inference.objective import KernelObjective, expected_log_psi
from ich_mil.gp.inference.weights import Weights
from ich_mil.gp.observations.densities import Gamma, GammaLogisticTail, Logistic
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from tests.gp.synthetic import scans

DENSITIES = [Logistic(), Gamma(1.0, 2.5), GammaLogisticTail(1.0, 1.0)]
KERNEL = HeadSettings(learn="kernel", n_inducing=6, variance=0.5, lengthscale_squared=2.0)


def log_psi(f, density):
    """Independent of the package: numpy, and the crossing of θ by integrating it."""
    if isinstance(density, Logistic):
        return -np.log(2 * np.cosh(np.asarray(f) / 2))
    if isinstance(density, Gamma):
        return -density.alpha * np.log(density.beta + np.square(f) / 2)

    def slope(t):
        return t * max(density.alpha / (density.beta + t * t / 2), math.tanh(t / 2) / (2 * t) if t else 0.25)

    return -quad(slope, 0, abs(float(f)), limit=200)[0]


def problem(settings=KERNEL, *, n=40, seed=0, kernel=None):
    """A head with a random q(w) and random π - ½: model, x, rows, weights, target."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    z = torch.randn(settings.n_inducing, 2, generator=generator, dtype=torch.float64)
    model = SparseGP(
        z, torch.tensor([0.1, -0.2]).double(), torch.tensor([1.2, 0.7]).double(), settings, kernel=kernel
    )
    rows = torch.randperm(n, generator=generator)
    target = torch.rand(n, generator=generator, dtype=torch.float64) - 0.5
    phi = torch.randn(settings.n_inducing, n, generator=generator, dtype=torch.float64)
    weights = Weights.solve((phi * 0.2 @ phi.mT)[None], (phi @ target)[None])
    return model, x, rows, weights, target


def rbf(a, b, v, length):
    return v * torch.exp(-(((a[:, None] - b[None]) / length) ** 2).sum(-1) / 2)


def dense(model, x, rows, *, v, length, z=None):
    """K_ZZ⁻¹, K_XZ and k(x,x) - diag(K_XZ K_ZZ⁻¹ K_ZX) in u-space, from explicit inverses."""
    z = model.inducing if z is None else z
    x = ((x - model.x_mean) / model.x_std)[rows]
    eps = model.variational_strategy.jitter_val
    Kzz = rbf(z, z, v, length) + eps * torch.eye(len(z), dtype=torch.float64)
    Kinv, Kxz = torch.linalg.inv(Kzz), rbf(x, z, v, length)
    prior = 1.0 if model.settings.variant.unit_prior else v + eps
    return Kzz, Kinv, Kxz, prior - ((Kxz @ Kinv) * Kxz).sum(1)


def dense_objective(model, x, rows, u_mean, u_cov, target, density, *, v, length):
    """Eq. 29 as printed, with q(u) = N(u_mean, u_cov), the sum by scipy's adaptive quadrature."""
    Kzz, Kinv, Kxz, residual = dense(model, x, rows, v=v, length=length)
    mu = Kxz @ Kinv @ u_mean
    var = ((Kxz @ Kinv @ u_cov) * (Kxz @ Kinv)).sum(1) + residual
    kl = kl_divergence(
        MultivariateNormal(u_mean, u_cov), MultivariateNormal(torch.zeros(len(Kzz)).double(), Kzz)
    )
    psi = sum(mean_by_quad(m, s, density) for m, s in zip(mu.tolist(), var.sqrt().tolist(), strict=True))
    return float(target @ mu - kl) + psi


def mean_by_quad(m, s, density):
    def weighted(f):
        return float(log_psi(f, density)) * math.exp(-(((f - m) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi))

    kinks = getattr(density, "crossings", ())
    breaks = [b for b in (0.0, m, *kinks, *(-k for k in kinks)) if abs(b - m) < 10 * s]
    error = 1e-8 if kinks else 1e-12
    return quad(weighted, m - 10 * s, m + 10 * s, points=breaks, limit=200, epsabs=error, epsrel=error)[0]


def j_value(model, x, rows, weights, target, density):
    objective = KernelObjective(model, x, rows, target, density)
    return objective.evaluate(objective.projection(), weights)[0]


# The logistic tail has a kink in log ψ'' that Gauss-Hermite sees.
@pytest.mark.parametrize(("density", "error"), list(zip(DENSITIES, [1e-7, 1e-5, 2e-3], strict=True)))
def test_the_nodes_suffice(density, error):
    mu = torch.tensor([0.0, -1.3, 2.7, -6.0], dtype=torch.float64)
    for variance in (0.01, 0.5, 4.0):
        got = expected_log_psi(mu, torch.full_like(mu, variance), density)
        constant = float(density.log_psi(torch.zeros(1).double())) - float(log_psi(0.0, density))
        want = [mean_by_quad(m, math.sqrt(variance), density) + constant for m in mu.tolist()]
        assert got.tolist() == pytest.approx(want, abs=error)


@pytest.mark.parametrize("density", DENSITIES[:2], ids=["logistic", "gamma"])
def test_the_objective_equals_the_textbook(density, monkeypatch):
    monkeypatch.setattr("ich_mil.gp.inference.projection.BLOCK_BYTES", {"cpu": 6})
    monkeypatch.setattr(objective_module, "QUADRATURE_ROWS", 300)
    model, x, rows, weights, target = problem(n=700)
    L = torch.linalg.cholesky(dense(model, x, rows, v=0.5, length=math.sqrt(2))[0])
    u_mean = L @ weights.mean[0]
    u_cov = L @ weights.root[0].mT @ weights.root[0] @ L.mT
    want = dense_objective(model, x, rows, u_mean, u_cov, target, density, v=0.5, length=math.sqrt(2))
    assert j_value(model, x, rows, weights, target, density) == pytest.approx(want, rel=1e-9)


def dense_bound(model, x, rows, theta, target, *, v, length, z=None):
    """½ bᵀ(K⁻¹ + P)⁻¹ b - ½ log det(I + K P) - ½ Σ θ residual, P = Σ θ a aᵀ, b = Σ r a: all in u-space."""
    Kzz, Kinv, Kxz, residual = dense(model, x, rows, v=v, length=length, z=z)
    P, b = (Kxz @ Kinv).mT * theta @ (Kxz @ Kinv), (Kxz @ Kinv).mT @ target
    log_det = torch.linalg.slogdet(torch.eye(len(Kzz)).double() + Kzz @ P).logabsdet
    return b @ torch.linalg.inv(Kinv + P) @ b / 2 - log_det / 2 - theta @ residual / 2


@pytest.mark.parametrize("preset", ["default", "public"])  # the prior variance of the latter is 1
def test_the_bound_and_its_gradient_equal_the_textbook(preset, monkeypatch):
    monkeypatch.setattr(objective_module, "TILE_ELEMENTS", 6)
    model, x, rows, _, target = problem(replace(KERNEL, ard=True, preset=preset), n=700)
    theta = torch.rand(700, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 4
    v, length = torch.tensor(0.8).double(), torch.tensor([1.3, 0.6]).double()
    z = model.inducing.clone()
    for value in (v, length, z):
        value.requires_grad_()
    bound = dense_bound(model, x, rows, theta, target, v=v, length=length, z=z)
    bound.backward()
    model.covar_module.outputscale, model.covar_module.base_kernel.lengthscale = v.detach(), length.detach()
    raws = [
        model.covar_module.raw_outputscale,
        model.covar_module.base_kernel.raw_lengthscale,
        model.inducing,
    ]
    for raw in raws:
        raw.requires_grad_()
    got = KernelObjective(model, x, rows, target, Logistic()).collapsed(theta)
    assert got == pytest.approx(float(bound.detach()), rel=1e-9)
    # d softplus(raw) / d raw = 1 - exp(-value)
    assert float(raws[0].grad) == pytest.approx(float(v.grad * -torch.expm1(-v.detach())), rel=1e-8)
    assert raws[1].grad.flatten().tolist() == pytest.approx(
        (length.grad * -torch.expm1(-length.detach())).tolist(), rel=1e-8
    )
    assert raws[2].grad.flatten().tolist() == pytest.approx(z.grad.flatten().tolist(), rel=1e-6)


@pytest.mark.parametrize(
    ("kernel", "count"),
    [
        (gpytorch.kernels.ScaleKernel(gpytorch.kernels.RQKernel()), 3),
        (gpytorch.kernels.MaternKernel(nu=1.5), 1),
        (gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()) + gpytorch.kernels.ConstantKernel(), 3),
    ],
    ids=["scaled RQ", "Matern without a scale", "a sum"],
)
def test_the_gradient_for_any_kernel_by_differences(kernel, count):
    model, x, rows, _, target = problem(kernel=kernel)
    theta = torch.full((40,), 0.2, dtype=torch.float64)
    objective = KernelObjective(model, x, rows, target, Gamma(1.0, 2.5))
    parameters = list(model.covar_module.parameters())
    assert len(parameters) == count
    for parameter in parameters:
        parameter.requires_grad_()
    objective.collapsed(theta)
    gradients = [float(parameter.grad) for parameter in parameters]
    step = 1e-5
    for parameter, gradient in zip(parameters, gradients, strict=True):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * step
                values.append(objective.collapsed(theta))
                parameter -= sign * step
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(gradient, rel=1e-6)


def test_theta_of_the_public_preset_is_clipped():
    model, x, rows, weights, target = problem(replace(KERNEL, preset="public", variance=20.0))
    objective = KernelObjective(model, x, rows, target, Gamma(1.0, 2.5))
    far = weights._replace(mean=10 * weights.mean)
    _, theta = objective.evaluate(objective.projection(), far)
    assert float(theta.min()) == pytest.approx(1 / (2.5 + 3**2 / 2), rel=1e-12)


@pytest.mark.parametrize("density", DENSITIES, ids=["logistic", "gamma", "tail"])
@pytest.mark.parametrize("learn", ["kernel", "kernel_and_inducing"])
def test_it_never_ends_below_its_start(density, learn):
    for seed in range(4):
        model, x, rows, weights, target = problem(replace(KERNEL, learn=learn), seed=seed)
        start = j_value(model, x, rows, weights, target, density)
        inducing = model.inducing.clone()
        learned = learn_hyperparameters(model, x, rows, weights, target, density)
        assert j_value(model, x, rows, learned, target, density) >= start
        assert torch.equal(model.inducing, inducing) == (learn == "kernel")
        assert not any(parameter.requires_grad for parameter in model.parameters())


def test_nothing_changes_where_the_objective_would_fall(monkeypatch):
    model, x, rows, weights, target = problem()
    before = copy.deepcopy(model.state_dict())
    evaluate = KernelObjective.evaluate
    answers = iter([1e6, -1e6])
    monkeypatch.setattr(KernelObjective, "evaluate", lambda *given: (next(answers), evaluate(*given)[1]))
    assert learn_hyperparameters(model, x, rows, weights, target, Logistic()) is weights
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def climb(model, x, target, *, rounds):
    """`learn_hyperparameters` over and over from the prior."""
    rows = torch.arange(len(x))
    weights = Weights.prior(1, len(model.inducing), like=model.inducing)
    for _ in range(rounds):
        weights = learn_hyperparameters(model, x, rows, weights, target, Logistic())
    return weights


def plane(n, length, *, features=2, seed=0):
    """Points (n, features) and labels of a latent function of the first of them, with that length scale."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator, dtype=torch.float64)
    K = rbf(x[:, :1], x[:, :1], 16.0, length) + 1e-6 * torch.eye(n).double()
    f = torch.linalg.cholesky(K) @ torch.randn(n, generator=generator, dtype=torch.float64)
    return x, (torch.rand(n, generator=generator, dtype=torch.float64) < torch.sigmoid(f)).double()


def head(z, settings):
    return SparseGP(z, torch.zeros(z.shape[1]).double(), torch.ones(z.shape[1]).double(), settings)


def test_ard_switches_irrelevant_features_off():
    x, y = plane(300, 0.7, features=3)
    model = head(x[:40], replace(KERNEL, ard=True))
    climb(model, x, y - 0.5, rounds=8)
    relevant, *others = model.covar_module.base_kernel.lengthscale.flatten().tolist()
    assert relevant < 1.5
    assert others == pytest.approx([100.0, 100.0], rel=1e-9)


@pytest.mark.parametrize(("start", "end"), [(0.5, 1e-2), (1e-4, 1e-4)])
def test_without_evidence_the_variance_falls(start, end):
    model, x, rows, weights, _ = problem(replace(KERNEL, variance=start))
    for _ in range(5):
        weights = learn_hyperparameters(model, x, rows, weights, torch.zeros(40).double(), Logistic())
    assert float(model.covar_module.outputscale) == pytest.approx(end, rel=1e-9)


def test_what_requires_no_gradient_is_not_learned():
    x, offsets, labels = scans(40)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    kernel.raw_outputscale.requires_grad_(False)
    settings = replace(KERNEL, n_inducing=16, sweeps=5)
    model, _ = fit(Bags(x, offsets, labels), settings, kernel=kernel)
    assert torch.equal(model.covar_module.raw_outputscale, kernel.raw_outputscale.double())
    length = model.covar_module.base_kernel.lengthscale.item()
    assert length != pytest.approx(kernel.base_kernel.lengthscale.item(), rel=0.1)
    kernel.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"ScaleKernel has no parameters to learn \(one that requires no"):
        fit(Bags(x, offsets, labels), settings, kernel=kernel)


def test_a_kernel_with_prior_is_not_learned():
    prior = gpytorch.priors.GammaPrior(3.0, 6.0)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(lengthscale_prior=prior))
    with pytest.raises(
        ConfigError, match=r"the kernel has a prior \(base_kernel.lengthscale_prior\), which J"
    ):
        learn_hyperparameters(*problem(kernel=kernel), Logistic())
    model, _ = fit(Bags(*scans()), HeadSettings(n_inducing=6, sweeps=2), kernel=kernel)
    assert torch.equal(model.covar_module.base_kernel.lengthscale, kernel.base_kernel.lengthscale.double())


def test_fit_learns_and_its_bound_ends_higher():
    x, offsets, labels = scans(40)
    settings = HeadSettings(n_inducing=8, sweeps=30)
    fixed = fit(Bags(x, offsets, labels), settings)[1].elbo[-1]
    model, report = fit(Bags(x, offsets, labels), replace(settings, learn="kernel"))
    assert report.elbo[-1] > fixed + 0.5
    # each ascent goes on from the q(w) and π of the one before, each kernel is learned from those it ended at
    assert np.diff(report.elbo).min() > -1e-9
    assert float(model.covar_module.outputscale) != 0.5
    once = replace(settings, sweeps=1, learn="kernel")
    assert len(fit(Bags(x, offsets, labels), once)[1].elbo) == 5 + 1  # a sweep before each, and one after


def test_no_kernel_is_learned_from_a_runaway_fit(preset):
    preset(logistic_tail=False)
    settings = HeadSettings(density="gamma", alpha=0.5, beta=4.0, n_inducing=8)
    data = scans(40, longest=20)
    with pytest.warns(UserWarning, match="has run away"):
        _, plain = fit(Bags(*data), settings)
    with pytest.warns(UserWarning, match="has run away"):
        model, report = fit(Bags(*data), replace(settings, learn="kernel"))
    assert float(model.covar_module.outputscale) == pytest.approx(0.5)
    # it goes on from the state that was kept, without the π of the runaway sweep
    ran = len(plain.elbo)
    assert report.max_abs_mean[:ran] == plain.max_abs_mean
    assert report.max_abs_mean[ran] < 2 * plain.max_abs_mean[plain.best_sweep - 1]


def test_validation_scans_stop_only_the_last_ascent(monkeypatch):
    monkeypatch.setattr("ich_mil.gp.inference.replicates.ROUNDS", 2)
    monkeypatch.setattr("ich_mil.gp.inference.replicates.PATIENCE", 1)
    settings = HeadSettings(n_inducing=8, sweeps=6, learn="kernel")
    plain, before = fit(Bags(*scans()), settings)
    watched, report = fit(Bags(*scans()), settings, validation=Bags(*scans(seed=1)))
    for one, other in zip(watched.covar_module.parameters(), plain.covar_module.parameters(), strict=True):
        assert torch.equal(one, other)
    losses = report.validation_log_loss
    assert len(report.elbo) == len(report.max_abs_mean) == 2 * 6 + len(losses) < len(before.elbo)
    assert report.elbo == before.elbo[: len(report.elbo)]
    assert report.best_sweep == 2 * 6 + 1 + int(np.argmin(losses))


def test_the_kernel_is_learned_with_the_density():
    settings = HeadSettings(n_inducing=8, sweeps=4, learn="kernel")
    named, report = fit(Bags(*scans()), replace(settings, density="gamma"))
    given, other = fit(Bags(*scans()), settings, density=GammaLogisticTail(1.0, 2.5))
    assert other.elbo == report.elbo
    assert torch.equal(given.covar_module.outputscale, named.covar_module.outputscale)
    assert given.given == ("density",)
