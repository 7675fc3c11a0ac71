"""Ancillary augmentation: the baseline of the paper (its reference 8; Murray & Adams 2010, section 2).

f is whitened, f_c = L_c ν_c with L_c L_cᵀ = K_c(θ). A move draws ν given θ by elliptical slice sampling, then
θ given ν by Metropolis-Hastings with the likelihood p(y | f(θ', ν)). No marginal likelihood is needed, but θ
and ν are sampled in turn, which mixes slowly.

The point of a chain holds log p(y | f) as its level and ν in the place of the mode.

Shapes: R chains, C classes, n scans.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ich_mil.gp.gibbs import elliptical_move
from ich_mil.multikernel.laplace import covariance, log_likelihood
from ich_mil.multikernel.marginal import Point

if TYPE_CHECKING:
    from ich_mil.multikernel.chains import Chains

SLICES = 3
"""Elliptical slice moves of f between moves of θ."""


def _roots(chains: "Chains", x: Tensor) -> Tensor:
    """L (R, C, n, n); NaN where K is not positive definite."""
    L, failed = torch.linalg.cholesky_ex(covariance(chains.theta(x), chains.sources))
    return torch.where((failed != 0)[..., None, None], torch.nan, L)


def prior_draw(chains: "Chains", x: Tensor, nu: Tensor | None = None) -> Point:
    """The point of log θ (R, p) and ν (R, C, n); None draws ν from N(0, I)."""
    nu = chains.normal(chains.R, chains.C, chains.n) if nu is None else nu
    f = (_roots(chains, x) @ nu[..., None])[..., 0]
    level = log_likelihood(f, chains.marginal.labels)
    return Point(torch.where(level.isnan(), -torch.inf, level), nu, f)


def ancillary_move(chains: "Chains", x: Tensor) -> Point:
    """Draw ν given θ: `SLICES` elliptical slice moves from the current point."""
    L, labels = _roots(chains, x), chains.marginal.labels
    nu, f = chains.state["mode"].flatten(1), chains.state["latent"].flatten(1)

    def log_ratio(_: Tensor, flat: Tensor) -> Tensor:
        return log_likelihood(flat.reshape(labels.shape), labels)

    for _ in range(SLICES):
        other = chains.normal(*labels.shape)
        other_f = (L @ other[..., None])[..., 0].flatten(1)
        nu, f = elliptical_move(nu, f, other.flatten(1), other_f, chains.generator, log_ratio)
    nu, f = nu.reshape(labels.shape), f.reshape(labels.shape)
    return Point(log_likelihood(f, labels), nu, f)
