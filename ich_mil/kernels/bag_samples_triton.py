"""Independent samples of scans as one Triton kernel; see `ich_mil.kernels.bag_samples`.

A program owns a scan, 128 of its samples and a replicate. Its lanes are samples: they walk through the slices
together, each keeping the scan's sum, and after each slice the lanes' mean and sum of squares are what these
samples say of the slice. A second kernel joins these parts in the order of the samples (Chan, Golub and
LeVeque 1979). Nothing is shared between programs, so what comes out for a scan depends, to the bit, on
nothing else. float64, without contraction to fused multiply-adds.

Shapes: R replicates, B scans, N slices, L samples, C parts of 128 samples.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ich_mil.kernels.counter_triton import four_normals

LANES = 32
"""Lanes of a program, each of which has a counter, that is four samples. One warp: sums over lanes need no
shared memory, and 490 scans of 1,000 samples make 3,920 programs, enough for 132 SMs."""

PART = 4 * LANES
"""Samples of a program."""

COLUMNS = 128
"""Slices and scans of a program that joins parts."""


@triton.jit
def _log1p(e):
    """log(1 + e) for -1 < e ≤ 1: what rounding takes from e is given back."""
    u = 1.0 + e
    return tl.log(u) - ((u - 1.0) - e) / u


@triton.jit
def _sigmoid(f):
    e = tl.exp(-tl.abs(f))
    return tl.where(f >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def _join(so_far, f, MAX: tl.constexpr):
    """The scan's running maximum of f, or sum of log(1 + exp f)."""
    if MAX:
        return tl.maximum(so_far, f)
    return so_far + (tl.maximum(f, 0.0) + _log1p(tl.exp(-tl.abs(f))))


@triton.jit
def _logit(scan, MAX: tl.constexpr):
    """The logit of a scan's probability, s + log(1 - exp(-s)) for a sum s."""
    if MAX:
        return scan
    s = tl.maximum(scan, 1e-300)
    u = tl.exp(-s)
    # 1 - u cancels for a small s; (1 - u) / -log u, both of the same rounded u, does not (Kahan)
    ratio = (1.0 - u) / -tl.log(tl.where((u > 0.0) & (u < 1.0), u, 0.5))
    p = tl.where(s > 1.0, 1.0 - u, tl.where(u < 1.0, ratio, 1.0) * s)
    return s + tl.log(p)


@triton.jit
def _mean_and_squares(p, there, count):
    """Mean of the samples that are there, and Σ (p - mean)²."""
    mean = tl.sum(tl.where(there, p, 0.0)) / count
    apart = tl.where(there, p - mean, 0.0)
    return mean, tl.sum(apart * apart)


@triton.jit(do_not_specialize=["seed", "samples", "n_bags", "n"])
def _draw(
    mu, sigma, offsets, keys, seed, means, squares, logits, samples, n_bags, n,
    MAX: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    bag, part, replicate = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, key = tl.load(offsets + bag), tl.load(keys + bag)
    size = tl.load(offsets + bag + 1) - start
    block = part.to(tl.int64) * LANES + tl.arange(0, LANES)
    sample = part * (4 * LANES) + tl.arange(0, 4 * LANES)
    there = sample < samples
    count = tl.minimum(samples - part * (4 * LANES), 4 * LANES).to(tl.float64)
    of_slices = replicate * n + start
    own = (part.to(tl.int64) * tl.num_programs(2) + replicate) * (n + n_bags)  # its row of (C, R, N + B)

    scan = tl.full((4 * LANES,), float("-inf") if MAX else 0.0, tl.float64)
    for i in range(size):
        z0, z1, z2, z3 = four_normals(block * size + i, seed, key)
        z = tl.interleave(tl.interleave(z0, z2), tl.interleave(z1, z3))  # in the order of the samples
        f = tl.load(mu + of_slices + i) + tl.load(sigma + of_slices + i) * z
        scan = _join(scan, f, MAX)
        mean, square = _mean_and_squares(_sigmoid(f), there, count)
        tl.store(means + own + start + i, mean)
        tl.store(squares + own + start + i, square)

    logit = _logit(scan, MAX)
    mean, square = _mean_and_squares(_sigmoid(logit), there, count)
    tl.store(means + own + n + bag, mean)
    tl.store(squares + own + n + bag, square)
    tl.store(logits + (replicate * n_bags + bag) * samples + sample, logit, mask=there)


@triton.jit(do_not_specialize=["columns", "parts", "samples"])
def _join_parts(
    means, squares, mean_out, variance_out, columns, parts, samples, PART: tl.constexpr, COLUMNS: tl.constexpr
):
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < columns
    mean = tl.load(means + column, mask=there, other=0.0)
    square = tl.load(squares + column, mask=there, other=0.0)
    at = column
    for part in range(1, parts):
        at += columns
        more = tl.minimum(samples - part * PART, PART).to(tl.float64)
        share = more / (part * PART + more)
        step = tl.load(means + at, mask=there, other=0.0) - mean
        mean += step * share
        square += tl.load(squares + at, mask=there, other=0.0) + step * step * share * (part * PART)
    tl.store(mean_out + column, mean, mask=there)
    tl.store(variance_out + column, square / samples, mask=there)


@torch.library.custom_op("ich_mil::bag_samples", mutates_args=())
def sample(
    mu: Tensor, sigma: Tensor, offsets: Tensor, keys: Tensor, samples: int, seed: int, largest: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance (R, N + B), slices before scans, and scan logits (R, B, L).

    Args:
        mu: (R, N) float64.
        sigma: (R, N) float64.
        offsets: (B + 1,) int64.
        keys: (B,) int64.
        samples: L.
        seed: as an int64.
        largest: the rule is `max`; otherwise noisy-or.

    Returns:
        (R, N + B), (R, N + B), (R, B, L).
    """
    (replicates, n), n_bags = mu.shape, len(keys)
    parts = triton.cdiv(samples, PART)
    means, squares = mu.new_empty(2, parts, replicates, n + n_bags)
    mean, variance = mu.new_empty(replicates, n + n_bags), mu.new_empty(replicates, n + n_bags)
    logits = mu.new_empty(replicates, n_bags, samples)
    columns = mean.numel()
    with torch.cuda.device_of(mu):
        _draw[n_bags, parts, replicates](
            mu.contiguous(),
            sigma.contiguous(),
            offsets.contiguous(),
            keys.contiguous(),
            seed,
            means,
            squares,
            logits,
            samples,
            n_bags,
            n,
            largest,
            LANES,
            num_warps=1,
            enable_fp_fusion=False,
        )
        _join_parts[(triton.cdiv(columns, COLUMNS),)](
            means, squares, mean, variance, columns, parts, samples, PART, COLUMNS, enable_fp_fusion=False
        )
    return mean, variance, logits


@sample.register_fake
def _(
    mu: Tensor, sigma: Tensor, offsets: Tensor, keys: Tensor, samples: int, seed: int, largest: bool
) -> tuple[Tensor, Tensor, Tensor]:
    (replicates, n), n_bags = mu.shape, len(keys)
    shape = replicates, n + n_bags
    return mu.new_empty(shape), mu.new_empty(shape), mu.new_empty(replicates, n_bags, samples)
