"""`ich_mil.kernels.rbf_gram.rbf_gram` in Triton: Φ diag(θ) Φᵀ and Φ r, one tile of Φ at a time.

A kernel computes a tile of K (M, n), a library product in float64 gives Φ (P, n), which the next tile
overwrites, and a second kernel adds Φ diag(θ) Φᵀ. The memory of a tile is padded with zeros to whole blocks,
so that it is read without masks, 16 bytes at a time. Φ in float32 stays in the second-level cache.

Of float32 products, tensor cores sum `DEPTH` slices, these sums are added in float32, and after `LONGEST`
slices in float64. The order of every sum is fixed, so results are the same to the bit in every run.

A block of G reads 16 KB per step for 0.26 MFlop, which at the rate of the tensor cores is more than the cache
bandwidth. A program therefore computes the blocks of two replicates from the same reads.

Shapes: N slices, n of a tile, w of its memory, D features, M inducing points, P directions (P' with zeros),
R replicates.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from ich_mil.kernels.triton.float32 import above, multiply

BLOCK = 64
"""Rows and columns of the block of a program: tensor cores need at least 64, and 200 directions fill 3."""

NARROW = 16
"""Columns of a block for a small remainder, such as 8 of 200 directions."""

DEPTH = 32
"""Slices that the tensor cores sum; half as many features. With 4 warps no loop over float32 products then
spills a register on sm_90."""

LONGEST = 2048
"""Maximum number of slices of a program, 64 additions in float32: they lose 4e-7 of the largest sum, a third
of it after some programs. Without a limit the loss would be 1e-6."""

PROGRAMS = 1056
"""Number of programs of a launch, 8 for each of 132 multiprocessors (H200), which hold 2 at a time: rows are
split until there are as many, so that the last ones to end are a small part."""

MOST_SPLITS = 44
"""Maximum number of splits (unless parts are longer than `LONGEST`): each has its own sums (R, P, P). The 6
blocks of 200 directions and of one replicate then fill the GPU once."""

PARTS = 64
"""Parts of a tile whose contributions to g are computed as one batch: a single product (R, n) by (n, P) might
use as few multiprocessors as g has blocks. A divisor of `BLOCK`."""


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


@triton.jit
def _gram_tile(
    phi, theta, sums, n, span, width, n_directions, replicates, blocks, SINGLE: tl.constexpr,
    TWO: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Add Φ diag(θ) Φᵀ of `span` slices to the sums of this part: one block.

    With as many `COLUMNS` as rows it is a block on or below the diagonal of `blocks` blocks; with fewer, a
    block of the remaining columns, stored transposed. If `TWO`, the block of the next replicate is below it.
    """
    if COLUMNS == BLOCK:
        row, column = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    else:
        row, column = tl.program_id(0), blocks
    if COLUMNS < BLOCK or column <= row:
        ROWS: tl.constexpr = 2 * BLOCK if TWO else BLOCK
        i = row * BLOCK + tl.arange(0, BLOCK)
        j = column * BLOCK + tl.arange(0, COLUMNS)
        s = tl.arange(0, DEPTH)
        at_i = phi + i[:, None].to(tl.int64) * width + s[None, :]
        at_j = phi + j[:, None].to(tl.int64) * width + s[None, :]
        start = tl.program_id(2) * span
        end = tl.minimum(start + span, n)
        replicate = tl.program_id(1) * (2 if TWO else 1)
        weights = theta + replicate * width + s
        # an odd last replicate is computed twice and stored once
        step = tl.where(replicate + 1 < replicates, width, 0)
        total = tl.zeros((ROWS, COLUMNS), tl.float32 if SINGLE else tl.float64)
        for k in range(start, end, DEPTH):
            left = tl.load(at_i + k)
            right = tl.trans(tl.load(at_j + k))
            weighted = left * tl.load(weights + k)[None, :]
            if TWO:
                weighted = above(weighted, left * tl.load(weights + step + k)[None, :])
            if SINGLE:
                total += multiply(weighted, right)
            else:
                total = tl.dot(weighted, right, total, out_dtype=tl.float64)
        inside = (i < n_directions)[:, None] & (j < n_directions)[None, :]
        matrix = (tl.program_id(2) * replicates + replicate).to(tl.int64)
        at = sums + matrix * n_directions * n_directions
        if COLUMNS == BLOCK:
            at += i[:, None] * n_directions + j[None, :]
        else:
            at += j[None, :] * n_directions + i[:, None]
        if TWO:
            total, other = tl.split(tl.permute(tl.reshape(total, (2, BLOCK, COLUMNS)), (1, 2, 0)))
            below = at + n_directions * n_directions
            last = (i < tl.where(step > 0, n_directions, 0))[:, None] & (j < n_directions)[None, :]
            tl.store(below, tl.load(below, mask=last, other=0.0) + other.to(tl.float64), mask=last)
        tl.store(at, tl.load(at, mask=inside, other=0.0) + total.to(tl.float64), mask=inside)


def _tiles(
    x: Tensor, rows: Tensor | None, shift: Tensor, scale: Tensor, z: Tensor, projection: Tensor,
    single: bool, tile: int,
) -> Iterator[tuple[int, int, Tensor, Tensor]]:  # fmt: skip
    """First slice, number of slices, Φ (P', w) in the dtype of the products, and the same in float64.

    Elements beyond P are 0, beyond n 0 or of an earlier tile.
    """
    n_slices, (n_points, n_features) = len(x if rows is None else rows), z.shape
    tile = min(tile, n_slices)
    K = z.new_empty(n_points, tile)
    padded = z.new_zeros(_in_blocks(len(projection)), _in_blocks(tile))
    rounded = padded.float() if single else padded
    phi = padded[: len(projection)]
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
            rounded.copy_(padded)
            padded.copy_(rounded)
        yield first, n, rounded, padded


def _in_blocks(length: int) -> int:
    """Length rounded up to whole blocks."""
    return triton.cdiv(length, BLOCK) * BLOCK


def _blocks_of(directions: int) -> tuple[int, int]:
    """Number of whole blocks, and columns of the narrow block after them, if any."""
    blocks, more = divmod(directions, BLOCK)
    return (blocks, NARROW) if 0 < more <= NARROW else (blocks + (more > 0), 0)


@torch.library.custom_op("ich_mil::rbf_gram", mutates_args=())
def rbf_gram(
    x: Tensor, rows: Tensor | None, shift: Tensor, scale: Tensor, z: Tensor, projection: Tensor,
    theta: Tensor, target: Tensor, single: bool, tile: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """G (R, P, P) and g (R, P); `projection` includes the variance, `single` means float32 products."""
    replicates, n_slices = theta.shape
    directions, most = len(projection), min(tile, n_slices)
    two = replicates > 1
    pairs = triton.cdiv(replicates, 2) if two else 1
    blocks, few = _blocks_of(directions)
    launches = [(blocks * blocks, BLOCK)] * (blocks > 0) + [(blocks + 1, few)] * (few > 0)
    launched = max(1, blocks * (blocks + 1) // 2) * pairs
    splits = max(1, min(MOST_SPLITS, PROGRAMS // launched, most // (8 * DEPTH)), triton.cdiv(most, LONGEST))
    sums = z.new_zeros(splits, replicates, directions, directions)
    width = _in_blocks(most)
    weights = torch.zeros(replicates, width, dtype=torch.float32 if single else z.dtype, device=z.device)
    targets = z.new_zeros(replicates, PARTS, width // PARTS)
    g = z.new_zeros(PARTS, replicates, directions)
    with torch.cuda.device_of(x):
        for first, n, phi, phi64 in _tiles(x, rows, shift, scale, z, projection, single, tile):
            for part, whole in ((weights, theta), (targets.flatten(1), target)):
                part[:, :n] = whole[:, first : first + n]
                part[:, n:] = 0
            end, span = (triton.cdiv(rows_of, DEPTH) * DEPTH for rows_of in (n, triton.cdiv(n, splits)))
            for programs, columns in launches:
                _gram_tile[(programs, pairs, splits)](
                    *(phi, weights, sums, end, span, width, directions, replicates, blocks),
                    SINGLE=single,
                    TWO=two,
                    BLOCK=BLOCK,
                    COLUMNS=columns,
                    DEPTH=DEPTH,
                    num_warps=4,
                    enable_fp_fusion=False,
                )
            parts = phi64[:directions].unflatten(1, (PARTS, -1))
            g.baddbmm_(targets.transpose(0, 1), parts.permute(1, 2, 0))
    lower = sums.sum(0).tril()
    return lower + lower.tril(-1).mT, g.sum(0)


@rbf_gram.register_fake
def _(x, rows, shift, scale, z, projection, theta, target, single, tile):
    replicates, directions = theta.shape[0], projection.shape[0]
    return z.new_empty(replicates, directions, directions), z.new_empty(replicates, directions)
