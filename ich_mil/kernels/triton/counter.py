"""Normal numbers of `ich_mil.kernels.counter` on a GPU: a device function, and a kernel that fills an array.

In: a counter, a seed and a key. Out: the four normal numbers of that counter. The random words equal those of
the CPU to the bit; the normal numbers differ by rounding, as the functions are those of `float64`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ich_mil.kernels.triton.float64 import cos_sin, log, root

COUNTERS = 128
"""Counters of one program."""


@triton.jit
def _wide(a, B: tl.constexpr):
    """High and low word of a · B, from products of 32-bit halves."""
    LOW: tl.constexpr = 0xFFFFFFFF
    low, high = a & LOW, a >> 32
    least = low * (B & LOW)
    one = high * (B & LOW) + (least >> 32)  # below 2⁶⁴, as is the next
    other = low * (B >> 32) + (one & LOW)
    return high * (B >> 32) + (one >> 32) + (other >> 32), (other << 32) | (least & LOW)


@triton.jit
def _philox(c0, k0, k1):
    """Philox4x64-10 of the counters (c0, 0, 0, 0) and the key (k0, k1), all uint64."""
    c1, c2, c3 = c0 ^ c0, c0 ^ c0, c0 ^ c0
    for _ in tl.static_range(10):
        high_a, low_a = _wide(c0, 0xD2E7470EE14C6C93)
        high_b, low_b = _wide(c2, 0xCA5A826395121157)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0 += 0x9E3779B97F4A7C15
        k1 += 0xBB67AE8584CAA73B
    return c0, c1, c2, c3


@triton.jit
def four_normals(counter, seed, key):
    """Samples 4c to 4c + 3 for int64 counters of any shape; `seed` and `key` are scalars."""
    c = counter.to(tl.uint64)
    zero = c ^ c
    w0, w1, w2, w3 = _philox(c, zero + seed.to(tl.uint64), zero + key.to(tl.uint64))
    z0, z1 = _two_normals(w0, w1)
    z2, z3 = _two_normals(w2, w3)
    return z0, z1, z2, z3


@triton.jit
def _two_normals(w, v):
    radius = root(-2.0 * log(_uniform(w)))
    cos, sin = cos_sin(6.283185307179586 * _uniform(v))
    return radius * cos, radius * sin


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
