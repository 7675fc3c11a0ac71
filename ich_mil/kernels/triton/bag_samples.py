"""Independent samples of scans as a Triton kernel; see `ich_mil.kernels.bag_samples`.

A program computes 128 samples of one scan and replicate. A lane has the four samples of one counter, each in
a variable of its own, so that common terms are computed once. Lanes walk through the slices together; after
each slice the mean and the sum of squares over the 128 samples are stored. A second kernel joins these parts
in the order of the samples (Chan, Golub and LeVeque 1979). Programs share nothing, so the result of a scan is
the same to the bit in any batch. float64, without contraction of products and sums except in `fma`.

Shapes: R replicates, B scans, N slices, L samples, C parts of 128 samples.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ich_mil.kernels.triton.counter import four_normals
from ich_mil.kernels.triton.float64 import exp, inverse

LANES = 32
"""Lanes of a program. One warp: sums over lanes need no shared memory, and 490 scans of 1,000 samples make
3,920 programs, enough for 132 SMs."""

PART = 4 * LANES
"""Samples of a program."""

MOST = tl.constexpr(1000)
"""Number of factors up to 2 that are multiplied before the logarithm is taken: float64 ends at 2¹⁰²⁴."""

COLUMNS = 128
"""Slices and scans of a program of `_join_parts`."""


@triton.jit
def _log_of_more(e):
    """log(1 + e) for e ≥ 0, corrected for the rounding of 1 + e."""
    u = 1.0 + e
    return tl.log(u) - ((u - 1.0) - e) / u


@triton.jit
def _sigmoid(f):
    e = tl.exp(-tl.abs(f))
    return tl.where(f >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def _join(above, product, f, e, d, MAX: tl.constexpr):
    """Add a slice to the scan's maximum of f, or to the two parts of its Σ log(1 + exp f).

    They are 2 Σ max(f, 0) and Π(1 + e) - 1 with e = exp(-|f|), d = 1 + e; the sum is half of the first plus
    log(1 + second). The product less 1 keeps its digits where all e are small.
    """
    if MAX:
        return tl.maximum(above, f), product
    return above + (f + tl.abs(f)), tl.fma(product, d, e)


@triton.jit
def _logit(scan, MAX: tl.constexpr):
    """Logit of a scan's probability, s + log(1 - exp(-s)) for a sum s."""
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
    """Mean of the samples in the mask `there`, and Σ (p - mean)²."""
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
    first = part * (4 * LANES) + 4 * tl.arange(0, LANES)
    in0, in1, in2, in3 = first < samples, first + 1 < samples, first + 2 < samples, first + 3 < samples
    count = tl.minimum(samples - part * (4 * LANES), 4 * LANES).to(tl.float64)
    of_slices = replicate * n + start
    own = (part.to(tl.int64) * tl.num_programs(2) + replicate) * (n + n_bags)  # its row of (C, R, N + B)

    above0 = tl.full((LANES,), float("-inf") if MAX else 0.0, tl.float64)
    above1, above2, above3 = above0, above0, above0
    zero = tl.zeros((LANES,), tl.float64)
    sum0, sum1, sum2, sum3 = zero, zero, zero, zero
    for begin in range(0, size, MOST):
        product0, product1, product2, product3 = zero, zero, zero, zero
        for i in range(begin, tl.minimum(begin + MOST, size)):
            z0, z1, z2, z3 = four_normals(block * size + i, seed, key)
            m, s = tl.load(mu + of_slices + i), tl.load(sigma + of_slices + i)
            f0, f1 = tl.fma(s + zero, z0, m + zero), tl.fma(s + zero, z1, m + zero)
            f2, f3 = tl.fma(s + zero, z2, m + zero), tl.fma(s + zero, z3, m + zero)
            e0, e1, e2, e3 = exp(-tl.abs(f0)), exp(-tl.abs(f1)), exp(-tl.abs(f2)), exp(-tl.abs(f3))
            d0, d1, d2, d3 = 1.0 + e0, 1.0 + e1, 1.0 + e2, 1.0 + e3
            above0, product0 = _join(above0, product0, f0, e0, d0, MAX)
            above1, product1 = _join(above1, product1, f1, e1, d1, MAX)
            above2, product2 = _join(above2, product2, f2, e2, d2, MAX)
            above3, product3 = _join(above3, product3, f3, e3, d3, MAX)
            # four reciprocals from one; where all d are 1, so are they
            d01, d23 = d0 * d1, d2 * d3
            r = inverse(d01 * d23)
            r01, r23 = r * d23, r * d01
            p0 = tl.where(f0 >= 0, 1.0, e0) * (r01 * d1)
            p1 = tl.where(f1 >= 0, 1.0, e1) * (r01 * d0)
            p2 = tl.where(f2 >= 0, 1.0, e2) * (r23 * d3)
            p3 = tl.where(f3 >= 0, 1.0, e3) * (r23 * d2)
            p01 = tl.where(in0, p0, 0.0) + tl.where(in1, p1, 0.0)
            p23 = tl.where(in2, p2, 0.0) + tl.where(in3, p3, 0.0)
            mean = tl.sum(p01 + p23) / count
            mean = tl.where(mean > 1.0, 1.0, mean)  # each p is rounded four times
            a0, a1 = tl.where(in0, p0 - mean, 0.0), tl.where(in1, p1 - mean, 0.0)
            a2, a3 = tl.where(in2, p2 - mean, 0.0), tl.where(in3, p3 - mean, 0.0)
            square = tl.sum(tl.fma(a0, a0, a1 * a1) + tl.fma(a2, a2, a3 * a3))
            tl.store(means + own + start + i, mean)
            tl.store(squares + own + start + i, square)
        if not MAX:
            sum0, sum1 = sum0 + _log_of_more(product0), sum1 + _log_of_more(product1)
            sum2, sum3 = sum2 + _log_of_more(product2), sum3 + _log_of_more(product3)
    if not MAX:
        above0, above1 = 0.5 * above0 + sum0, 0.5 * above1 + sum1
        above2, above3 = 0.5 * above2 + sum2, 0.5 * above3 + sum3

    # in the order of the samples
    scan = tl.interleave(tl.interleave(above0, above2), tl.interleave(above1, above3))
    sample = part * (4 * LANES) + tl.arange(0, 4 * LANES)
    there = sample < samples
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
    """Mean and variance (R, N + B), slices first, and scan logits (R, B, L); rule `max` if `largest`."""
    (replicates, n), n_bags = mu.shape, len(keys)
    parts = triton.cdiv(samples, PART)
    means, squares = mu.new_empty(2, parts, replicates, n + n_bags)
    mean, variance = mu.new_empty(replicates, n + n_bags), mu.new_empty(replicates, n + n_bags)
    logits = mu.new_empty(replicates, n_bags, samples)
    columns = mean.numel()
    with torch.cuda.device_of(mu):
        _draw[n_bags, parts, replicates](
            *(part.contiguous() for part in (mu, sigma, offsets, keys)),
            *(seed, means, squares, logits, samples, n_bags, n, largest, LANES),
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
