"""Weighted Gram matrices of sparse-GP features with an RBF kernel, computed tile by tile.

In: slices x (N, D) and the parameters of the feature map, an `RBF`. For slice n

    u = (x_n - shift) · scale        k_m = v exp(-‖u - z_m‖² / 2)        φ_n = P k

Out: the sums of a sweep, for R replicates that share φ:

    G_r = Σ_n θ_rn φ_n φ_nᵀ          g_r = Σ_n r_rn φ_n

The matrix k (M, N) is never stored; one tile of φ exists at a time. φ is computed in float64 and rounded to
the dtype of the products; sums over tiles are in float64. Sums over k in float32, whitened afterwards, would
be cheaper, but P = L⁻¹ multiplies their errors by up to 1/jitter, and I + G would no longer be positive
definite (research/RESULTS.md, "Why Φ is made before it is summed").

Shapes: N slices, n of a tile, D features, M inducing points, P directions, R replicates.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ich_mil.kernels.implementation import Impl, by_triton

Tiles = Iterable[tuple[slice, Tensor]]
"""Iterable over tiles: rows and Φᵀ (n, P)."""

TILE = 65_536
"""Number of slices of a tile. On an H200 752,803 slices take 9.3 ms with 32,768 rows, 6.6 ms with 65,536, and
6.4 ms with 262,144 and four times the memory (`research/RESULTS.md`, Kernels)."""

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
        """Shift, scale, z (all contiguous) and v P of the same map, z centred: less rounding in ‖u - z‖²."""
        centre = self.inducing.mean(0)
        shift, z = self.shift + centre / self.scale, self.inducing - centre
        return shift, self.scale.contiguous(), z.contiguous(), self.variance * self.projection


def gram_of(tiles: Tiles, theta: Tensor, target: Tensor, *, width: int) -> tuple[Tensor, Tensor]:
    """Φ Θ Φᵀ (R, P, P) and Φ r (R, P) from tiles of Φᵀ that hold all N rows; `width` is P.

    Θ is diagonal: `theta` (R, N); r is `target` (R, N), all float64. Products in the first are in the dtype
    of the tiles, in the second in float64, because float32 there would change means by 1e-5. Both are summed
    over tiles in float64.
    """
    replicates = len(theta)
    G = theta.new_zeros(replicates * width, width)
    g = theta.new_zeros(replicates, width)
    product = theta.new_empty(0)  # reused: allocation of new memory pages costs as much as a product
    for rows, phi in tiles:
        if len(product) < len(phi):
            product = phi.new_empty(len(phi), replicates, width)
        weighted = product[: len(phi)]  # (n, R, P)
        torch.mul(theta[:, rows].to(phi.dtype).mT[:, :, None], phi[:, None], out=weighted)
        G += weighted.flatten(1).mT @ phi
        g += target[:, rows] @ phi.to(g)
    return G.view(replicates, width, width), g


def moments_of(tiles: Tiles, mean: Tensor, root: Tensor, *, length: int) -> tuple[Tensor, Tensor]:
    """μ = Φᵀ m and diag(Φᵀ S Φ), each (R, N) float64, from tiles of Φᵀ that hold all N = `length` rows.

    m is `mean` (R, P); `root` (R, P, P) is W with WᵀW = S. Products are in float64 for μ, in the dtype of the
    tiles for the other.
    """
    across = root.flatten(0, 1).mT  # (P, R·P)
    mu = mean.new_empty(len(mean), length)
    spread = torch.empty_like(mu)
    product = mean.new_empty(0)
    for rows, phi in tiles:
        across = across.to(phi.dtype).contiguous()
        if len(product) < len(phi):
            product = phi.new_empty(len(phi), across.shape[1])
        torch.mm(phi, across, out=product[: len(phi)])
        mu[:, rows] = mean @ phi.to(mean).mT
        spread[:, rows] = product[: len(phi)].square_().unflatten(1, root.shape[:2]).sum(-1).mT.to(spread)
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
        dtype: float64 or float32 of the products in G; Triton computes float32 as three tf32 products.
        tile: number of slices per tile of φ.
        impl: "torch" or "triton"; "auto" is "triton" for CUDA tensors.

    Returns:
        G (R, P, P), symmetric up to rounding, and g (R, P), float64; bit for bit the same in every run on the
        same machine.

    Raises:
        ValueError: no slice, or shapes of x, θ and r that do not fit.
    """
    n = len(x if rows is None else rows)
    if n == 0 or x.shape[1:] != rbf.inducing.shape[1:] or not theta.shape == target.shape == (len(theta), n):
        raise ValueError(
            f"x {tuple(x.shape)} must be at least one slice of {rbf.inducing.shape[1]} features, theta "
            f"{tuple(theta.shape)} and target {tuple(target.shape)} must be (R, {n})"
        )
    if by_triton(impl, x.device):
        from ich_mil.kernels.triton import rbf_gram as by_kernel

        x = x if x.stride(-1) == 1 else x.contiguous()
        return by_kernel.rbf_gram(x, rows, *rbf.centred(), theta, target, dtype == torch.float32, tile)
    return gram_of(_tiles(x, rows, rbf, dtype, tile), theta, target, width=len(rbf.projection))
