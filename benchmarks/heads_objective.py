"""Kernel learning against the method of the public code: 200 plain gradient steps on J with q(u) fixed."""

import copy
import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks.heads_data import copies, rsna
from benchmarks.heads_speed import Prepared
from benchmarks.record import table
from ich_mil.gp.inference.hyperparameters import learn_hyperparameters
from ich_mil.gp.inference.objective import KernelObjective, expected_log_psi
from ich_mil.gp.inference.weights import Weights
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.settings import HeadSettings

STEPS = (3.0, 10.0, 30.0, 100.0)
"""Step sizes on J / N in the raw parameters; the best result counts."""


def plain_steps(run: Prepared, weights: Weights, target: Tensor, density: Density, size: float) -> float:
    """J after 200 gradient steps of step size `size` on (v, √ℓ) through softplus, with q(u) fixed."""
    x = run.model.standardise(run.data.x[run.turns.order])
    z, jitter = run.model.inducing.detach(), run.settings.jitter
    L = run.model.prior_root()
    u_mean, half = L @ weights.mean[0], L @ weights.root[0].mT  # q(u) = N(u_mean, half halfᵀ)
    squares = [torch.cdist(a, z).square() for a in (z, x)]
    raw = torch.tensor([0.5, math.sqrt(8.0)], dtype=torch.float64).expm1().log().requires_grad_()
    for step in range(201):
        v, length = softplus(raw)
        Kzz, Kxz = (v * torch.exp(-square / (2 * length.square())) for square in squares)
        root = torch.linalg.cholesky(Kzz + jitter * torch.eye(len(z), dtype=torch.float64))
        phi = torch.linalg.solve_triangular(root, Kxz.mT, upper=False)  # (M, N)
        mean = torch.linalg.solve_triangular(root, u_mean[:, None], upper=False)[:, 0]
        spread = torch.linalg.solve_triangular(root, half, upper=False)
        mu = phi.mT @ mean
        variance = (spread.mT @ phi).square().sum(0) + (v + jitter - phi.square().sum(0)).clamp(min=0)
        log_det = 2 * (torch.linalg.slogdet(half).logabsdet - root.diagonal().log().sum())
        kl = 0.5 * (spread.square().sum() + mean.square().sum() - len(z) - log_det)
        J = target @ mu + expected_log_psi(mu, variance, density).sum() - kl
        if step == 200:
            break
        (slope,) = torch.autograd.grad(J / len(x), raw)
        raw = (raw + size * slope).detach().requires_grad_()
        if not bool(raw.isfinite().all() and (raw.abs() < 20).all()):  # diverged: the step size is too large
            return math.nan
    return float(J.detach())


def against_gradient_steps() -> str:
    """J at the start, after 200 plain steps and after one call of `learn_hyperparameters`.

    On RSNA-150, from v = 0.5, ℓ = D.
    """
    rows = []
    for density in ("logistic", "gamma"):
        for count in (3, 30):
            settings = HeadSettings(learn="kernel", density=density, sweeps=count, lengthscale_squared=8.0)
            run = Prepared(copies(rsna(), 1), settings)
            weights, observation = run.ascend()
            target, psi = observation.target()[0], settings.make_density()
            plain = [plain_steps(run, weights, target, psi, size) for size in STEPS]
            best = max(value for value in plain if math.isfinite(value))
            model = copy.deepcopy(run.model)
            objective = KernelObjective(model, run.data.x, run.turns.order, target, psi)
            start = objective.evaluate(objective.projection(), weights)[0]
            learned = learn_hyperparameters(model, run.data.x, run.turns.order, weights, target, psi)
            ours = objective.evaluate(objective.projection(), learned)[0]
            rows.append([density, count, f"{start:.1f}", f"{best:.1f}", f"{ours:.1f}"])
    head = ["density", "after sweeps", "J at the start", "200 plain steps, best of 4 sizes", "one call"]
    return table(head, rows)
