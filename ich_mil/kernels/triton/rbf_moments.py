"""`ich_mil.kernels.rbf_gram.rbf_moments` in Triton: μ and Σ(Wφ)² of each slice, one tile of Φ at a time.

The order of every sum is fixed, so results are the same to the bit in every run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ich_mil.kernels.triton.float32 import multiply
from ich_mil.kernels.triton.rbf_tiles import BLOCK, DEPTH, blocks_of, in_blocks, tiles

SLICES = 128
"""Slices of a program, twice as many as tensor cores take at a time: W is converted once for both."""


@triton.jit
def _squares(
    at_s,
    at_i,
    n_directions,
    SINGLE: tl.constexpr,
    SLICES: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Σ_i (W φ)_i² of slices (s,) over some rows of W."""
    product = tl.zeros((SLICES, ROWS), tl.float32 if SINGLE else tl.float64)
    for k in range(0, n_directions, DEPTH):
        left = tl.load(at_s + k)
        right = tl.trans(tl.load(at_i + k))
        if SINGLE:
            product += multiply(left, right)
        else:
            product = tl.dot(left, right, product, out_dtype=tl.float64)
    once = product.to(tl.float64)
    return tl.sum(once * once, axis=1)


@triton.jit
def _spread_tile(
    phi, root, out, first, n, n_directions, blocks, width, stride_out, SINGLE: tl.constexpr,
    SLICES: tl.constexpr, BLOCK: tl.constexpr, FEW: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Σ_i (W φ)_i² of some slices and one replicate, over `blocks` blocks of rows of W and `FEW` more."""
    s = tl.program_id(0) * SLICES + tl.arange(0, SLICES)
    p = tl.arange(0, DEPTH)
    there = tl.minimum(s, n - 1)  # repeats of the last slice are not stored
    at_s = phi + there[:, None].to(tl.int64) * width + p[None, :]
    W = root + tl.program_id(1).to(tl.int64) * width * width
    total = tl.zeros((SLICES,), tl.float64)
    for block in range(0, blocks):
        at_i = W + (block * BLOCK + tl.arange(0, BLOCK))[:, None] * width + p[None, :]
        total += _squares(at_s, at_i, n_directions, SINGLE, SLICES, BLOCK, DEPTH)
    if FEW > 0:
        at_i = W + (blocks * BLOCK + tl.arange(0, FEW))[:, None] * width + p[None, :]
        total += _squares(at_s, at_i, n_directions, SINGLE, SLICES, FEW, DEPTH)
    tl.store(out + tl.program_id(1).to(tl.int64) * stride_out + first + s, total, mask=s < n)


@torch.library.custom_op("ich_mil::rbf_moments", mutates_args=())
def rbf_moments(
    x: Tensor, rows: Tensor | None, shift: Tensor, scale: Tensor, z: Tensor, projection: Tensor,
    mean: Tensor, root: Tensor, single: bool, tile: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """μ and Σ(Wφ)², each (R, N); `projection` includes the variance, `single` means float32 products."""
    (replicates, directions), n_slices = mean.shape, len(x if rows is None else rows)
    mu = z.new_empty(replicates, n_slices)
    spread = torch.empty_like(mu)
    width, (blocks, few) = in_blocks(directions), blocks_of(directions)
    W = torch.zeros(replicates, width, width, dtype=torch.float32 if single else z.dtype, device=z.device)
    W[:, :directions, :directions] = root
    with torch.cuda.device_of(x):
        for first, n, phi, phi64 in tiles(x, rows, shift, scale, z, projection, single, tile, by_slices=True):
            torch.mm(mean, phi64[:n, :directions].mT, out=mu[:, first : first + n])
            _spread_tile[(triton.cdiv(n, SLICES), replicates)](
                *(phi, W, spread, first, n, directions, blocks, width, n_slices),
                SINGLE=single,
                SLICES=SLICES,
                BLOCK=BLOCK,
                FEW=few,
                DEPTH=DEPTH // 2,
                num_warps=4,
                enable_fp_fusion=False,
            )
    return mu, spread


@rbf_moments.register_fake
def _(x, rows, shift, scale, z, projection, mean, root, single, tile):
    n_slices = x.shape[0] if rows is None else rows.shape[0]
    return tuple(z.new_empty(mean.shape[0], n_slices) for _ in range(2))
