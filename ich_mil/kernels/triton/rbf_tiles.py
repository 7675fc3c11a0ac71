"""Tiles of Φ on a GPU, over which `rbf_gram` and `rbf_moments` sum.

In: slices, in rows or in the order of `rows`, and the map to φ (`ich_mil.kernels.rbf_gram`). Out: Φ of `tile`
slices at a time. A kernel computes a tile of K (M, n), and a library product in float64 gives Φ (P, n), or
Φᵀ, which the next tile overwrites. Rows run in the direction of the sums, over slices or over directions, as
tensor cores need both factors contiguous there. Φ in float32 stays in the second-level cache.

The memory of a tile is padded with zeros to whole blocks, so that it is read without masks, 16 bytes at a
time.

Shapes: N slices, n of a tile, w of its memory, D features, M inducing points, P directions (P' with zeros).
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Rows and columns of the block of a program: tensor cores need at least 64, and 200 directions fill 3."""

NARROW = 16
"""Rows or columns of a block for a small remainder, such as 8 of 200 directions."""

DEPTH = 32
"""Slices that the tensor cores sum; half as many features, and directions (squares double the truncation).
With 4 warps no loop over float32 products then spills a register on sm_90."""


@triton.jit
def _kernel_tile(
    x, rows, shift, scale, z, half_z, out, first, n, n_points, n_features, stride_x, stride_out,
    ORDERED: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """exp(-‖u - z‖² / 2) of a block of points and slices, u = (x - shift) · scale."""
    m = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    s = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # any number of blocks: CUDA allows y and z 65,535
    point, slice_ = m < n_points, s < n
    at = tl.load(rows + first + s, mask=slice_, other=0) if ORDERED else (first + s).to(tl.int64)
    product = tl.zeros((BLOCK, BLOCK), tl.float64)
    squares = tl.zeros((BLOCK, DEPTH), tl.float64)
    for start in range(0, n_features, DEPTH):
        d = start + tl.arange(0, DEPTH)
        feature = d < n_features
        centre = tl.load(shift + d, mask=feature, other=0.0)
        factor = tl.load(scale + d, mask=feature, other=0.0)
        raw = tl.load(
            x + at[:, None] * stride_x + d[None, :], mask=slice_[:, None] & feature[None, :], other=0.0
        )
        # a sum over one element: Triton 3.6 cannot compile a float64 product of values loaded as 16 bits
        raw = tl.sum(raw.to(tl.float64)[:, :, None], axis=2)
        u = (raw - centre[None, :]) * factor[None, :]  # (n, D)
        points = tl.load(
            z + m[:, None] * n_features + d[None, :], mask=point[:, None] & feature[None, :], other=0.0
        )
        product = tl.dot(points, tl.trans(u), product, out_dtype=tl.float64)
        squares += u * u
    half_u = tl.sum(squares, axis=1) * 0.5
    exponent = product - tl.load(half_z + m, mask=point, other=0.0)[:, None] - half_u[None, :]
    exponent = tl.where(exponent > 0.0, 0.0, exponent)  # above 0 by rounding; NaN stays NaN
    tl.store(
        out + m[:, None].to(tl.int64) * stride_out + s[None, :],
        tl.exp(exponent),
        mask=point[:, None] & slice_[None, :],
    )


def tiles(
    x: Tensor, rows: Tensor | None, shift: Tensor, scale: Tensor, z: Tensor, projection: Tensor,
    single: bool, tile: int, *, by_slices: bool,
) -> Iterator[tuple[int, int, Tensor, Tensor]]:  # fmt: skip
    """First slice, number of slices, Φ (P', w) in the dtype of the products, and the same in float64.

    If `by_slices`, it is Φᵀ (w, P'). Elements beyond P are 0, beyond n 0 or of an earlier tile.
    """
    n_slices, (n_points, n_features) = len(x if rows is None else rows), z.shape
    tile = min(tile, n_slices)
    K = z.new_empty(n_points, tile)
    shape = in_blocks(len(projection)), in_blocks(tile)
    whole = z.new_zeros(shape[::-1] if by_slices else shape)
    rounded = whole.float() if single else whole
    phi, less = ((one.mT if by_slices else one)[: len(projection)] for one in (whole, rounded))  # (P, w)
    half_z = z.square().sum(1) / 2
    for first in range(0, n_slices, tile):
        n = min(tile, n_slices - first)
        _kernel_tile[(triton.cdiv(n, BLOCK), triton.cdiv(n_points, BLOCK))](
            *(x, x if rows is None else rows, shift, scale, z, half_z, K, first, n),
            *(n_points, n_features, x.stride(0), tile),
            ORDERED=rows is not None,
            BLOCK=BLOCK,
            DEPTH=DEPTH // 2,
            num_warps=4,
            enable_fp_fusion=True,
        )
        torch.mm(projection, K[:, :n], out=phi[:, :n])
        if single:
            less[:, :n] = phi[:, :n]
            phi[:, :n] = less[:, :n]
        yield first, n, rounded, whole


def in_blocks(length: int) -> int:
    """Length rounded up to whole blocks."""
    return triton.cdiv(length, BLOCK) * BLOCK


def blocks_of(directions: int) -> tuple[int, int]:
    """Number of whole blocks, and rows of the narrow block after them, if any."""
    blocks, more = divmod(directions, BLOCK)
    return (blocks, NARROW) if 0 < more <= NARROW else (blocks + (more > 0), 0)
