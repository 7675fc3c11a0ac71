"""Gaussian coefficients of both tiers: their prior, conjugate posterior and divergence.

In: sums of outer products and of products with a latent variable. Out: N(mean, covariance) with the full
covariance, which gives E[θθᵀ] exactly.

Shapes: R replicates, P coefficients.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prior:
    """Zero-mean normal prior of the coefficients (thesis, section 2.2.1).

    Attributes:
        intercept_variance: of the intercepts, on standardised features.
        slope_variance: of all other coefficients.
    """

    intercept_variance: float = 16.0
    slope_variance: float = 4.0

    def precision(self, intercepts: Tensor) -> Tensor:
        """Diagonal (P,) of the prior precision; `intercepts` (P,) is True at intercepts."""
        values = torch.where(intercepts, 1 / self.intercept_variance, 1 / self.slope_variance)
        return values.to(torch.float64)


class Coefficients(NamedTuple):
    """q(θ) = N(mean, covariance) of R replicates.

    Attributes:
        mean: (R, P).
        covariance: (R, P, P) or, where all replicates share it, (1, P, P).
        log_det: (R,) or (1,) logarithm of the determinant of the covariance.
    """

    mean: Tensor
    covariance: Tensor
    log_det: Tensor

    @classmethod
    def posterior(cls, precision: Tensor, gram: Tensor, pull: Tensor) -> "Coefficients":
        """The optimum: V = (diag(λ) + G)⁻¹, m = V p.

        Args:
            precision: (P,) λ of the prior.
            gram: (R, P, P) or (1, P, P) G, sum of outer products of the regressors.
            pull: (R, P) p, sum of regressors times latent variable.
        """
        root = torch.linalg.cholesky(gram + precision.diag())
        covariance = torch.cholesky_inverse(root)
        log_det = -2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return cls((covariance @ pull[..., None])[..., 0], covariance, log_det)

    def second_moment(self) -> Tensor:
        """E[θθᵀ] (R, P, P)."""
        return self.covariance + self.mean[..., :, None] * self.mean[..., None, :]

    def divergence(self, precision: Tensor) -> Tensor:
        """KL(q(θ) ‖ p(θ)) (R,) from the prior of precision λ (P,)."""
        variance = self.covariance.diagonal(dim1=-2, dim2=-1)  # (R, P)
        quadratic = ((variance + self.mean.square()) * precision).sum(-1)
        return (quadratic - len(precision) - self.log_det - precision.log().sum()) / 2

    def take(self, chosen: Tensor) -> "Coefficients":
        """These replicates (C,) of them."""
        return Coefficients(*(part if len(part) == 1 else part[chosen] for part in self))

    def take_one(self, k: int) -> "Coefficients":
        """Replicate k alone."""
        return self.take(torch.tensor([k], device=self.mean.device))

    def draw(self, number: int, generator: torch.Generator) -> Tensor:
        """Draws (L, P) of the first replicate."""
        root = torch.linalg.cholesky(self.covariance[0])
        noise = torch.randn(number, len(root), generator=generator, dtype=root.dtype, device=root.device)
        return self.mean[0] + noise @ root.mT
