"""`rbf_gram` and `rbf_moments` on a GPU: the tiles of K and the sums over them, in Triton.

In and out: as `ich_mil.kernels.rbf_gram`, which is the definition. A tile of K (M, n) is made by one kernel,
a library product in float64 turns it into Φ (P, n), and a second kernel uses it up: with tiles of some 10 MB
all that happens in the card's second-level cache. Slices run along the rows of a tile, so that both factors
of a product are contiguous in the direction it sums over, as tensor cores want them.

float32 products are made of three tf32 ones. A tensor core cuts off where float32 rounds, which over hundreds
of steps would cost two digits: after `DEPTH` slices each block goes into a float64 sum. Every sum has one
owner and one order, so results are the same to the bit in every run.

Shapes: N slices, n of a tile, D features, M inducing points, P directions, R replicates.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Rows and columns of a block of G: tensor cores want at least 64, and 200 directions fill 4 blocks of it."""

DEPTH = 32
"""Slices, or directions, a block's product sums before it goes into the float64 sum; with half as many
features at a time, and the `num_warps` below, no kernel spills a register on sm_90 (ptxas -v)."""

PROGRAMS = 528
"""Programs a launch aims at, 4 on each of 132 multiprocessors (H200): rows are split until it has them."""

MOST_SPLITS = 32
"""And no further: each part of the rows has sums (R, P, P) of its own."""


@triton.jit
def _kernel_tile(
    x,
    rows,
    shift,
    scale,
    z,
    half_z,
    out,
    first,
    n,
    n_points,
    n_features,
    stride_x,
    stride_out,
    ORDERED: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """exp(-‖u - z‖² / 2) of a block of points and slices, u = (x - shift) · scale."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    point, slice_ = m < n_points, s < n
    at = tl.load(rows + first + s, mask=slice_, other=0) if ORDERED else (first + s).to(tl.int64)
    product = tl.zeros((BLOCK, BLOCK), tl.float64)
    half_u = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_features, DEPTH):
        d = start + tl.arange(0, DEPTH)
        feature = d < n_features
        centre = tl.load(shift + d, mask=feature, other=0.0)
        factor = tl.load(scale + d, mask=feature, other=0.0)
        raw = tl.load(
            x + at[:, None] * stride_x + d[None, :], mask=slice_[:, None] & feature[None, :], other=0.0
        )
        u = (raw.to(tl.float64) - centre[None, :]) * factor[None, :]  # (n, D)
        points = tl.load(
            z + m[:, None] * n_features + d[None, :], mask=point[:, None] & feature[None, :], other=0.0
        )
        product = tl.dot(points, tl.trans(u), product, out_dtype=tl.float64)
        half_u += tl.sum(u * u, axis=1) * 0.5
    exponent = product - tl.load(half_z + m, mask=point, other=0.0)[:, None] - half_u[None, :]
    exponent = tl.where(exponent > 0.0, 0.0, exponent)  # by rounding; a NaN stays one
    tl.store(
        out + m[:, None].to(tl.int64) * stride_out + s[None, :],
        tl.exp(exponent),
        mask=point[:, None] & slice_[None, :],
    )


@triton.jit
def _gram_tile(
    phi,
    theta,
    sums,
    first,
    n,
    span,
    n_directions,
    stride_phi,
    stride_theta,
    SINGLE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Add Φ diag(θ) Φᵀ of `span` slices to the sums of this part: one block, on or below the diagonal."""
    blocks = tl.cdiv(n_directions, BLOCK)
    row, column = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    if column <= row:
        i = row * BLOCK + tl.arange(0, BLOCK)
        j = column * BLOCK + tl.arange(0, BLOCK)
        in_i, in_j = i < n_directions, j < n_directions
        at_i, at_j = phi + i[:, None] * stride_phi, phi + j[:, None] * stride_phi
        start = tl.program_id(2) * span
        end = tl.minimum(start + span, n)
        weights = theta + tl.program_id(1).to(tl.int64) * stride_theta + first
        total = tl.zeros((BLOCK, BLOCK), tl.float64)
        for k in range(start, end, DEPTH):
            s = k + tl.arange(0, DEPTH)
            here = s < end
            left = tl.load(at_i + s[None, :], mask=in_i[:, None] & here[None, :], other=0.0)
            right = tl.load(at_j + s[None, :], mask=in_j[:, None] & here[None, :], other=0.0)
            weight = tl.load(weights + s, mask=here, other=0.0).to(phi.dtype.element_ty)
            weighted = tl.trans(right * weight[None, :])
            if SINGLE:
                total += tl.dot(left, weighted, input_precision="tf32x3", out_dtype=tl.float32).to(tl.float64)
            else:
                total = tl.dot(left, weighted, total, out_dtype=tl.float64)
        there = in_i[:, None] & in_j[None, :]
        matrix = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
        at = sums + matrix * n_directions * n_directions + i[:, None] * n_directions + j[None, :]
        tl.store(at, tl.load(at, mask=there, other=0.0) + total, mask=there)


@triton.jit
def _spread_tile(
    phi,
    root,
    out,
    first,
    n,
    n_directions,
    stride_phi,
    stride_out,
    SINGLE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Σ_i (W φ)_i² of a block of slices for one replicate."""
    s = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slice_, at_s = s < n, phi + s[None, :]
    W = root + tl.program_id(1).to(tl.int64) * n_directions * n_directions
    total = tl.zeros((BLOCK,), tl.float64)
    for top in range(0, n_directions, BLOCK):
        i = top + tl.arange(0, BLOCK)
        in_i, at_i = i < n_directions, W + i[:, None] * n_directions
        product = tl.zeros((BLOCK, BLOCK), tl.float64)
        for k in range(0, n_directions, DEPTH):
            p = k + tl.arange(0, DEPTH)
            in_p = p < n_directions
            left = tl.load(at_i + p[None, :], mask=in_i[:, None] & in_p[None, :], other=0.0)
            left = left.to(phi.dtype.element_ty)
            right = tl.load(at_s + p[:, None] * stride_phi, mask=in_p[:, None] & slice_[None, :], other=0.0)
            if SINGLE:
                product += tl.dot(left, right, input_precision="tf32x3", out_dtype=tl.float32).to(tl.float64)
            else:
                product = tl.dot(left, right, product, out_dtype=tl.float64)
        total += tl.sum(product * product, axis=0)
    tl.store(out + tl.program_id(1).to(tl.int64) * stride_out + first + s, total, mask=slice_)


def _tiles(
    x: Tensor,
    rows: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    z: Tensor,
    projection: Tensor,
    single: bool,
    tile: int,
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """First slice, number of slices, Φ (P, tile) in the dtype of the products, and the same in float64."""
    n_slices, (n_points, n_features) = len(x if rows is None else rows), z.shape
    tile = min(tile, n_slices)
    K = z.new_empty(n_points, tile)
    phi = z.new_empty(len(projection), tile)
    rounded = phi.float() if single else phi
    half_z = z.square().sum(1) / 2
    for first in range(0, n_slices, tile):
        n = min(tile, n_slices - first)
        _kernel_tile[(triton.cdiv(n_points, BLOCK), triton.cdiv(n, BLOCK))](
            x,
            x if rows is None else rows,
            shift,
            scale,
            z,
            half_z,
            K,
            first,
            n,
            n_points,
            n_features,
            x.stride(0),
            tile,
            ORDERED=rows is not None,
            BLOCK=BLOCK,
            DEPTH=DEPTH // 2,
            num_warps=4,
            enable_fp_fusion=True,
        )
        torch.mm(projection, K[:, :n], out=phi[:, :n])
        if single:
            rounded[:, :n] = phi[:, :n]
            phi[:, :n] = rounded[:, :n]
        yield first, n, rounded, phi


@torch.library.custom_op("ich_mil::rbf_gram", mutates_args=())
def rbf_gram(
    x: Tensor,
    rows: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    z: Tensor,
    projection: Tensor,
    theta: Tensor,
    target: Tensor,
    single: bool,
    tile: int,
) -> tuple[Tensor, Tensor]:
    """G (R, P, P) and g (R, P); `projection` has the variance in it, products are of float32 if `single`."""
    replicates, n_slices = theta.shape
    directions = len(projection)
    blocks = triton.cdiv(directions, BLOCK)
    launched = blocks * (blocks + 1) // 2 * replicates
    splits = max(1, min(MOST_SPLITS, PROGRAMS // launched, min(tile, n_slices) // (8 * DEPTH)))
    sums = z.new_zeros(splits, replicates, directions, directions)
    g = z.new_zeros(replicates, directions)
    with torch.cuda.device_of(x):
        for first, n, phi, phi64 in _tiles(x, rows, shift, scale, z, projection, single, tile):
            _gram_tile[(blocks * blocks, replicates, splits)](
                phi,
                theta,
                sums,
                first,
                n,
                triton.cdiv(triton.cdiv(n, splits), DEPTH) * DEPTH,
                directions,
                phi.stride(0),
                theta.stride(0),
                SINGLE=single,
                BLOCK=BLOCK,
                DEPTH=DEPTH,
                num_warps=4,
                enable_fp_fusion=True,
            )
            g.addmm_(target[:, first : first + n], phi64[:, :n].mT)
    lower = sums.sum(0).tril()
    return lower + lower.tril(-1).mT, g


@rbf_gram.register_fake
def _(x, rows, shift, scale, z, projection, theta, target, single, tile):
    replicates, directions = theta.shape[0], projection.shape[0]
    return z.new_empty(replicates, directions, directions), z.new_empty(replicates, directions)


@torch.library.custom_op("ich_mil::rbf_moments", mutates_args=())
def rbf_moments(
    x: Tensor,
    rows: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    z: Tensor,
    projection: Tensor,
    mean: Tensor,
    root: Tensor,
    single: bool,
    tile: int,
) -> tuple[Tensor, Tensor]:
    """μ and Σ(Wφ)², each (R, N); `projection` has the variance in it, products are of float32 if `single`."""
    (replicates, directions), n_slices = mean.shape, len(x if rows is None else rows)
    mu = z.new_empty(replicates, n_slices)
    spread = torch.empty_like(mu)
    with torch.cuda.device_of(x):
        for first, n, phi, phi64 in _tiles(x, rows, shift, scale, z, projection, single, tile):
            torch.mm(mean, phi64[:, :n], out=mu[:, first : first + n])
            _spread_tile[(triton.cdiv(n, BLOCK), replicates)](
                phi,
                root,
                spread,
                first,
                n,
                directions,
                phi.stride(0),
                n_slices,
                SINGLE=single,
                BLOCK=BLOCK,
                DEPTH=DEPTH,
                num_warps=8,
                enable_fp_fusion=True,
            )
    return mu, spread


@rbf_moments.register_fake
def _(x, rows, shift, scale, z, projection, mean, root, single, tile):
    n_slices = x.shape[0] if rows is None else rows.shape[0]
    return tuple(z.new_empty(mean.shape[0], n_slices) for _ in range(2))
