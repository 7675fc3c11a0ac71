"""Weighted Gram matrices and moments of sparse-GP features with an RBF kernel, computed tile by tile.

In: slices x (N, D) and the parameters of the feature map, an `RBF`. For slice n

    u = (x_n - shift) · scale        k_m = v exp(-‖u - z_m‖² / 2)        φ_n = P k

Out: the statistics of a sweep, for R replicates that share φ:

    G_r = Σ_n θ_rn φ_n φ_nᵀ          g_r = Σ_n r_rn φ_n                    (`rbf_gram`)
    μ_rn = m_rᵀ φ_n                  Σ_i (W_r φ_n)_i²,  WᵀW = S            (`rbf_moments`)

The matrix k (M, N) is never stored; one tile of φ exists at a time. φ is computed in float64 and rounded to
the dtype of the products; sums over tiles are in float64. Sums over k in float32, whitened afterwards, would
be cheaper, but P = L⁻¹ multiplies their errors by up to 1/jitter, and I + G would no longer be positive
definite (research/RESULTS.md, "Why Φ is made before it is summed").

Shapes: N slices, n of a tile, D features, M inducing points, P directions, R replicates.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ich_mil.kernels.implementation import Impl, by_triton

Tiles = Iterable[tuple[slice, Tensor]]
"""Iterable over tiles: rows and Φᵀ (n, P)."""

TILE = 8192
"""Default number of slices of a tile."""

BLOCK = 64
"""Rows and columns of the block of a result that one GPU multiprocessor computes (assumed)."""

PARTS = 128
"""Number of such blocks to compute in parallel: an H200 has 132 multiprocessors."""

LEAST = 256
"""Minimum number of rows of a part in `_long`."""

LARGEST = 1e100
"""Upper limit of |feature|: distances are sums of squares, which may overflow for larger values."""


def measurable(x: Tensor) -> Tensor:
    """Whether all features of a slice are below `LARGEST` in magnitude and not NaN: (N,) for x (N, D)."""
    return (x.abs() < LARGEST).all(1)  # the comparison is False for NaN


@dataclass(frozen=True)
class RBF:
    """Parameters of the map from features x to φ. All float64, on the device of the features.

    Attributes:
        shift: (D,) subtracted from x.
        scale: (D,) factor of the shifted x: 1 / (standard deviation · length scale).
        inducing: z (M, D), already shifted and scaled.
        variance: () v.
        projection: matrix P (P, M).
    """

    shift: Tensor
    scale: Tensor
    inducing: Tensor
    variance: Tensor
    projection: Tensor

    def centred(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Shift, scale, z and v P of the same map with z centred at 0, to reduce rounding in ‖u - z‖².

        Shift, scale and z are contiguous, as the Triton kernels require.
        """
        centre = self.inducing.mean(0)
        shift, z = self.shift + centre / self.scale, self.inducing - centre
        return shift, self.scale.contiguous(), z.contiguous(), self.variance * self.projection


class Scratch:
    """Reusable buffer for products: allocation of new memory pages costs as much as a product."""

    def __init__(self) -> None:
        """Start with an empty buffer."""
        self._memory = torch.empty(0)

    def like(self, tile: Tensor, *shape: int) -> Tensor:
        """Uninitialised tensor of `shape`, in the dtype and on the device of `tile`."""
        size = math.prod(shape)
        if len(self._memory) < size or self._memory.dtype != tile.dtype or self._memory.device != tile.device:
            self._memory = tile.new_empty(size)
        return self._memory[:size].view(shape)


def gram_of(
    tiles: Tiles, theta: Tensor, target: Tensor, *, width: int, scratch: Scratch
) -> tuple[Tensor, Tensor]:
    """Φ Θ Φᵀ (R, P, P) and Φ r (R, P) from tiles of Φᵀ that hold all N rows; `width` is P.

    Θ is diagonal: `theta` (R, N); r is `target` (R, N), all float64. Products in the first are in the dtype
    of the tiles, in the second in float64, because float32 there would change means by 1e-5. Both are summed
    over tiles in float64.
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
    """Product `left`ᵀ `right` (P, Q) of (n, P) and (n, Q), with large n, for a GPU.

    A library may compute such a product on few multiprocessors. Here the rows are split into parts of equal
    length, whose products are batched and added in float64. One part keeps the dtype of the factors.
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
    """μ = Φᵀ m and diag(Φᵀ S Φ), each (R, N) float64, from tiles of Φᵀ that hold all N = `length` rows.

    m is `mean` (R, P); `root` (R, P, P) is W with WᵀW = S. Products are in float64 for μ, in the dtype of the
    tiles for the other.
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
    """Iterate over tiles: rows and Φᵀ (n, P)."""
    shift, scale, z, projection = rbf.centred()
    half_z = z.square().sum(1) / 2
    n = len(x if rows is None else rows)
    for start in range(0, n, tile):
        part = slice(start, min(start + tile, n))
        u = (x[part if rows is None else rows[part]].to(z) - shift).mul_(scale)  # (n, D)
        # -‖u - z‖² / 2 = uᵀz - ‖z‖² / 2 - ‖u‖² / 2, which rounding may raise above 0
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
    """Weighted Gram matrix G_r = Σ_n θ_rn φ_n φ_nᵀ and vector g_r = Σ_n r_rn φ_n.

    Args:
        x: (N, D) features in any float dtype.
        rbf: parameters of the map to φ.
        theta: (R, N) θ, float64.
        target: (R, N) r, float64.
        rows: (N,) order of the slices in θ and r; None: the order of `x`.
        dtype: float64 or float32, dtype of the products in G; Triton computes a float32 product as three tf32
            products.
        tile: number of slices per tile of φ.
        impl: "torch" or "triton"; "auto" is "triton" for CUDA tensors.

    Returns:
        G (R, P, P), symmetric up to rounding, and g (R, P), float64; bit for bit the same in every run on the
        same machine.

    Raises:
        ValueError: no slice, shapes that do not fit, or another dtype.
    """
    _check(x, rows, rbf, dtype, theta, target)
    if theta.shape != target.shape or theta.ndim != 2 or theta.shape[1] != len(x if rows is None else rows):
        raise ValueError(
            f"theta {tuple(theta.shape)} and target {tuple(target.shape)} must be (R, N), as x has N"
        )
    if by_triton(impl, x.device):
        from ich_mil.kernels.triton import rbf_gram as rbf_gram_triton

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
    """Means μ_rn = m_rᵀ φ_n and variances Σ_i (W_r φ_n)_i² = φ_nᵀ S_r φ_n of slices under q(w).

    Args:
        x: (N, D) features in any float dtype.
        rbf: parameters of the map to φ.
        mean: (R, P) m, float64.
        root: (R, P, P) W with WᵀW = S, float64.
        rows: (N,) order of the slices in the result; None: the order of `x`.
        dtype: float64 or float32, dtype of the products W φ.
        tile: number of slices per tile of φ.
        impl: as for `rbf_gram`, as are the errors.

    Returns:
        Means (R, N) and variances (R, N), float64. The residual prior variance is not included.
    """
    _check(x, rows, rbf, dtype, mean, root)
    width = len(rbf.projection)
    if mean.shape[1:] != (width,) or root.shape != (len(mean), width, width):
        raise ValueError(
            f"mean {tuple(mean.shape)} and root {tuple(root.shape)} must be (R, P), (R, P, P); P = {width}"
        )
    if by_triton(impl, x.device):
        from ich_mil.kernels.triton import rbf_moments as rbf_moments_triton

        return rbf_moments_triton.rbf_moments(
            _rows_in_line(x), rows, *rbf.centred(), mean, root, dtype == torch.float32, tile
        )
    tiles = _tiles(x, rows, rbf, dtype, tile)
    return moments_of(tiles, mean, root, length=len(x if rows is None else rows), scratch=Scratch())


def _check(x: Tensor, rows: Tensor | None, rbf: RBF, dtype: torch.dtype, *others: Tensor) -> None:
    """Raise `ValueError` for arguments that both operations reject."""
    if x.ndim != 2 or x.shape[1] != rbf.inducing.shape[1] or len(x if rows is None else rows) == 0:
        raise ValueError(f"x {tuple(x.shape)} must be at least one slice of {rbf.inducing.shape[1]} features")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype {dtype}: float32 or float64")
    if any(other.dtype != torch.float64 for other in (rbf.inducing, rbf.projection, *others)):
        raise ValueError("all but the features must be float64")


def _rows_in_line(value: Tensor) -> Tensor:
    """The tensor, copied unless the elements of a row are contiguous."""
    return value if value.stride(-1) == 1 else value.contiguous()
