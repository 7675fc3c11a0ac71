"""`rbf_moments` on a GPU: μ and Σ(Wφ)² of each slice, a tile of Φ after the other, in Triton.

In and out: as `ich_mil.kernels.rbf_gram`, which is the definition; tiles come from `rbf_tiles_triton`. Every
sum has one owner and one order, so results are the same to the bit in every run.

Shapes: N slices, n of a tile, w of its memory, D features, M inducing points, P directions (P' with zeros),
R replicates.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ich_mil.kernels.float32_triton import multiply
from ich_mil.kernels.rbf_tiles_triton import BLOCK, DEPTH, in_blocks, tiles


@triton.jit
def _spread_tile(
    phi,
    root,
    out,
    first,
    n,
    width,
    n_directions,
    stride_out,
    SINGLE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Σ_i (W φ)_i² of a block of slices for one replicate."""
    s = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p = tl.arange(0, DEPTH)
    at_s = phi + p[:, None].to(tl.int64) * width + s[None, :]
    rows = tl.cdiv(n_directions, BLOCK) * BLOCK
    W = root + tl.program_id(1).to(tl.int64) * rows * rows
    total = tl.zeros((BLOCK,), tl.float64)
    for top in range(0, n_directions, BLOCK):
        at_i = W + (top + tl.arange(0, BLOCK))[:, None] * rows + p[None, :]
        product = tl.zeros((BLOCK, BLOCK), tl.float32 if SINGLE else tl.float64)
        for k in range(0, n_directions, DEPTH):
            # what the tensor cores read from memory must lie along the sum: the slices come from registers
            left = tl.trans(tl.load(at_s + tl.cast(k, tl.int64) * width))
            right = tl.trans(tl.load(at_i + k))
            if SINGLE:
                product += multiply(left, right)
            else:
                product = tl.dot(left, right, product, out_dtype=tl.float64)
        once = product.to(tl.float64)
        total += tl.sum(once * once, axis=1)
    tl.store(out + tl.program_id(1).to(tl.int64) * stride_out + first + s, total, mask=s < n)


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
    padded = in_blocks(directions)
    W = torch.zeros(replicates, padded, padded, dtype=torch.float32 if single else z.dtype, device=z.device)
    W[:, :directions, :directions] = root
    with torch.cuda.device_of(x):
        for first, n, phi, phi64 in tiles(x, rows, shift, scale, z, projection, single, tile):
            torch.mm(mean, phi64[:directions, :n], out=mu[:, first : first + n])
            _spread_tile[(triton.cdiv(n, BLOCK), replicates)](
                phi,
                W,
                spread,
                first,
                n,
                phi.stride(0),
                directions,
                n_slices,
                SINGLE=single,
                BLOCK=BLOCK,
                DEPTH=DEPTH,
                num_warps=4,
                enable_fp_fusion=False,
            )
    return mu, spread


@rbf_moments.register_fake
def _(x, rows, shift, scale, z, projection, mean, root, single, tile):
    n_slices = x.shape[0] if rows is None else rows.shape[0]
    return tuple(z.new_empty(mean.shape[0], n_slices) for _ in range(2))
