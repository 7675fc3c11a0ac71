"""Φ = L⁻¹ K_ZX of a whole data set, tile by tile: the matrix every sweep multiplies with.

In: a head and its slices, in any float precision and any order of rows. Out: tiles Φᵀ (n, M). A small Φ is
stored; one that would not fit into `STORE_BYTES` is computed anew in each pass, so that memory does not grow
with N · M. Where slices are smoothed along z, Φ is Φ~ (`ich_mil.gp.smoothing`) and always stored: a tile
holds slices of many scans, and each of them would need its whole scan again.

Where the kernel is smooth, there are directions in which no slice goes anywhere: with ℓ = 16 D some 40 of
100 on the RSNA features. `compress` keeps the others, an orthonormal basis Q (M, r); sweeps then work on
QᵀΦ, and q(w) stays at its prior in the directions left out.

Shapes: N slices, n of a tile, D features, M inducing points, r directions kept (M before `compress`).
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ich_mil.gp.smoothing import Smoother, blocks_of
from ich_mil.gp.sparse_gp import SparseGP

STORE_BYTES = 400_000_000
"""A Φ up to this size is stored: 42,032 slices and 200 points take 67 MB, 752,803 would take 1.2 GB."""

TILE_BYTES = 3_200_000
"""Bytes of a tile of Φ, and of its products: larger ones leave the cache, smaller ones cost the time of their
calls (measured from 0.3 to 6.4 MB on two cores)."""

LEAST_ROWS = 256
"""A tile has at least so many rows."""

COMPRESSION = 1e-9
"""What leaving out a direction may move a μ by: with energy λ = Σ_n φ_n² in it |φ_n| ≤ √λ, and its weight
Σ_n φ_n (π_n - ½) is at most ½ √(N λ), so μ_n moves by at most ½ √N λ. Targets of LM-VGPMIL and of the
probit head are not bounded by ½; they stay within a few units, and the bound grows by as much."""

ONE_TILE = 8192
"""Up to so many rows are one tile: two cores multiply 5,254 x 100 twice as fast in one piece as in three."""


class Projection:
    """Φ and the variance it leaves open, for the slices `x[rows]`.

    Attributes:
        residual: (N,) float64 k(x,x) + ε - ΣΦ², plus Φ² in the directions left out.
        basis: Q (M, r) float64; None: all M directions.
        dtype: of the tiles.
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
        smoother: Smoother | None = None,
    ) -> None:
        """Compute Φ once, and keep it if it is small.

        Args:
            model: whose kernel and inducing points are meant as they are now.
            x: (N, D) raw features.
            rows: (N,) the order the tiles come in; None is the order of `x`.
            dtype: of the tiles; Φ is computed in float64.
            basis: of another projection of the same model, whose weights will be used here.
            compress: leave out the directions in which these slices have no component.
            smoother: of the scans of `x`.
        """
        self.model, self.dtype, self.basis = model, dtype, basis
        self._x, self._rows = x, rows
        self._root = model.prior_root()
        n, m = len(x), len(model.inducing) if basis is None else basis.shape[1]
        self.shape = (n, m)
        self.residual = self._root.new_empty(n)
        self._memory = torch.empty(0)
        self._stored: Tensor | None = None
        if smoother is not None or n * m * torch.finfo(dtype).bits // 8 <= STORE_BYTES:
            self._stored = torch.empty(n, m, dtype=dtype, device=self._root.device)
        gram = self.residual.new_zeros(m, m)
        for part, phi, residual in self._plain() if smoother is None else self._smoothed(smoother):
            self.residual[part] = residual
            if compress:
                gram.addmm_(phi.mT, phi)
            if self._stored is not None:
                self._stored[part] = phi
        if compress:
            self._compress(gram)

    def _parts(self, width: int) -> Iterator[slice]:
        """Slices of rows whose product with `width` matrices (M, M) is a tile."""
        n, m = self.shape
        size = TILE_BYTES // (m * width * torch.finfo(self.dtype).bits // 8)
        size = n if n * width <= ONE_TILE else max(LEAST_ROWS, size)
        for start in range(0, n, size):
            yield slice(start, min(start + size, n))

    def _plain(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows, Φᵀ and residual, tile by tile."""
        for part in self._parts(4):
            yield part, *self._compute(part)

    def _smoothed(self, smoother: Smoother) -> Iterator[tuple[slice | Tensor, Tensor, Tensor]]:
        """Rows, Φ~ᵀ and its residual, scan by scan."""
        place = None if self._rows is None else torch.argsort(self._rows)
        for block in blocks_of(smoother.offsets):
            x, W = self._x[block].to(self._root.device), smoother.weights(block).to(self._root)
            phi, residual = self.model.project(x, self._root, smooth=W)
            yield block if place is None else place[block], *self._within(phi, residual)

    def _compute(self, part: slice) -> tuple[Tensor, Tensor]:
        """Φᵀ (n, r) and the residual (n,) of these slices, from their features, in float64."""
        x = self._x[part if self._rows is None else self._rows[part]]
        return self._within(*self.model.project(x.to(self._root.device), self._root))

    def _within(self, phi: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Φᵀ (n, r) in the directions kept, and the residual (n,) with what is in the others."""
        if self.basis is None:
            return phi.mT, residual
        kept = phi.mT @ self.basis
        left_out = phi.square().sum(0) - kept.square().sum(1)
        return kept, residual + left_out.clamp(min=0.0)

    def _compress(self, gram: Tensor) -> None:
        """Keep the directions of ΦΦᵀ (M, M) that move some μ by more than `COMPRESSION`."""
        n, _ = self.shape
        energy, directions = torch.linalg.eigh(gram)  # rising
        needed = energy > COMPRESSION / math.sqrt(n)
        if bool(needed.all()):
            return
        Q = directions[:, needed]  # (M, r)
        self.basis, self.shape = Q, (n, Q.shape[1])
        if self._stored is not None:
            self._stored = self._stored @ Q.to(self.dtype)

    def tiles(self, replicates: int) -> Iterator[tuple[slice, Tensor]]:
        """Rows and Φᵀ (n, r) of one tile after the other, of a size that suits so many replicates."""
        for part in self._parts(replicates):
            stored = self._stored
            yield part, self._compute(part)[0].to(self.dtype) if stored is None else stored[part]

    def gram(self, theta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Φ Θ Φᵀ and Φ r for replicates that share Φ.

        Args:
            theta: (R, N) diagonal of Θ.
            target: (R, N) r.

        Returns:
            (R, r, r), of products in the dtype of the tiles, summed over tiles in float64; and (R, r), all in
            float64: in float32 it alone would move means by 1e-5.
        """
        (replicates, _), m = theta.shape, self.shape[1]
        A = self.residual.new_zeros(replicates * m, m)
        b = self.residual.new_zeros(replicates, m)
        theta = theta.to(self.dtype)
        for rows, phi in self.tiles(replicates):
            weighted = self._scratch(len(phi), replicates, m)
            torch.mul(theta[:, rows].mT[:, :, None], phi[:, None], out=weighted)  # (n, R, r)
            if self.dtype == A.dtype:
                A.addmm_(weighted.flatten(1).mT, phi)
            else:
                A += weighted.flatten(1).mT @ phi
            b += target[:, rows] @ phi.to(b)
        return A.view(replicates, m, m), b

    def _scratch(self, *shape: int) -> Tensor:
        """Memory for a tile's products, the same in every pass: fresh pages cost as much as a product."""
        size = math.prod(shape)
        if len(self._memory) < size:
            self._memory = torch.empty(size, dtype=self.dtype, device=self.residual.device)
        return self._memory[:size].view(shape)

    def moments(self, mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """μ = Φᵀ m and σ² = diag(Φᵀ S Φ) + residual for replicates that share Φ.

        Args:
            mean: (R, r) m.
            root: (R, r, r) W with WᵀW = S.

        Returns:
            (R, N), all in float64, and (R, N), of products in the dtype of the tiles.
        """
        replicates, m = mean.shape
        across = root.flatten(0, 1).mT.to(self.dtype).contiguous()  # (r, R·r)
        mu = mean.new_empty(replicates, self.shape[0])
        variance = torch.empty_like(mu)
        for rows, phi in self.tiles(replicates):
            spread = self._scratch(len(phi), replicates, m)
            torch.mm(phi, across, out=spread.view(len(phi), -1))
            mu[:, rows] = mean @ phi.to(mean).mT
            variance[:, rows] = spread.square_().sum(-1).mT
        return mu, variance.add_(self.residual)
