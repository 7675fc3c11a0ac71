"""`rbf_gram` and `rbf_moments` on a GPU: the tiles of K and the sums over them, in Triton.

In and out: as `ich_mil.kernels.rbf_gram`, which is the definition. A tile of K (M, n) is made by one kernel,
a library product in float64 turns it into Φ (P, n), and a second kernel uses it up. Slices run along the rows
of a tile, so that both factors of a product are contiguous in the direction it sums over, as tensor cores
want them. What is read again and again, Φ in float32, stays in the card's second-level cache.

float32 products are made of three tf32 ones. A tensor core cuts off where float32 rounds, which over hundreds
of steps would cost two digits: it sums `DEPTH` slices, these sums are added in float32, which rounds, and
after `LONGEST` slices in float64. Every sum has one owner and one order, so results are the same to the bit
in every run.

Tiles lie in memory of whole blocks, zero beyond their rows and columns, so that they are read without masks,
16 bytes at a time. A block of G reads 16 KB a step for 0.26 MFlop; at what the tensor cores could do that is
more than the cache gives, so a program makes the blocks of two replicates from what it has read.

Shapes: N slices, n of a tile, w of its memory, D features, M inducing points, P directions (P' with zeros),
R replicates.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Rows and columns of a block of G: tensor cores want at least 64, and 200 directions fill 3 blocks of it."""

NARROW = 16
"""Columns of a block where no more are left over, 8 of 200 directions: a whole one would be made of zeros."""

DEPTH = 32
"""Slices, or directions, that the tensor cores sum; with half as many features at a time, and 4 warps, no
loop over float32 products spills a register on sm_90."""

LONGEST = 2048
"""Slices of a program, so 64 additions in float32: they lose 4e-7 of the largest sum, and a third of that is
left after some programs. Without a limit it would be 1e-6."""

PROGRAMS = 1056
"""Programs a launch aims at, 8 on each of 132 multiprocessors (H200), which hold 2 at a time: rows are split
until it has them, and the last ones to end are a small part."""

MOST_SPLITS = 44
"""And no further, unless parts were longer than `LONGEST`: each has sums (R, P, P) of its own. The 6 blocks
of 200 directions and of one replicate then fill the card once."""

PARTS = 64
"""Parts of a tile whose shares of g a library makes side by side: one product (R, n) by (n, P) might run in
no more programs than g has blocks. A divisor of `BLOCK`."""


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
        # a sum over one: Triton 3.6 cannot make a float64 product of what it sees come from 16 bits
        raw = tl.sum(raw.to(tl.float64)[:, :, None], axis=2)
        u = (raw - centre[None, :]) * factor[None, :]  # (n, D)
        points = tl.load(
            z + m[:, None] * n_features + d[None, :], mask=point[:, None] & feature[None, :], other=0.0
        )
        product = tl.dot(points, tl.trans(u), product, out_dtype=tl.float64)
        squares += u * u
    half_u = tl.sum(squares, axis=1) * 0.5
    exponent = product - tl.load(half_z + m, mask=point, other=0.0)[:, None] - half_u[None, :]
    exponent = tl.where(exponent > 0.0, 0.0, exponent)  # by rounding; a NaN stays one
    tl.store(
        out + m[:, None].to(tl.int64) * stride_out + s[None, :],
        tl.exp(exponent),
        mask=point[:, None] & slice_[None, :],
    )


@triton.jit
def _halves(x):
    """Two parts of x of the 11 bits that a tensor core sees: the nearest one, and what is left."""
    high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def _above(a, b):
    """Two blocks, one above the other; in registers that is no move."""
    return tl.reshape(tl.permute(tl.join(a, b), (2, 0, 1)), (2 * a.shape[0], a.shape[1]))


@triton.jit
def _beside(a, b):
    """Two blocks, one beside the other; in registers that is no move."""
    return tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), (a.shape[0], 2 * a.shape[1]))


@triton.jit
def _three(left, right):
    """A product of float32 from the halves of both, without that of the small ones, which come first.

    Two calls, not three: the program waits for the tensor cores after each.
    """
    high, low = _halves(left)
    top, bottom = _halves(right)
    product = tl.dot(_beside(low, high), _above(top, bottom), input_precision="tf32")
    return tl.dot(high, top, product, input_precision="tf32")


@triton.jit
def _gram_tile(
    phi,
    theta,
    sums,
    n,
    span,
    width,
    n_directions,
    replicates,
    blocks,
    SINGLE: tl.constexpr,
    TWO: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Add Φ diag(θ) Φᵀ of `span` slices to the sums of this part: one block.

    With as many `COLUMNS` as rows, on or below the diagonal of so many `blocks`; with fewer, of the columns
    behind them, and what is right of the diagonal goes where it stands mirrored. If `TWO`, of a replicate
    and, below it, of the next one.
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
        # an odd last one is made twice and stored once
        step = tl.where(replicate + 1 < replicates, width, 0)
        total = tl.zeros((ROWS, COLUMNS), tl.float32 if SINGLE else tl.float64)
        for k in range(start, end, DEPTH):
            left = tl.load(at_i + k)
            right = tl.trans(tl.load(at_j + k))
            weighted = left * tl.load(weights + k)[None, :]
            if TWO:
                weighted = _above(weighted, left * tl.load(weights + step + k)[None, :])
            if SINGLE:
                total += _three(weighted, right)
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
                product += _three(left, right)
            else:
                product = tl.dot(left, right, product, out_dtype=tl.float64)
        once = product.to(tl.float64)
        total += tl.sum(once * once, axis=1)
    tl.store(out + tl.program_id(1).to(tl.int64) * stride_out + first + s, total, mask=s < n)


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
    """First slice, number of slices, Φ (P', w) in the dtype of the products, and the same in float64.

    What lies beyond P is 0, and beyond n 0 or of an earlier tile.
    """
    n_slices, (n_points, n_features) = len(x if rows is None else rows), z.shape
    tile = min(tile, n_slices)
    K = z.new_empty(n_points, tile)
    whole = z.new_zeros(_in_blocks(len(projection)), _in_blocks(tile))
    phi = whole[: len(projection)]
    rounded = whole.float() if single else whole
    half_z = z.square().sum(1) / 2
    for first in range(0, n_slices, tile):
        n = min(tile, n_slices - first)
        _kernel_tile[(triton.cdiv(n, BLOCK), triton.cdiv(n_points, BLOCK))](
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
            rounded[: len(phi), :n] = phi[:, :n]
            phi[:, :n] = rounded[: len(phi), :n]
        yield first, n, rounded, whole


def _in_blocks(length: int) -> int:
    """The length of whole blocks."""
    return triton.cdiv(length, BLOCK) * BLOCK


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
    directions, most = len(projection), min(tile, n_slices)
    two = replicates > 1
    pairs = triton.cdiv(replicates, 2) if two else 1
    few = 0 < directions % BLOCK <= NARROW
    blocks = directions // BLOCK if few else triton.cdiv(directions, BLOCK)
    launches = [(blocks * blocks, BLOCK)] * (blocks > 0) + [(blocks + 1, NARROW)] * few
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
            for programs, columns in launches:
                _gram_tile[(programs, pairs, splits)](
                    phi,
                    weights,
                    sums,
                    triton.cdiv(n, DEPTH) * DEPTH,
                    triton.cdiv(triton.cdiv(n, splits), DEPTH) * DEPTH,
                    width,
                    directions,
                    replicates,
                    blocks,
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
    padded = _in_blocks(directions)
    W = torch.zeros(replicates, padded, padded, dtype=torch.float32 if single else z.dtype, device=z.device)
    W[:, :directions, :directions] = root
    with torch.cuda.device_of(x):
        for first, n, phi, phi64 in _tiles(x, rows, shift, scale, z, projection, single, tile):
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
