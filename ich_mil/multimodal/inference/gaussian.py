"""Normal approximation of the posterior with full covariance: start and preconditioner of the chains.

In: a `Target`. Out: N(mean, L Lᵀ) of its positions.

1. The mode with all scales at 1, by L-BFGS on at most `SCREEN` bags, the best of `STARTS` random starts; then
   from there with four times as many bags, and so on. Information is the outer products of the scores there.
2. "Batch and match" (Cai et al., ICML 2024): the normal distribution of which the score is nearest to that of
   the target, from batches of its own draws. A mode is no summary here: with learned scales it lies at the
   upper end of the posterior.

Shapes: X positions, C coefficients, N draws of a batch.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ich_mil.multimodal.inference.target import Target

START_DEVIATION, STARTS, SCREEN = 0.05, 2, 500
START_STEPS, GROWTH = 150, 4
"""Steps on the first bags; half of them with `GROWTH` times as many, a third with as many times more."""
COARSE = 1e-3
"""Tolerance of the gradients of approximations and trajectories."""
BATCH, FAR = 32, 1e3
"""Draws of a batch, and size of scores that are left out, in medians."""


class Normal(NamedTuple):
    """N(mean (X,), L Lᵀ), lower L (X, X)."""

    mean: Tensor
    root: Tensor

    def draw(self, number: int, generator: torch.Generator) -> Tensor:
        """Draws (number, X)."""
        like = self.mean
        noise = torch.randn(number, len(like), generator=generator, dtype=like.dtype, device=like.device)
        return like + noise @ self.root.mT


def fit_gaussian(target: Target, gradients: int, generator: torch.Generator) -> tuple[Target, Normal]:
    """The target with its scales centred as the data ask, and its approximation from so many gradients."""
    target, q = _around(target, _mode(target, generator))
    for number in range(gradients // BATCH):
        draws = q.draw(BATCH, generator)
        q = match(q, draws, target(draws, tolerance=COARSE)[1], BATCH / (number + 1))
    return target, q


def _mode(target: Target, generator: torch.Generator) -> Tensor:
    """Coefficients (C,) at the mode with scales of 1, about."""
    size, number = len(target.blocks), SCREEN
    few = Target(target.likelihood.some(number, generator), target.prior_name)
    starts = START_DEVIATION * torch.randn(STARTS, size, generator=generator, device=generator.device)
    fits = (_descended(few, z, START_STEPS) for z in starts.double().cpu().numpy())
    _, z = min(fits, key=lambda fit: fit[0])
    stage = 1
    while few.likelihood is not target.likelihood:
        number, stage = GROWTH * number, stage + 1
        few = Target(target.likelihood.some(number, generator), target.prior_name)
        _, z = _descended(few, z, START_STEPS // stage)
    zeros = target.likelihood.signs.new_zeros(target.scales)
    return target.theta(torch.cat([torch.from_numpy(z).to(zeros), zeros]))


def _descended(target: Target, z: np.ndarray, steps: int) -> tuple[float, np.ndarray]:
    """Negative log-density and position (C,) after L-BFGS from z (C,), all scales at 1."""
    zeros = target.likelihood.signs.new_zeros(target.scales)

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = target(torch.cat([torch.from_numpy(z).to(zeros), zeros])[None], tolerance=COARSE)
        return -float(value), -slope[0, : len(z)].cpu().numpy()

    result = minimize(loss, z, jac=True, method="L-BFGS-B", options={"maxiter": steps, "maxcor": 30})
    return float(result.fun), result.x


def _information(target: Target, x: Tensor) -> Tensor:
    """Information (X, X) of scores and prior at x, non-centred."""
    _, scores = target.likelihood.scores(target.theta(x))
    pulled = target.pull(x, scores)  # (B, X)
    curvature = torch.ones_like(x)
    # at least 1: a small scale has a long tail to 0, but none above
    curvature[len(target.blocks) :] = (2 * (2 * x[len(target.blocks) :]).exp()).clamp(min=1)
    return pulled.mT @ pulled + curvature.diag()


def _around(target: Target, theta: Tensor) -> tuple[Target, Normal]:
    """Centred target, and Laplace approximation with the scales at the size of the slopes `theta` (C,).

    w of a block is the share of the prior variance of its slopes that the data take away, scales given.
    """
    logs, size = target.sizes(theta), len(theta)
    x = target.position(theta, logs)
    information = _information(target, x)
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(information))
    given_scales = torch.linalg.inv(information[:size, :size]).diag()
    left = target.by_block(given_scales) / target.counts
    centred = Target(target.likelihood, target.prior_name, (1 - left).clamp(0, 1))
    # of u' = u τ^w: u' = u exp(w log τ)
    factors = target.factors(x) / centred.factors(x)
    x = centred.position(theta, logs)
    jacobian = torch.cat([factors, torch.ones_like(logs)]).diag()
    for column in range(len(logs)):
        in_block = target.blocks == column
        jacobian[:size][in_block, size + column] = centred.centring[column] * x[:size][in_block]
    return centred, Normal(x, torch.linalg.cholesky(jacobian @ covariance @ jacobian.mT))


def match(q: Normal, draws: Tensor, slopes: Tensor, rate: float) -> Normal:
    """One batch-and-match step with draws (N, X) and scores of the target there (N, X).

    The new covariance S solves V - S U S = S, U and V as in the paper; a larger rate forgets more of q. Draws
    far out, with scores that are no numbers or `FAR` times the median, take no part.
    """
    size = slopes.norm(dim=1)
    near = size.isfinite() & (size <= FAR * size.nanmedian())
    if not near.any():
        return q
    draws, slopes = draws[near], slopes[near]
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
