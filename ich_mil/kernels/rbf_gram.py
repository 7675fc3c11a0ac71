"""Sums over slices of what a sparse Gaussian process with an RBF kernel knows of them, without keeping it.

In: slices and where they are looked at from, an `RBF`. For slice n

    u = (x_n - shift) · scale        k_m = v exp(-‖u - z_m‖² / 2)        φ_n = P k

and out come the statistics of a sweep, for R replicates that share φ:

    G_r = Σ_n θ_rn φ_n φ_nᵀ          g_r = Σ_n r_rn φ_n                    (`rbf_gram`)
    μ_rn = m_rᵀ φ_n                  Σ_i (W_r φ_n)_i²,  WᵀW = S            (`rbf_moments`)

k (M, N) is never held: tiles of φ are made and used up. φ is computed in float64 and rounded to
the dtype of the products; sums over tiles are float64. To sum over k itself in float32 and whiten afterwards
would be cheaper, but P = L⁻¹ multiplies its errors by up to 1/jitter, and I + G is no longer positive
(`benchmarks.kernels_gram`).

Shapes: N slices, n of a tile, D features, M inducing points, P directions, R replicates.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ich_mil.kernels.choice import Impl, by_triton

Tiles = Iterable[tuple[slice, Tensor]]
"""Rows and Φᵀ (n, P) of one tile after the other."""

TILE = 8192
"""Slices of a tile."""

BLOCK = 64
"""Rows and columns of the piece of a result that one multiprocessor of a GPU makes (assumed)."""

PARTS = 128
"""Such blocks to be made side by side: an H200 has 132 multiprocessors."""

LEAST = 256
"""Rows of a part, at least."""

LARGEST = 1e100
"""Features must lie below it: distances are sums of squares, and those of larger ones may overflow."""


def measurable(x: Tensor) -> Tensor:
    """Whether all features of a slice are numbers below `LARGEST`, of x (N, D): (N,)."""
    return (x.abs() < LARGEST).all(1)  # NaN is below nothing


@dataclass(frozen=True)
class RBF:
    """The map from features to φ. All float64, on the device of the features.

    Attributes:
        shift: (D,) subtracted from the features.
        scale: (D,) they are then multiplied with: one over length scales, and over deviations.
        inducing: z (M, D), shifted and scaled already.
        variance: () v.
        projection: P (P, M).
    """

    shift: Tensor
    scale: Tensor
    inducing: Tensor
    variance: Tensor
    projection: Tensor

    def centred(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Shift, scale, z and v P of the same map with z around 0: ‖u - z‖² then loses less to rounding.

        The first three lie in memory row after row, as kernels read them.
        """
        centre = self.inducing.mean(0)
        shift, z = self.shift + centre / self.scale, self.inducing - centre
        return shift, self.scale.contiguous(), z.contiguous(), self.variance * self.projection


class Scratch:
    """Memory for products, the same in every call: fresh pages cost as much as a product."""

    def __init__(self) -> None:
        """Start with none."""
        self._memory = torch.empty(0)

    def like(self, tile: Tensor, *shape: int) -> Tensor:
        """Uninitialised memory in dtype and on the device of a tile."""
        size = math.prod(shape)
        if len(self._memory) < size or self._memory.dtype != tile.dtype or self._memory.device != tile.device:
            self._memory = tile.new_empty(size)
        return self._memory[:size].view(shape)


def gram_of(
    tiles: Tiles, theta: Tensor, target: Tensor, *, width: int, scratch: Scratch
) -> tuple[Tensor, Tensor]:
    """Φ Θ Φᵀ and Φ r from tiles of Φᵀ, of products in the dtype of the tiles.

    Args:
        tiles: whose rows together are all N.
        theta: (R, N) diagonal of Θ, float64.
        target: (R, N) r, float64.
        width: P.
        scratch: used for the products.

    Returns:
        (R, P, P) and (R, P), summed over tiles in float64. The second is of float64 products, in float32 it
        alone would move means by 1e-5.
    """
    replicates = len(theta)
    G = theta.new_zeros(replicates * width, width)
    g = theta.new_zeros(replicates, width)
    for rows, phi in tiles:
        weighted = scratch.like(phi, len(phi), replicates, width)
        torch.mul(theta[:, rows].to(phi.dtype).mT[:, :, None], phi[:, None], out=weighted)  # (n, R, P)
        if phi.is_cuda:
            G += _long(weighted.flatten(1), phi)
        elif phi.dtype == G.dtype:
            G.addmm_(weighted.flatten(1).mT, phi)
        else:
            G += weighted.flatten(1).mT @ phi
        g += _long(target[:, rows].mT, phi.to(g)) if phi.is_cuda else target[:, rows] @ phi.to(g)
    return G.view(replicates, width, width), g


def _long(left: Tensor, right: Tensor) -> Tensor:
    """`left`ᵀ `right` for many rows: a small result, which a library might leave to few multiprocessors.

    Rows are cut into parts of equal length, whose products are made side by side and added in float64.

    Args:
        left: (n, P).
        right: (n, Q), of the same dtype.

    Returns:
        (P, Q) float64; in the dtype of the factors where all is one product.
    """
    n, blocks = len(left), -(-left.shape[1] // BLOCK) * -(-right.shape[1] // BLOCK)
    parts = min(PARTS // blocks, n // LEAST)
    if parts < 2:
        return left.mT @ right
    whole = n - n % parts
    cut_left, cut_right = (value[:whole].unflatten(0, (parts, -1)) for value in (left, right))
    found = (cut_left.mT @ cut_right).sum(0, dtype=torch.float64)
    return found if whole == n else found + left[whole:].mT @ right[whole:]


def moments_of(
    tiles: Tiles, mean: Tensor, root: Tensor, *, length: int, scratch: Scratch
) -> tuple[Tensor, Tensor]:
    """μ = Φᵀ m and diag(Φᵀ S Φ) from tiles of Φᵀ.

    Args:
        tiles: whose rows together are all N.
        mean: (R, P) m, float64.
        root: (R, P, P) W with WᵀW = S, float64.
        length: N.
        scratch: used for the products.

    Returns:
        (R, N) of float64 products, and (R, N) of products in the dtype of the tiles, both in float64.
    """
    replicates, width = mean.shape
    across = root.flatten(0, 1).mT  # (P, R·P)
    mu = mean.new_empty(replicates, length)
    spread = torch.empty_like(mu)
    for rows, phi in tiles:
        across = across.to(phi.dtype).contiguous()
        products = scratch.like(phi, len(phi), replicates, width)
        torch.mm(phi, across, out=products.view(len(phi), -1))
        mu[:, rows] = mean @ phi.to(mean).mT
        spread[:, rows] = products.square_().sum(-1).mT.to(spread)
    return mu, spread


def _tiles(
    x: Tensor, rows: Tensor | None, rbf: RBF, dtype: torch.dtype, tile: int
) -> Iterator[tuple[slice, Tensor]]:
    """Rows and Φᵀ, tile by tile."""
    shift, scale, z, projection = rbf.centred()
    half_z = z.square().sum(1) / 2
    n = len(x if rows is None else rows)
    for start in range(0, n, tile):
        part = slice(start, min(start + tile, n))
        u = (x[part if rows is None else rows[part]].to(z) - shift).mul_(scale)  # (n, D)
        # -‖u - z‖² / 2 = uᵀz - ‖z‖² / 2 - ‖u‖² / 2, by rounding above 0
        k = torch.addmm(half_z, u, z.mT, beta=-1).sub_(u.square_().sum(1, keepdim=True), alpha=0.5)
        yield part, (k.clamp_(max=0.0).exp_() @ projection.mT).to(dtype)  # (n, P)


def rbf_gram(
    x: Tensor,
    rbf: RBF,
    theta: Tensor,
    target: Tensor,
    *,
    rows: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    tile: int = TILE,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """G_r = Σ_n θ_rn φ_n φ_nᵀ and g_r = Σ_n r_rn φ_n.

    Args:
        x: (N, D) features in any float dtype.
        rbf: the map to φ.
        theta: (R, N) float64.
        target: (R, N) r, float64.
        rows: (N,) the order of the slices in θ and r; None is that of `x`.
        dtype: float64 or float32, of the products that make G; with Triton each float32 one is three of tf32.
        tile: slices whose φ exist at a time.
        impl: "auto" is Triton for CUDA tensors, torch for others.

    Returns:
        (R, P, P), symmetric to rounding, and (R, P), float64; the same to the bit in every run on a machine.

    Raises:
        ValueError: no slice, shapes that do not fit, or another dtype.
    """
    _check(x, rows, rbf, dtype, theta, target)
    if theta.shape != target.shape or theta.ndim != 2 or theta.shape[1] != len(x if rows is None else rows):
        raise ValueError(
            f"theta {tuple(theta.shape)} and target {tuple(target.shape)} must be (R, N), as x has N"
        )
    if by_triton(impl, x.device):
        from ich_mil.kernels import rbf_gram_triton

        theta, target = _rows_in_line(theta), _rows_in_line(target)
        return rbf_gram_triton.rbf_gram(
            _rows_in_line(x), rows, *rbf.centred(), theta, target, dtype == torch.float32, tile
        )
    tiles = _tiles(x, rows, rbf, dtype, tile)
    return gram_of(tiles, theta, target, width=len(rbf.projection), scratch=Scratch())


def rbf_moments(
    x: Tensor,
    rbf: RBF,
    mean: Tensor,
    root: Tensor,
    *,
    rows: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    tile: int = TILE,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """μ_rn = m_rᵀ φ_n and Σ_i (W_r φ_n)_i², what q(w) adds to the variance of slice n.

    Args:
        x: (N, D) features in any float dtype.
        rbf: the map to φ.
        mean: (R, P) m, float64.
        root: (R, P, P) W, float64.
        rows: (N,) the order in which slices come out; None is that of `x`.
        dtype: float64 or float32, of the products W φ.
        tile: slices whose φ exist at a time.
        impl: "auto" is Triton for CUDA tensors, torch for others.

    Returns:
        (R, N) and (R, N), float64.

    Raises:
        ValueError: no slice, shapes that do not fit, or another dtype.
    """
    _check(x, rows, rbf, dtype, mean, root)
    width = len(rbf.projection)
    if mean.shape[1:] != (width,) or root.shape != (len(mean), width, width):
        raise ValueError(
            f"mean {tuple(mean.shape)} and root {tuple(root.shape)} must be (R, P), (R, P, P); P = {width}"
        )
    if by_triton(impl, x.device):
        from ich_mil.kernels import rbf_moments_triton

        return rbf_moments_triton.rbf_moments(
            _rows_in_line(x), rows, *rbf.centred(), mean, root, dtype == torch.float32, tile
        )
    tiles = _tiles(x, rows, rbf, dtype, tile)
    return moments_of(tiles, mean, root, length=len(x if rows is None else rows), scratch=Scratch())


def _check(x: Tensor, rows: Tensor | None, rbf: RBF, dtype: torch.dtype, *others: Tensor) -> None:
    """Raise ValueError for what both ops refuse."""
    if x.ndim != 2 or x.shape[1] != rbf.inducing.shape[1] or len(x if rows is None else rows) == 0:
        raise ValueError(f"x {tuple(x.shape)} must be at least one slice of {rbf.inducing.shape[1]} features")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype {dtype}: float32 or float64")
    if any(other.dtype != torch.float64 for other in (rbf.inducing, rbf.projection, *others)):
        raise ValueError("all but the features must be float64")


def _rows_in_line(value: Tensor) -> Tensor:
    """The tensor, copied where the elements of a row do not follow each other."""
    return value if value.stride(-1) == 1 else value.contiguous()
