"""Φ = L⁻¹ K_ZX of a whole data set, tile by tile: the matrix every sweep multiplies with.

In: a head and its slices, in any float precision and any order of rows. Out: tiles Φᵀ (n, M), and the sums
over slices that a sweep needs. A small Φ is stored; one that would not fit into `STORE_BYTES` is computed
anew in each pass, so that memory does not grow with N · M: by `ich_mil.kernels.rbf_gram` where the kernel is
RBF, else by the kernel object. Where slices are smoothed along z, Φ is Φ~ (`ich_mil.gp.smoothing`) and always
stored: a tile holds slices of many scans, and each of them would need its whole scan again.

Where the kernel is smooth, there are directions in which no slice goes anywhere: with ℓ = 16 D some 40 of
100 on the RSNA features. `compress` keeps the others, an orthonormal basis Q (M, r); sweeps then work on
QᵀΦ, and q(w) stays at its prior in the directions left out.

Shapes: N slices, n of a tile, D features, M inducing points, r directions kept (M before `compress`).
"""

from collections.abc import Iterator

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from ich_mil.gp.smoothing import Smoother, blocks_of
from ich_mil.gp.sparse_gp import SparseGP, identity
from ich_mil.kernels.rbf_gram import RBF, Scratch, gram_of, moments_of, rbf_gram, rbf_moments
from ich_mil.ranks import ALONE, Ranks

STORE_BYTES = 400_000_000
"""A Φ up to this size is stored: 42,032 slices and 200 points take 67 MB, 752,803 would take 1.2 GB."""

TILE_BYTES = 3_200_000
"""Bytes of a tile of Φ, and of its products: larger ones leave the cache, smaller ones cost the time of their
calls (measured from 0.3 to 6.4 MB on two cores)."""

LEAST_ROWS = 256
"""A tile has at least so many rows."""

COMPRESSION = 1e-9
"""What leaving out a direction may move a μ of these slices by: with energy λ = Σ_n φ_n² in it |φ_n| ≤ √λ,
and its weight Σ_n φ_n (π_n - ½) is at most ½ √(N λ), so μ_n moves by at most ½ √N λ. Targets of LM-VGPMIL and
of the probit head are not bounded by ½; they stay within a few units, and the bound grows by as much. Slices
of other scans are not bounded by λ: those of CQ500 moved by 2e-12 with 43 of 100 directions left out."""

ONE_TILE = 8192
"""Up to so many rows are one tile: two cores multiply 5,254 x 100 twice as fast in one piece as in three."""

GPU_ROWS = 32_768
"""Rows of a tile on a GPU. The calls of a tile cost the host some 0.1 ms, about what a card needs for so many
rows of 200 directions (not measured)."""

GPU_BYTES = 256_000_000
"""Bytes of the products of a tile on a GPU where Φ is stored: nothing else of a tile takes memory then, and
the fewer tiles, the fewer calls."""


class Projection:
    """Φ and the variance it leaves open, for the slices `x[rows]`.

    Attributes:
        shape: (N, r).
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
        ranks: Ranks = ALONE,
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
            ranks: among whom the slices are shared; `x` and `rows` are then this rank's. Sums are of all.
        """
        self.model, self.dtype, self.basis, self._ranks = model, dtype, basis, ranks
        self._x, self._rows = x, None if rows is None else rows.to(x.device)
        self._root = model.prior_root()
        n, m = len(x), len(model.inducing) if basis is None else basis.shape[1]
        self.shape = (n, m)
        self.residual = self._root.new_empty(n)
        self._scratch = Scratch()
        self._stored: Tensor | None = None
        stored = None
        if smoother is not None or n * m * torch.finfo(dtype).bits // 8 <= STORE_BYTES:
            stored = torch.empty(n, m, dtype=dtype, device=self._root.device)
        gram = self.residual.new_zeros(m, m)
        for part, phi, residual in self._plain() if smoother is None else self._smoothed(smoother):
            self.residual[part] = residual
            if compress:
                gram.addmm_(phi.mT, phi)
            if stored is not None:
                stored[part] = phi.to(dtype)
        self._stored = stored  # from here on tiles are cut from it, and may be longer
        if compress:
            self._compress(gram)
        self._rbf = self._as_rbf() if self._stored is None else None

    def _as_rbf(self) -> RBF | None:
        """The map to Φ of a scaled RBF kernel, of one or many length scales; None: the kernel is another."""
        model, scaled = self.model, self.model.covar_module
        if type(scaled) is not ScaleKernel or type(scaled.base_kernel) is not RBFKernel:
            return None
        base, root = scaled.base_kernel, self._root
        if not (scaled.active_dims is base.active_dims is None and self._x.device == root.device):
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

    def _tile(self, width: int) -> int:
        """Rows whose product with `width` matrices (M, M) is a tile."""
        n, m = self.shape
        if self.residual.is_cuda:
            stored = self._stored
            return GPU_ROWS if stored is None else max(GPU_ROWS, GPU_BYTES // (m * width * stored.itemsize))
        size = TILE_BYTES // (m * width * torch.finfo(self.dtype).bits // 8)
        return n if n * width <= ONE_TILE else max(LEAST_ROWS, size)

    def _parts(self, width: int) -> Iterator[slice]:
        """The rows of one tile after the other."""
        n, size = self.shape[0], self._tile(width)
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
        slices = gram.new_full((1, len(gram)), self.shape[0])
        total = self._ranks.total(torch.cat([gram, slices]))
        energy, directions = torch.linalg.eigh(total[:-1])  # rising
        # The ranks must agree on the directions, and machines may differ in an eigenvector's sign.
        energy, directions = self._ranks.same(torch.cat([energy[None], directions])).tensor_split([1])
        needed = energy[0] > COMPRESSION / total[-1, 0].sqrt()
        needed[-1] = True  # one is left of a kernel so short that it reaches no slice: the fit tells that
        if bool(needed.all()):
            return
        Q = directions[:, needed]  # (M, r)
        self.basis, self.shape = Q, (self.shape[0], Q.shape[1])
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
            float64: in float32 it alone would move means by 1e-5. Sums over the slices of all ranks.
        """
        R, width = len(theta), self.shape[1]
        if self._rbf is None:
            sums = gram_of(self.tiles(R), theta, target, width=width, scratch=self._scratch)
        else:
            sums = rbf_gram(
                self._x, self._rbf, theta, target, rows=self._rows, dtype=self.dtype, tile=self._tile(R)
            )
        both = self._ranks.total(torch.cat([sums[0], sums[1][:, None]], dim=1))
        return both[:, :width], both[:, width]

    def moments(self, mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """μ = Φᵀ m and σ² = diag(Φᵀ S Φ) + residual for replicates that share Φ.

        Args:
            mean: (R, r) m.
            root: (R, r, r) W with WᵀW = S.

        Returns:
            (R, N), all in float64, and (R, N), of products in the dtype of the tiles.
        """
        R, n = len(mean), self.shape[0]
        if self._rbf is None:
            mu, spread = moments_of(self.tiles(R), mean, root, length=n, scratch=self._scratch)
        else:
            mu, spread = rbf_moments(
                self._x, self._rbf, mean, root, rows=self._rows, dtype=self.dtype, tile=self._tile(R)
            )
        return mu, spread.add_(self.residual)
