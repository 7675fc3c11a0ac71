"""Gaussian q(w) of the inducing values, and the interface of the local factors of a model.

Shapes: R replicates, N instances (slices), M inducing points, r directions of a basis.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ich_mil.gp.sparse_gp import identity


class Observation(Protocol):
    """Local factors of a model: the variational posteriors of the slices given μ and σ², for R replicates."""

    @property
    def bounded(self) -> list[bool]:
        """For each replicate, whether the model itself keeps |μ| bounded."""
        ...

    def precision(self, mu: Tensor, variance: Tensor) -> Tensor:
        """Precisions Θ (R, N) for μ, σ² (R, N)."""
        ...

    def target(self) -> Tensor:
        """Targets r (R, N). Call `precision` of the same sweep first."""
        ...

    def update(self, mu: Tensor, variance: Tensor) -> None:
        """Update the local posteriors for new μ, σ² (R, N)."""
        ...

    def bound(self, mu: Tensor, variance: Tensor) -> Tensor:
        """ELBO (R,) without its term KL(q(w) ‖ p(w))."""
        ...

    def keep(self, alive: Tensor) -> None:
        """Drop all replicates except those at the indices `alive`."""
        ...


class Weights(NamedTuple):
    """Gaussian q(w) = N(m, S) of R replicates: m (R, M), W (R, M, M) with WᵀW = S, and log det S (R,)."""

    mean: Tensor
    root: Tensor
    log_det: Tensor

    @classmethod
    def prior(cls, replicates: int, m: int, *, like: Tensor) -> "Weights":
        """Prior N(0, I) with M = `m`, in the dtype and on the device of `like`."""
        zero = like.new_zeros(replicates, m)
        return cls(zero, identity(m, like).repeat(replicates, 1, 1), zero[:, 0])

    @classmethod
    def solve(cls, gram: Tensor, pull: Tensor) -> "Weights":
        """Solve for q(w): S⁻¹ = I + `gram` (R, M, M) and S⁻¹ m = `pull` (R, M).

        A replicate whose S⁻¹ is not positive definite is filled with NaN.
        """
        eye = identity(gram.shape[-1], gram)
        C, failed = torch.linalg.cholesky_ex(gram + eye)  # A = C Cᵀ
        C.masked_fill_((failed != 0)[:, None, None], torch.nan)
        root = torch.linalg.solve_triangular(C, eye, upper=False)
        mean = (root.mT @ (root @ pull[..., None]))[..., 0]
        return cls(mean, root, -2 * C.diagonal(dim1=-2, dim2=-1).log().sum(-1))

    def take(self, replicate: int) -> "Weights":
        """q(w) of one replicate, with R = 1: a copy if R > 1, so that the other replicates can be freed."""
        if len(self.mean) == 1:
            return self
        return Weights(*(value[replicate : replicate + 1].clone() for value in self))

    def within(self, basis: Tensor | None) -> "Weights":
        """Marginal of q(w) in the directions of `basis` (M, r). None returns q(w) itself."""
        if basis is None:
            return self
        half = self.root @ basis  # (R, M, r)
        upper = torch.linalg.cholesky(half.mT @ half).mT
        return Weights(self.mean @ basis, upper, 2 * upper.diagonal(dim1=-2, dim2=-1).log().sum(-1))

    def beyond(self, basis: Tensor | None) -> "Weights":
        """Extend q(w) from the directions of `basis` (M, r) to all M; the other directions keep the prior."""
        if basis is None:
            return self
        # W = I + Q (W_r - I) Qᵀ has WᵀW = I + Q (S_r - I) Qᵀ
        grown = basis @ (self.root - identity(basis.shape[1], basis)) @ basis.mT
        return Weights(self.mean @ basis.mT, grown + identity(len(basis), basis), self.log_det)

    def kl(self) -> Tensor:
        """KL(q(w) ‖ N(0, I)) (R,)."""
        trace = self.root.square().sum((-2, -1))
        return 0.5 * (trace + self.mean.square().sum(-1) - self.mean.shape[-1] - self.log_det)
