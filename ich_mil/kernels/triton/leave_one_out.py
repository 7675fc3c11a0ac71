"""One sweep over all bags, Gauss-Seidel or Jacobi, as one Triton kernel; see `ich_mil.kernels.leave_one_out`.

A bag is done by one thread, which goes through its instances to sum log(1 - π), and then through them again,
one π at a time. Bags lie by falling length and instances position by position, so that threads beside each
other read rows beside each other and a program ends when the longest of its bags does. No thread sees what
another one does: what comes out for a bag depends, to the bit, on nothing else. float64; a product and a sum
are rounded in one within `exp` and `log1p`, and nowhere else.

A position costs about as much time in instructions as in memory. So a thread has two bags: it loads constants
once for both, and works on one while the other waits.

Shapes: R replicates, B bags, N instances, P positions of the longest bag.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ich_mil.kernels.triton.float64 import exp, log1p

BAGS = 64
"""Bags of one program, a warp: few, so that small sets too are shared among SMs."""


@triton.jit
def _log_sigmoid(x):
    """-log(1 + e^-x) = min(x, 0) - log(1 + e^-|x|)."""
    return tl.minimum(x, 0.0) - log1p(exp(-tl.abs(x)))


# were sizes and pulls read in pairs, masks would lie otherwise in the threads than rows, which begin anywhere
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
    """New a = logit π and log(1 - π), each (R, N), in the order of `Turns`.

    Args:
        log_not: (R, N) float64.
        mu: (R, N) float64.
        pull: (R, B) float64, by rank.
        starts: (P,) int64, row of the first instance at each position.
        sizes: (B,) int64, instances of each bag, falling.
        newest: one π after the other (Gauss-Seidel), not all from the old ones (Jacobi).

    Returns:
        (R, N) and (R, N).
    """
    replicates, n = mu.shape
    n_bags = len(sizes)
    a, new = mu.new_empty(mu.shape), mu.new_empty(mu.shape)
    with torch.cuda.device_of(mu):
        _sweep[triton.cdiv(n_bags, BAGS), replicates](
            log_not.contiguous(),
            mu.contiguous(),
            pull.contiguous(),
            starts,
            sizes,
            a,
            new,
            n_bags,
            n,
            newest,
            BAGS,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return a, new


@sweep.register_fake
def _(
    log_not: Tensor, mu: Tensor, pull: Tensor, starts: Tensor, sizes: Tensor, newest: bool
) -> tuple[Tensor, Tensor]:
    return mu.new_empty(mu.shape), mu.new_empty(mu.shape)
