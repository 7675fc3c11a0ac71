"""Normal approximation of the posterior with full covariance: start and preconditioner of the chains.

In: a `Target`. Out: N(mean, L Lᵀ) of its positions.

1. The mode with all scales at 1, by L-BFGS on at most `SCREEN` bags, the best of `STARTS` random starts;
   then scoring steps with all bags, the outer products of the scores as information.
2. "Batch and match" (Cai et al., ICML 2024): the normal distribution of which the score is nearest to that of
   the target, from batches of its own draws. A mode is no summary here: with learned scales it lies at the
   upper end of the posterior.

Shapes: X positions, C coefficients, N draws of a batch.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ich_mil.multimodal.inference.target import Target

START_DEVIATION, STARTS, SCREEN = 0.05, 2, 500
START_SHARE = 0.1
"""Steps of a start for each gradient of the fit; most of them see some of the bags alone."""
SCORING_STEPS = 6
BATCH, MATCH_SHARE = 32, 0.4
"""Draws of a batch, and share of the gradients of the fit that the batches take."""


class Normal(NamedTuple):
    """N(mean (X,), L Lᵀ), lower L (X, X)."""

    mean: Tensor
    root: Tensor

    def draw(self, number: int, generator: torch.Generator) -> Tensor:
        """Draws (number, X)."""
        like = self.mean
        noise = torch.randn(number, len(like), generator=generator, dtype=like.dtype, device=like.device)
        return like + noise @ self.root.mT


def fit_gaussian(target: Target, gradients: int, generator: torch.Generator) -> Normal:
    """Fit with `MATCH_SHARE` of so many gradients, and a start of `STARTS * START_SHARE` of them."""
    q = _around(target, _mode(target, math.ceil(START_SHARE * gradients), generator))
    for number in range(int(MATCH_SHARE * gradients / BATCH)):
        q = _match(target, q, BATCH / (number + 1), generator)
    return q


def _mode(target: Target, steps: int, generator: torch.Generator) -> Tensor:
    """Position (X,) of the mode with scales of 1; the scales returned are the size of the slopes there."""
    few = Target(target.likelihood.some(SCREEN, generator), target.prior_name)
    size, like = len(target.blocks), target.likelihood.signs
    zeros = like.new_zeros(target.scales)

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = few(torch.cat([torch.from_numpy(z).to(like), zeros]))
        return -value, -slope[:size].cpu().numpy()

    best = None
    for _ in range(STARTS):
        start = torch.randn(size, generator=generator, dtype=like.dtype, device=like.device)
        options = {"maxiter": steps, "maxcor": 30}
        result = minimize(
            loss, START_DEVIATION * start.cpu().numpy(), jac=True, method="L-BFGS-B", options=options
        )
        if best is None or result.fun < best.fun:
            best = result
    assert best is not None
    x = torch.cat([torch.from_numpy(best.x).to(like), zeros])
    if few.likelihood is not target.likelihood:
        x = _scored(target, x)
    return target.rescaled(x)


def _information(target: Target, x: Tensor) -> tuple[float, Tensor, Tensor]:
    """Log-density at x, its gradient (X,) and the information (X, X) of scores and prior."""
    values, scores = target.likelihood(target.theta(x))
    value, slope = target.prior(x)
    pulled = target.pull(x, scores)  # (B, X)
    curvature = torch.ones_like(x)
    curvature[len(target.blocks) :] = 2 * (2 * x[len(target.blocks) :]).exp()
    return float(values.sum()) + value, pulled.sum(0) + slope, pulled.mT @ pulled + curvature.diag()


def _scored(target: Target, x: Tensor) -> Tensor:
    """Scoring steps from x, with the scales as they are."""
    free = torch.ones_like(x)
    free[len(target.blocks) :] = 0
    value, slope, information = _information(target, x)
    for _ in range(SCORING_STEPS):
        step = torch.linalg.solve(information, slope) * free
        while True:
            new = _information(target, x + step)
            if new[0] >= value or float(step.abs().max()) < 1e-3:
                break
            step = step / 2
        if new[0] < value:
            break
        x, (value, slope, information) = x + step, new
    return x


def _around(target: Target, x: Tensor) -> Normal:
    """Laplace approximation at x."""
    _, _, information = _information(target, x)
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(information))
    return Normal(x, torch.linalg.cholesky(covariance))


def _match(target: Target, q: Normal, rate: float, generator: torch.Generator) -> Normal:
    """One batch-and-match step: V - S U S = S for the covariance S, U and V as in the paper."""
    draws = q.draw(BATCH, generator)
    slopes = torch.stack([target(x)[1] for x in draws])  # (N, X)
    mean, slope = draws.mean(0), slopes.mean(0)
    share, apart = rate / (1 + rate), q.mean - mean
    u = rate * torch.cov(slopes.mT, correction=0) + share * slope.outer(slope)
    v = q.root @ q.root.mT + rate * torch.cov(draws.mT, correction=0) + share * apart.outer(apart)
    # with V = Q Qᵀ and Qᵀ U Q = E diag(w) Eᵀ the solution is S = Q E diag(2 / (1 + √(1 + 4 w))) Eᵀ Qᵀ
    half = torch.linalg.cholesky(v)
    values, vectors = torch.linalg.eigh(half.mT @ u @ half)
    half = half @ vectors * (2 / (1 + (1 + 4 * values.clamp(min=0)).sqrt())).sqrt()
    covariance = half @ half.mT
    return Normal(
        q.mean / (1 + rate) + share * (covariance @ slope + mean), torch.linalg.cholesky(covariance)
    )
