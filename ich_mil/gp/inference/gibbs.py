"""Gibbs sampler for MIL-GP-Probit, with an elliptical slice move.

In: Φ of the training slices (`Projection`) and scan labels. Out: the head with posterior draws of w, and a
report with R-hat and effective sample size. Chains run batched. A sweep (Wang & Pinar 2021, supplement
section 2) is

    m | w ~ N(Φᵀ w, I), truncated to the signs that the scan labels allow
    w | m ~ N(A⁻¹ Φ m, A⁻¹)          A = I + Φ Φᵀ, constant, factorised once

followed by one elliptical slice move of w with m integrated out. A margin has mean φᵀw and variance 1, as in
the paper; `probit` approximates the same posterior.

The sampler departs from the paper in two ways, neither of which changes the posterior:

* The margins of a scan are drawn jointly. A positive scan has a first positive margin J with P(J = k) ∝
  P(m_k ≥ 0) Π_{i<k} P(m_i < 0). Given J, the margins before J are negative, m_J ≥ 0, and the margins after J
  are free. With single-site updates the only positive margin of a scan could not turn negative before another
  margin has turned positive.
* The elliptical slice move improves mixing. The sign of a margin far from 0 carries little information (on
  RSNA slices 1/50 of that of its value), so w given m moves little in a sweep: without the move, 2,000 draws
  had an effective sample size of 9. The move follows an ellipse through w and a draw from a Gaussian
  approximation of the posterior (Murray et al. 2010, Nishihara et al. 2014). It has no tuning parameter and
  no rejection.

Shapes: R chains, L kept draws of each, B bags (scans), N instances (slices), M inducing points.
"""

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtri

from ich_mil.convergence import bulk_ess, r_hat
from ich_mil.gp.inference.ascent import COLLAPSED, LONGER
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.inference.report import FitReport, Stopped
from ich_mil.gp.inference.weights import Weights
from ich_mil.gp.observations.probit import log_evidence, log_hazard, margin_mean
from ich_mil.gp.sparse_gp import SparseGP, lower_root
from ich_mil.kernels.leave_one_out import Turns
from ich_mil.kernels.segments import bag_max

LogRatio = Callable[[Tensor, Tensor], Tensor]

CHAINS, BURN_IN, DRAWS = 4, 500, 500
"""Number of chains, and of discarded and of kept draws of each."""

R_HAT_LIMIT = 1.05
"""R-hat above this value counts as lack of convergence."""

WATCHED = 200
"""Number of randomly chosen slices whose μ is monitored for convergence."""

WIDER = 1.1
"""Factor on the standard deviations of the Gaussian of the elliptical move, so that it covers the tails."""

ASCENT, NEWTON, SHRINKS = 50, 10, 100
"""Fixed-point steps and then Newton steps to the posterior mode; maximum number of bracket shrinkages of an
elliptical slice move."""

_DEEP = -650.0
"""Below this y, exp(y) is near the smallest normal number of float64, and ndtri(exp(y)) loses precision."""


def log_ndtri(y: Tensor) -> Tensor:
    """Inverse of the normal log-CDF: z with log Φ(z) = y ≤ 0, elementwise, also far in the tail."""
    z = ndtri(y.exp())
    deep = y < _DEEP
    if bool(deep.any()):
        goal = y[deep]
        # log Φ is concave and the start lies left of the root, so Newton's method increases to the root.
        z_deep = -torch.sqrt(-2 * goal)
        for _ in range(4):
            z_deep = z_deep + (goal - log_ndtr(z_deep)) / log_hazard(-z_deep).exp()
        z[deep] = z_deep
    return z


def draw_sided(mu: Tensor, side: Tensor, generator: torch.Generator) -> Tensor:
    """Draw margins m ~ N(μ, 1) truncated to a given sign, by inversion of the normal CDF in log space.

    Args:
        mu: any shape.
        side: same shape; -1: m < 0, +1: m ≥ 0, 0: not truncated.
        generator: random generator.

    Returns:
        Margins, of the same shape.
    """
    u = torch.rand(mu.shape, generator=generator, dtype=mu.dtype, device=mu.device)
    # x = -side·m is N(-side·μ, 1) truncated to x < 0: Φ(z) = u Φ(side·μ), x = z - side·μ.
    cap = torch.where(side == 0, 0.0, log_ndtr(side * mu))
    z = log_ndtri(u.clamp_(min=2.0**-54).log_() + cap)
    return torch.where(side == 0, mu + z, -side * (z - side * mu).clamp(max=0.0))


def draw_margins(mu: Tensor, labels: Tensor, turns: Turns, generator: torch.Generator) -> Tensor:
    """Draw the margins (R, N) of all scans from their exact joint distribution given Φᵀ w and the labels."""
    bags, log_not = turns.bags, log_ndtr(-mu)
    before, running = torch.empty_like(mu), mu.new_zeros(len(mu), len(labels))  # Σ_{i<k} log P(m_i < 0)
    position = torch.empty_like(bags)
    start = 0
    for turn, k in enumerate(turns.counts):
        rows = slice(start, start + k)
        position[rows] = turn
        before[:, rows] = running[:, :k]
        running[:, :k] += log_not[:, rows]
        start += k
    # Gumbel-max trick: the argmax of log p_k + Gumbel noise is a draw ∝ p_k; -log(exponential) is Gumbel.
    noise = torch.empty_like(mu).exponential_(generator=generator)
    score = log_ndtr(mu) + before - noise.log()
    peak = bag_max(score, bags, len(labels))
    leads = torch.where(score == peak[:, bags], position.to(mu), 0.0)
    first = bag_max(leads, bags, len(labels))  # (R, B) position of J
    first = torch.where(labels == 1, first, len(turns.counts))[:, bags]  # negative: after the last slice
    side = torch.where(position < first, -1.0, torch.where(position == first, 1.0, 0.0))
    return draw_sided(mu, side.to(mu), generator)


def draw_weights(pull: Tensor, root: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw w ~ N(A⁻¹ p, A⁻¹) for p = Φ m (R, M) and W (M, M) with WᵀW = A⁻¹; also the means A⁻¹ p."""
    mean = pull @ root.mT @ root
    noise = torch.randn(pull.shape, generator=generator, dtype=pull.dtype, device=pull.device)
    return mean + noise @ root, mean


def _near_gaussian(projection: Projection, labels: Tensor, bags: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Laplace approximation of the posterior of w: a Gaussian at the mode, with the curvature there.

    The sampler is valid for any Gaussian, so the approximation need not be exact.

    Args:
        projection: Φ of the slices.
        labels: (B,).
        bags: (N,) the bag of each slice.
        S: A⁻¹ (M, M).

    Returns:
        Mean (1, M), and W (M, M) with WᵀW the covariance.
    """
    w = S.new_zeros(1, len(S))
    for _ in range(ASCENT):  # w ← A⁻¹ Φ E[m] never lowers the log-posterior, but converges slowly
        w = projection.pull(margin_mean(projection.push(w), labels, bags)) @ S
    best, root = -torch.inf, S
    for _ in range(NEWTON):
        mu = projection.push(w)
        level = float(log_evidence(mu, labels, bags) - w.square().sum() / 2)
        if level <= best:
            break
        # g = ∂ log Z/∂μ = E[m] - μ. The curvature -∂g/∂μ = g (g + μ) = g E[m] is negative where log Z is not
        # concave.
        mean = margin_mean(mu, labels, bags)
        d = ((mean - mu) * mean).clamp(min=0.0)
        fitted = Weights.solve(*projection.gram(d, mean - mu + d * mu))
        best, mode, root, w = level, w, fitted.root[0], fitted.mean
    return mode, root


def elliptical_move(
    v: Tensor, mu: Tensor, other: Tensor, other_mu: Tensor, generator: torch.Generator, log_ratio: LogRatio
) -> tuple[Tensor, Tensor]:
    """One elliptical slice move of each chain; the invariant density is ∝ exp(`log_ratio`) N(v; 0, I).

    Args:
        v: (R, M) current state.
        mu: (R, N) a linear function of v.
        other: (R, M) a draw from N(0, I).
        other_mu: (R, N) the same function of `other`.
        generator: random generator of angles and levels.
        log_ratio: function of v and mu to log(target / N(0, I)) (R,).

    Returns:
        The next v and mu.
    """

    def uniform() -> Tensor:
        return torch.rand(len(v), generator=generator, dtype=v.dtype, device=v.device)

    level = log_ratio(v, mu) + uniform().log()
    angle = 2 * math.pi * uniform()
    low, high = angle - 2 * math.pi, angle
    for _ in range(SHRINKS):
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        new, new_mu = v * cos + other * sin, mu * cos + other_mu * sin
        inside = log_ratio(new, new_mu) >= level
        if bool(inside.all()):
            break
        low = torch.where(~inside & (angle < 0), angle, low)
        high = torch.where(~inside & (angle >= 0), angle, high)
        angle = torch.where(inside, angle, low + (high - low) * uniform())
    return new, new_mu


def _report(
    kept: Tensor, largest: Sequence[float], projection: Projection, generator: torch.Generator
) -> FitReport:
    """Convergence report over randomly chosen slices; warns if the chains disagree or have collapsed.

    Args:
        kept: (R, L, M) kept draws of w.
        largest: largest |μ| of each sweep.
        projection: Φ of the slices.
        generator: random generator of the choice of slices.
    """
    chains, draws, _ = kept.shape
    sweeps, n = len(largest), projection.shape[0]
    chosen = torch.randperm(n, generator=generator, device=kept.device)[:WATCHED].sort().values
    seen = [
        phi[chosen[(chosen >= rows.start) & (chosen < rows.stop)] - rows.start]
        for rows, phi in projection.blocks(1)
    ]
    watched = kept @ torch.cat(seen).to(kept).mT  # (R, L, Q)
    worst, effective = float(r_hat(watched).max()), float(bulk_ess(watched).min())
    message = (
        f"{chains} chains of {draws} draws after {sweeps - draws}: R-hat at most {worst:.3f}, "
        f"effective sample size at least {effective:.0f}, over {len(chosen)} slices"
    )
    stopped: Stopped = "sweeps"
    if max(largest) <= COLLAPSED:
        stopped = "diverged"
        message = f"the chains have shrunk to 0: |μ| reached {max(largest):.3g} in {sweeps} sweeps"
        warnings.warn(f"{message}; {LONGER}", stacklevel=4)
    elif not worst <= R_HAT_LIMIT:
        warnings.warn(
            f"the chains of the Gibbs sampler disagree ({message}); use family probit, "
            "which approximates the same posterior",
            stacklevel=4,  # attribute it to the caller of `sample_posterior`, outside its decorator
        )
    return FitReport(
        (), tuple(largest), (), sweeps, stopped, message, r_hat=worst, effective_samples=effective
    )


@torch.no_grad()
def sample_posterior(
    model: SparseGP, projection: Projection, labels: Tensor, turns: Turns
) -> tuple[SparseGP, FitReport]:
    """Sample the posterior of w; chains start at draws from the prior.

    q(w) is set to the posterior mean and covariance, estimated from the conditionals N(A⁻¹ Φ m, A⁻¹) of the
    kept sweeps. These estimates are less noisy than the moments of the draws, and the covariance has full
    rank for any number of draws.

    Args:
        model: head, changed in place: it gets `draws` (R·L, M), chain after chain, and q(w). Its settings
            give the length of the chains and the seed.
        projection: Φ of the training slices, in the order of `turns`.
        labels: (B,) in {0, 1}, in the order of `turns.bag_order`.
        turns: order of the slices.

    Returns:
        The same head, and the report; its `elbo` is empty.

    Warns:
        UserWarning: R-hat of a monitored slice is above `R_HAT_LIMIT`, or the chains have collapsed to the
            prior mean.
    """
    n, m = projection.shape
    like = projection.residual
    generator = torch.Generator(like.device).manual_seed(model.settings.random_state)

    def normal() -> Tensor:
        return torch.randn(CHAINS, m, generator=generator, dtype=like.dtype, device=like.device)

    root = Weights.solve(*projection.gram(like.new_ones(1, n), like.new_zeros(1, n))).root[0]
    S = root.mT @ root  # A⁻¹
    mode, W = _near_gaussian(projection, labels, turns.bags, S)
    W = WIDER * W
    mode_mu = projection.push(mode)

    def log_ratio(v: Tensor, mu: Tensor) -> Tensor:
        prior = -(mode + v @ W).square().sum(1) / 2
        return log_evidence(mode_mu + mu, labels, turns.bags) + prior + v.square().sum(1) / 2

    mu = projection.push(normal())
    kept, centres = (like.new_empty(CHAINS, DRAWS, m) for _ in range(2))
    largest = []
    for sweep in range(BURN_IN + DRAWS):
        margins = draw_margins(mu, labels, turns, generator)
        w, centre = draw_weights(projection.pull(margins), root, generator)
        # w = mode + v W, so v ~ N(0, I) under the Gaussian approximation
        v = torch.linalg.solve_triangular(W, w - mode, upper=False, left=False)
        other = normal()
        v_mu, other_mu = projection.push(torch.cat([v, other]) @ W).split(CHAINS)
        v, v_mu = elliptical_move(v, v_mu, other, other_mu, generator, log_ratio)
        w, mu = mode + v @ W, mode_mu + v_mu
        largest.append(float(mu.abs().max()))
        if sweep >= BURN_IN:
            kept[:, sweep - BURN_IN], centres[:, sweep - BURN_IN] = w, centre

    model.draws = kept.flatten(0, 1)
    flat = centres.flatten(0, 1)
    model.set_q(flat.mean(0), lower_root(S + torch.cov(flat.mT)))
    return model, _report(kept, largest, projection, generator)
