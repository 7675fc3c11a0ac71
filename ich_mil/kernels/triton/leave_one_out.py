"""Gauss-Seidel or Jacobi sweep over all bags as a Triton kernel; see `ich_mil.kernels.leave_one_out`.

A thread passes through the instances of a bag twice: it sums log(1 - π), then updates one π at a time. Bags
are sorted by decreasing length and instances by position, so that neighbouring threads read neighbouring rows
and a program ends with the longest of its bags. Threads share nothing, so the result of a bag is the same to
the bit in any batch. float64, without contraction of products and sums except in `exp` and `log1p`.

A position costs about as much time in instructions as in memory. A thread therefore has two bags: constants
are loaded once for both, and one is computed while the other waits for memory.

Shapes: R replicates, B bags, N instances, P positions of the longest bag.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ich_mil.kernels.triton.float64 import exp, log1p

BAGS = 64
"""Bags of one program, a warp: few, so that small sets too occupy several SMs."""


@triton.jit
def _log_sigmoid(x):
    """-log(1 + e^-x) = min(x, 0) - log(1 + e^-|x|)."""
    return tl.minimum(x, 0.0) - log1p(exp(-tl.abs(x)))


# if sizes and pulls were read in pairs, their masks would have another thread layout than unaligned rows
@triton.jit(do_not_specialize_on_alignment=["sizes", "pull"])
def _sweep(log_not, mu, pull, starts, sizes, a, new, n_bags, n, NEWEST: tl.constexpr, BAGS: tl.constexpr):
    first = tl.program_id(0) * BAGS
    bag = first + tl.arange(0, BAGS)
    here = bag < n_bags
    replicate = tl.program_id(1).to(tl.int64)
    row = replicate * n + bag  # of the instance at position 0
    size = tl.load(sizes + bag, mask=here, other=0)
    strength = tl.load(pull + replicate * n_bags + bag, mask=here, other=0.0)
    longest = tl.load(sizes + first)

    total = tl.zeros((BAGS,), tl.float64)
    for position in range(longest):
        at = row + tl.load(starts + position)
        total += tl.load(log_not + at, mask=position < size, other=0.0)
    for position in range(longest):
        at = row + tl.load(starts + position)
        there = position < size
        others = total - tl.load(log_not + at, mask=there, other=0.0)
        product = exp(others if NEWEST else tl.minimum(others, 0.0))
        logit = tl.load(mu + at, mask=there, other=0.0) + strength * product
        value = _log_sigmoid(-logit)
        tl.store(a + at, logit, mask=there)
        tl.store(new + at, value, mask=there)
        if NEWEST:
            total = tl.where(there, others + value, total)


@torch.library.custom_op("ich_mil::bag_leave_one_out", mutates_args=())
def sweep(
    log_not: Tensor, mu: Tensor, pull: Tensor, starts: Tensor, sizes: Tensor, newest: bool
) -> tuple[Tensor, Tensor]:
    """New a = logit π and log(1 - π), each (R, N), in the order of `Turns`; Gauss-Seidel if `newest`.

    log_not, mu (R, N) and pull (R, B), by rank, are float64; `starts` (P,) and `sizes` (B,) are of `Turns`.
    """
    replicates, n = mu.shape
    n_bags = len(sizes)
    a, new = mu.new_empty(mu.shape), mu.new_empty(mu.shape)
    with torch.cuda.device_of(mu):
        _sweep[triton.cdiv(n_bags, BAGS), replicates](
            *(part.contiguous() for part in (log_not, mu, pull)),
            *(starts, sizes, a, new, n_bags, n, newest, BAGS),
            num_warps=1,
            enable_fp_fusion=False,
        )
    return a, new


@sweep.register_fake
def _(
    log_not: Tensor, mu: Tensor, pull: Tensor, starts: Tensor, sizes: Tensor, newest: bool
) -> tuple[Tensor, Tensor]:
    return mu.new_empty(mu.shape), mu.new_empty(mu.shape)
