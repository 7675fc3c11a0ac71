"""The normal numbers of `ich_mil.kernels.counter` on a GPU: a function of the device, and a kernel around it.

Kernels are compiled without contraction to fused multiply-adds, so that they round as the CPU does.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.random import philox_impl

COUNTERS = 128
"""Counters of one program."""


@triton.jit
def four_normals(counter, seed, key):
    """Samples 4c to 4c + 3 for int64 counters of any shape; `seed` and `key` are scalars."""
    c = counter.to(tl.uint64)
    zero = c ^ c
    w0, w1, w2, w3 = philox_impl(c, zero, zero, zero, zero + seed.to(tl.uint64), zero + key.to(tl.uint64))
    z0, z1 = _two_normals(w0, w1)
    z2, z3 = _two_normals(w2, w3)
    return z0, z1, z2, z3


@triton.jit
def _two_normals(w, v):
    radius = tl.sqrt(-2.0 * tl.log(_uniform(w)))
    angle = 6.283185307179586 * _uniform(v)
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def _uniform(word):
    return ((word >> 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16  # 2⁻⁵³


@triton.jit(do_not_specialize=["seed", "key", "n", "samples"])
def _fill(out, seed, key, n, samples, COUNTERS: tl.constexpr):
    counter = tl.program_id(0).to(tl.int64) * COUNTERS + tl.arange(0, COUNTERS)
    z0, z1, z2, z3 = four_normals(counter, seed, key)
    sample, column = counter // n * 4, counter % n
    at = out + sample * n + column
    tl.store(at, z0, mask=sample < samples)
    tl.store(at + n, z1, mask=sample + 1 < samples)
    tl.store(at + 2 * n, z2, mask=sample + 2 < samples)
    tl.store(at + 3 * n, z3, mask=sample + 3 < samples)


@torch.library.custom_op("ich_mil::counter_normals", mutates_args=())
def counter_normals(seed: int, key: int, n: int, samples: int, device: torch.device) -> Tensor:
    """Normal numbers (L, n) float64; `seed` and `key` as int64."""
    out = torch.empty(samples, n, dtype=torch.float64, device=device)
    grid = (triton.cdiv(triton.cdiv(samples, 4) * n, COUNTERS),)
    with torch.cuda.device_of(out):
        _fill[grid](out, seed, key, n, samples, COUNTERS, num_warps=4, enable_fp_fusion=False)
    return out


@counter_normals.register_fake
def _(seed: int, key: int, n: int, samples: int, device: torch.device) -> Tensor:
    return torch.empty(samples, n, dtype=torch.float64, device=device)
