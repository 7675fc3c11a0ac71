"""Ancillary augmentation: the baseline of the paper (its reference 8; Murray & Adams 2010, section 2).

f is whitened, f_c = L_c ν_c with L_c L_cᵀ = K_c(θ). A move draws ν given θ by elliptical slice sampling, then
θ given ν by Metropolis-Hastings with the likelihood p(y | f(θ', ν)). No marginal likelihood is needed, but θ
and ν are sampled in turn, which mixes slowly.

The `Point` of a chain holds log p(y | f) as its level and ν in the place of the mode.

Shapes: R chains, C classes, d sources, n scans.
"""

import torch
from torch import Tensor

from ich_mil.gp.inference.gibbs import elliptical_move
from ich_mil.multikernel.laplace import covariance, log_likelihood
from ich_mil.multikernel.marginal import Point

SLICES = 3
"""Elliptical slice moves of f between moves of θ."""


class Ancillary:
    """The likelihood of θ given ν.

    Args:
        sources: S (d, n, n).
        labels: one-hot (R, C, n).
    """

    def __init__(self, sources: Tensor, labels: Tensor) -> None:
        self.sources, self.labels = sources, labels

    def _roots(self, theta: Tensor) -> Tensor:
        """L (R, C, n, n); NaN where K is not positive definite."""
        L, failed = torch.linalg.cholesky_ex(covariance(theta, self.sources))
        return torch.where((failed != 0)[..., None, None], torch.nan, L)

    def normal(self, generator: torch.Generator) -> Tensor:
        """A draw of ν (R, C, n) from its prior."""
        like = self.labels
        return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)

    def evaluate(self, theta: Tensor, nu: Tensor) -> Point:
        """The point of θ (R, C, d) and ν (R, C, n)."""
        f = (self._roots(theta) @ nu[..., None])[..., 0]
        level = log_likelihood(f, self.labels)
        return Point(torch.where(level.isnan(), -torch.inf, level), nu, f)

    def redraw(self, theta: Tensor, point: Point, generator: torch.Generator) -> Point:
        """Draw ν given θ, by `SLICES` elliptical slice moves from the point."""
        L, shape = self._roots(theta), self.labels.shape
        nu, f = point.mode.flatten(1), point.f.flatten(1)

        def log_ratio(_: Tensor, flat: Tensor) -> Tensor:
            return log_likelihood(flat.reshape(shape), self.labels)

        for _ in range(SLICES):
            other = self.normal(generator)
            other_f = (L @ other[..., None])[..., 0].flatten(1)
            nu, f = elliptical_move(nu, f, other.flatten(1), other_f, generator, log_ratio)
        return Point(log_ratio(nu, f), nu.reshape(shape), f.reshape(shape))
