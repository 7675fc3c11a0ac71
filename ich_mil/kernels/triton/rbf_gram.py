"""`ich_mil.kernels.rbf_gram.rbf_gram` in Triton: Φ diag(θ) Φᵀ and Φ r, one tile of Φ at a time.

Of float32 products, tensor cores sum `DEPTH` slices, these sums are added in float32, and after `LONGEST`
slices in float64. The order of every sum is fixed, so results are the same to the bit in every run.

A block of G reads 16 KB per step for 0.26 MFlop, which at the rate of the tensor cores is more than the cache
bandwidth. A program therefore computes the blocks of two replicates from the same reads.

Shapes: N slices, n of a tile, w of its memory, D features, M inducing points, P directions (P' with zeros),
R replicates.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ich_mil.kernels.triton.float32 import above, multiply
from ich_mil.kernels.triton.rbf_tiles import BLOCK, DEPTH, blocks_of, in_blocks, tiles

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
    blocks, few = blocks_of(directions)
    launches = [(blocks * blocks, BLOCK)] * (blocks > 0) + [(blocks + 1, few)] * (few > 0)
    launched = max(1, blocks * (blocks + 1) // 2) * pairs
    splits = max(1, min(MOST_SPLITS, PROGRAMS // launched, most // (8 * DEPTH)), triton.cdiv(most, LONGEST))
    sums = z.new_zeros(splits, replicates, directions, directions)
    width = in_blocks(most)
    weights = torch.zeros(replicates, width, dtype=torch.float32 if single else z.dtype, device=z.device)
    targets = z.new_zeros(replicates, PARTS, width // PARTS)
    g = z.new_zeros(PARTS, replicates, directions)
    with torch.cuda.device_of(x):
        for first, n, phi, phi64 in tiles(
            x, rows, shift, scale, z, projection, single, tile, by_slices=False
        ):
            for part, whole in ((weights, theta), (targets.flatten(1), target)):
                part[:, :n] = whole[:, first : first + n]
                part[:, n:] = 0
            for programs, columns in launches:
                _gram_tile[(programs, pairs, splits)](
                    *(phi, weights, sums, triton.cdiv(n, DEPTH) * DEPTH),
                    *(
                        triton.cdiv(triton.cdiv(n, splits), DEPTH) * DEPTH,
                        width,
                        directions,
                        replicates,
                        blocks,
                    ),
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
