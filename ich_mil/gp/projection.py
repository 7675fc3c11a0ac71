"""Φ = L⁻¹ K_ZX of a whole data set, tile by tile: the matrix every sweep multiplies with.

In: a head and its slices, in any float precision and any order of rows. Out: tiles Φᵀ (n, M). A small Φ is
stored; one that would not fit into `STORE_BYTES` is computed anew in each pass, so that memory does not grow
with N · M.

Shapes: N slices, n of a tile, D features, M inducing points.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ich_mil.gp.sparse_gp import SparseGP

STORE_BYTES = 400_000_000
"""A Φ up to this size is stored: 42,032 slices and 200 points take 67 MB, 752,803 would take 1.2 GB."""

TILE_ELEMENTS = 200_000
"""Elements of a tile's largest product: 1.6 MB in float64, about what stays in a core's cache."""

LEAST_ROWS = 256
"""A tile has at least so many rows."""


class Projection:
    """Φ and the variance it leaves open, for the slices `x[rows]`.

    Attributes:
        residual: (N,) float64 k(x,x) + ε - ΣΦ².
        dtype: of the tiles.
    """

    def __init__(
        self, model: SparseGP, x: Tensor, *, rows: Tensor | None = None, dtype: torch.dtype = torch.float64
    ) -> None:
        """Compute Φ once, and keep it if it is small.

        Args:
            model: whose kernel and inducing points are meant as they are now.
            x: (N, D) raw features.
            rows: (N,) the order the tiles come in; None is the order of `x`.
            dtype: of the tiles; Φ is computed in float64.
        """
        self.model, self.dtype = model, dtype
        self._x, self._rows = x, rows
        self._root = model.prior_root()
        n, m = len(x), len(model.inducing)
        self.shape = (n, m)
        self.residual = self._root.new_empty(n)
        self._stored: Tensor | None = None
        if n * m * torch.finfo(dtype).bits // 8 <= STORE_BYTES:
            self._stored = torch.empty(n, m, dtype=dtype, device=self._root.device)
        for part in self._parts(max(LEAST_ROWS, 4 * TILE_ELEMENTS // m)):
            phi, residual = self._compute(part)
            self.residual[part] = residual
            if self._stored is not None:
                self._stored[part] = phi

    def _parts(self, size: int) -> Iterator[slice]:
        for start in range(0, self.shape[0], size):
            yield slice(start, min(start + size, self.shape[0]))

    def _compute(self, part: slice) -> tuple[Tensor, Tensor]:
        """Φᵀ (n, M) and the residual (n,) of these slices, from their features."""
        x = self._x[part if self._rows is None else self._rows[part]]
        phi, residual = self.model.project(x.to(self._root.device), self._root)
        return phi.mT.to(self.dtype), residual

    def tiles(self, replicates: int) -> Iterator[tuple[slice, Tensor]]:
        """Rows and Φᵀ (n, M) of one tile after the other, of a size that suits so many replicates."""
        m = self.shape[1]
        if self._stored is not None:
            for part in self._parts(max(LEAST_ROWS, TILE_ELEMENTS // (m * replicates))):
                yield part, self._stored[part]
            return
        for part in self._parts(max(LEAST_ROWS, 4 * TILE_ELEMENTS // (m * replicates))):
            yield part, self._compute(part)[0]

    def gram(self, theta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Φ Θ Φᵀ and Φ r for replicates that share Φ.

        Args:
            theta: (R, N) diagonal of Θ.
            target: (R, N) r.

        Returns:
            (R, M, M) and (R, M), float64; products in the dtype of the tiles, sums over tiles in float64.
        """
        (replicates, _), m = theta.shape, self.shape[1]
        A = self.residual.new_zeros(replicates * m, m)
        b = self.residual.new_zeros(replicates, m)
        theta, target = theta.to(self.dtype), target.to(self.dtype)
        for rows, phi in self.tiles(replicates):
            weighted = theta[:, rows].mT[:, :, None] * phi[:, None]  # (n, R, M)
            A += weighted.flatten(1).mT @ phi
            b += target[:, rows] @ phi
        return A.view(replicates, m, m), b

    def moments(self, mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """μ = Φᵀ m and σ² = diag(Φᵀ S Φ) + residual for replicates that share Φ.

        Args:
            mean: (R, M) m.
            root: (R, M, M) W with WᵀW = S.

        Returns:
            (R, N) and (R, N), float64.
        """
        replicates, m = mean.shape
        both = torch.cat([root.flatten(0, 1), mean]).mT.to(self.dtype)  # (M, R·M + R)
        mu = mean.new_empty(replicates, self.shape[0])
        variance = torch.empty_like(mu)
        for rows, phi in self.tiles(replicates):
            product = phi @ both  # (n, R·M + R)
            spread = product[:, : replicates * m].unflatten(1, (replicates, m))  # (n, R, M)
            mu[:, rows] = product[:, replicates * m :].mT
            variance[:, rows] = torch.linalg.vecdot(spread, spread).mT
        return mu, variance.add_(self.residual)
