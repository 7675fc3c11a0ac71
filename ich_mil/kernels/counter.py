"""Counter-based standard normal numbers: a function of (seed, scan, slice, sample), the same on every device.

In: a seed, the key of a scan and its number of slices. Out: z (L, n). Philox4x64-10 (Salmon et al. 2011,
"Parallel random numbers: as easy as 1, 2, 3") maps a counter and a key to four 64-bit words without state:

    w = philox(counter = (block · n + slice, 0, 0, 0), key = (seed, scan))        block = sample // 4

The four words give the samples 4 block to 4 block + 3 of the slice: two words give two normal numbers (Box
and Muller 1958),

    u = ((w >> 11) + ½) 2⁻⁵³        z = √(-2 log u₁) cos 2π u₂        z' = √(-2 log u₁) sin 2π u₂

The first samples are therefore the same for any L. u is above 0. The largest u₁ rounds to 1, which gives
z = 0.

Shapes: L samples, n slices of one scan.
"""

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

WORD = 2**64
SAMPLES = 4
"""Samples of one slice per counter."""


def scan_key(scan: str) -> int:
    """Key of a scan: the first 64 bits of the SHA-256 of its id, as an int64."""
    return int.from_bytes(hashlib.sha256(scan.encode()).digest()[:8], signed=True)


def normals(seed: int, key: int, n: int, *, samples: int, device: torch.device | str = "cpu") -> Tensor:
    """Standard normal numbers (L, n) of the n slices of one scan, float64.

    Args:
        seed: any integer; seeds that differ by a multiple of 2⁶⁴ are equivalent.
        key: key of the scan, from `scan_key`.
        n: number of slices.
        samples: L.
        device: device of the result; the numbers are drawn on the CPU.
    """
    blocks = -(-samples // SAMPLES)
    # numpy increments the counter before it draws, so the largest counter makes the first block counter 0.
    words = np.random.Philox(
        counter=np.full(4, WORD - 1, np.uint64), key=np.array([seed % WORD, key % WORD], np.uint64)
    ).random_raw(blocks * n * SAMPLES)
    words >>= np.uint64(11)
    pairs = torch.from_numpy(words.view(np.int64)).view(blocks, n, 2, 2).permute(3, 0, 2, 1)
    u = pairs.to(torch.float64, memory_format=torch.contiguous_format).add_(0.5).mul_(2.0**-53)
    radius = u[0].log_().mul_(-2).sqrt_()  # (blocks, 2, n)
    angle = u[1].mul_(2 * math.pi)
    z = torch.empty(blocks, 2, 2, n, dtype=torch.float64)
    torch.mul(radius, angle.cos(), out=z[:, :, 0])
    torch.mul(radius, angle.sin_(), out=z[:, :, 1])
    return z.view(blocks * SAMPLES, n)[:samples].to(device)
