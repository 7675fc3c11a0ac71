"""Whitened cross-covariance Φ = L⁻¹ K_ZX of a data set: blocks of rows, and the products that a sweep needs.

In: a head and its slices, in any float precision and any order of rows. Out: blocks of Φᵀ (n, M), and the
sums over slices Φ Θ Φᵀ, Φ r and moments μ, σ².

A Φ of up to `STORE_BYTES` is stored. The blocks of a larger Φ are computed again in each pass, so that memory
does not grow with N · M; on a GPU `ich_mil.kernels.rbf_gram` then computes the sums of an RBF kernel.

For a smooth kernel, Φ is close to rank-deficient: with ℓ = 16 D the slices have no component in some 40 of
100 directions on the RSNA features. `compress` keeps the other directions, an orthonormal basis Q (M, r).
Sweeps then work on QᵀΦ, and q(w) stays at its prior in the dropped directions.

Shapes: N slices, n of a block, D features, M inducing points, r directions kept (M if none is dropped).
"""

import copy
from collections.abc import Iterator

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from ich_mil.gp.sparse_gp import SparseGP, identity
from ich_mil.kernels.rbf_gram import RBF, gram_of, moments_of, rbf_gram

STORE_BYTES = 2_000_000_000
"""Largest Φ that is stored. 752,803 slices and M = 200 take 1.2 GB; a sweep without it takes three times as
long (research/RESULTS.md)."""

BLOCK_BYTES = {"cpu": 3_200_000, "cuda": 256_000_000}
"""Bytes of a block of Φ for each replicate. On a CPU larger blocks leave the cache and for smaller ones call
overhead dominates; on a GPU fewer blocks mean fewer calls."""

LEAST_ROWS = 256
"""Minimum number of rows of a block."""

COMPRESSION = 1e-9
"""Bound on the change of a μ of these slices when a direction is dropped. A direction of energy λ = Σ_n φ_n²
has |φ_n| ≤ √λ, and its weight Σ_n φ_n (π_n - ½) is at most ½ √(N λ), so μ_n changes by at most ½ √N λ. The
targets of LM-VGPMIL and of the probit head are not bounded by ½; they stay within a few units, and the bound
grows in proportion. λ does not bound the change for slices of other scans: on CQ500 it was 2e-12 with 43 of
100 directions dropped."""


class Projection:
    """Φ and the residual prior variance of the slices `x[rows]`.

    Attributes:
        shape: (N, r).
        residual: (N,) float64 k(x,x) + ε - ΣΦ²; the sum is over the directions of `basis` if one was given.
        basis: Q (M, r) float64; None: all M directions.
        dtype: dtype of the blocks.
    """

    def __init__(
        self,
        model: SparseGP,
        x: Tensor,
        *,
        rows: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
        basis: Tensor | None = None,
        compress: bool = False,
    ) -> None:
        """Compute the residual and Φ, and store Φ if it is small.

        Args:
            model: head, with its present kernel and inducing points.
            x: (N, D) raw features.
            rows: (N,) order of the rows of the blocks; None: the order of `x`.
            dtype: dtype of the blocks; Φ is computed in float64.
            basis: `basis` of another projection of the same model, whose q(w) will be used here.
            compress: drop the directions in which these slices have no component.
        """
        self.model, self.dtype, self.basis = model, dtype, basis
        self._x, self._rows = x, None if rows is None else rows.to(x.device)
        self._root = model.prior_root()
        n, m = len(x), len(model.inducing) if basis is None else basis.shape[1]
        self.shape = (n, m)
        self.residual = self._root.new_empty(n)
        self._stored: Tensor | None = None
        if n * m * dtype.itemsize <= STORE_BYTES:
            self._stored = torch.empty(n, m, dtype=dtype, device=self._root.device)
        gram = self.residual.new_zeros(m, m)
        for part, phi, residual in self._plain():
            self.residual[part] = residual
            if compress:
                gram.addmm_(phi.mT, phi)
            if self._stored is not None:
                self._stored[part] = phi.to(dtype)
        if compress:
            self._compress(gram)
        self._rbf = self.rbf() if self._stored is None and x.is_cuda else None

    def rbf(self) -> RBF | None:
        """Parameters of Φ for a scaled RBF kernel, with one or D length scales; None for any other kernel."""
        model, scaled = self.model, self.model.covar_module
        if type(scaled) is not ScaleKernel or type(scaled.base_kernel) is not RBFKernel:
            return None
        base, root = scaled.base_kernel, self._root
        if not scaled.active_dims is base.active_dims is None:
            return None
        length = base.lengthscale.reshape(-1)  # (1,) or (D,)
        inverse = torch.linalg.solve_triangular(root, identity(len(root), root), upper=False)  # L⁻¹
        return RBF(
            shift=model.x_mean,
            scale=1 / (model.x_std * length),
            inducing=model.inducing / length,
            variance=scaled.outputscale,
            projection=inverse if self.basis is None else self.basis.mT @ inverse,
        )

    def _parts(self, replicates: int) -> Iterator[slice]:
        """Iterate over the row slices of the blocks for products with `replicates` matrices (r, r)."""
        n, m = self.shape
        size = BLOCK_BYTES[self.residual.device.type] // (m * replicates * self.dtype.itemsize)
        for start in range(0, n, max(LEAST_ROWS, size)):
            yield slice(start, min(start + max(LEAST_ROWS, size), n))

    def _plain(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Iterate over blocks: rows, Φᵀ and residual."""
        for part in self._parts(4):
            yield part, *self._compute(part)

    def _compute(self, part: slice) -> tuple[Tensor, Tensor]:
        """Φᵀ (n, r) and the residual (n,) of the slices `part`, computed from their features in float64."""
        x = self._x[part if self._rows is None else self._rows[part]]
        return self._within(*self.model.project(self.model.standardise(x), self._root))

    def _within(self, phi: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Φᵀ (n, r) in the directions of `basis`, and the residual (n,) plus Σ Φ² in the other directions."""
        if self.basis is None:
            return phi.mT, residual
        kept = phi.mT @ self.basis
        left_out = phi.square().sum(0) - kept.square().sum(1)
        return kept, residual + left_out.clamp(min=0.0)

    def _compress(self, gram: Tensor) -> None:
        """Keep the eigenvectors of ΦΦᵀ (M, M) with eigenvalue λ above `COMPRESSION` / √N."""
        energy, directions = torch.linalg.eigh(gram)  # in ascending order
        needed = energy > COMPRESSION / self.shape[0] ** 0.5
        # If the kernel is too short to reach any slice, keep one direction; the fit then warns of collapse.
        needed[-1] = True
        if bool(needed.all()):
            return
        Q = directions[:, needed]  # (M, r)
        self.basis, self.shape = Q, (self.shape[0], Q.shape[1])
        if self._stored is not None:
            self._stored = self._stored @ Q.to(self.dtype)

    def blocks(self, replicates: int) -> Iterator[tuple[slice, Tensor]]:
        """Iterate over blocks: rows and Φᵀ (n, r), of a size suited to the number of replicates."""
        for part in self._parts(replicates):
            stored = self._stored
            yield part, self._compute(part)[0].to(self.dtype) if stored is None else stored[part]

    def gram(self, theta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Φ Θ Φᵀ and Φ r for replicates that share Φ.

        Args:
            theta: (R, N) diagonal of Θ.
            target: (R, N) r.

        Returns:
            Φ Θ Φᵀ (R, r, r), with products in the dtype of the blocks and sums over blocks in float64; and
            Φ r (R, r), entirely in float64, because float32 there would change means by 1e-5.
        """
        if self._rbf is not None:
            return rbf_gram(self._x, self._rbf, theta, target, rows=self._rows, dtype=self.dtype)
        return gram_of(self.blocks(len(theta)), theta, target, width=self.shape[1])

    def select(self, rows: Tensor) -> "Projection":
        """Projection of some of these slices: `rows` (n,) in the order of the blocks."""
        part = copy.copy(self)
        part.shape, part.residual = (len(rows), self.shape[1]), self.residual[rows]
        part._rows = rows if self._rows is None else self._rows[rows]
        part._stored = None if self._stored is None else self._stored[rows]
        return part

    def pull(self, values: Tensor) -> Tensor:
        """Φ v (R, r) for v (R, N)."""
        out = values.new_zeros(len(values), self.shape[1])
        for rows, phi in self.blocks(len(values)):
            out += values[:, rows] @ phi.to(values)
        return out

    def push(self, w: Tensor) -> Tensor:
        """Φᵀ w (R, N) for w (R, r)."""
        out = w.new_empty(len(w), self.shape[0])
        for rows, phi in self.blocks(len(w)):
            out[:, rows] = w @ phi.to(w).mT
        return out

    def moments(self, mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """μ = Φᵀ m and σ² = diag(Φᵀ S Φ) + residual for replicates that share Φ.

        Args:
            mean: (R, r) m.
            root: (R, r, r) W with WᵀW = S.

        Returns:
            μ (R, N), entirely in float64, and σ² (R, N), with products in the dtype of the blocks.
        """
        mu, spread = moments_of(self.blocks(len(mean)), mean, root, length=self.shape[0])
        return mu, spread.add_(self.residual)
