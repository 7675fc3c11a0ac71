"""Products of small matrices whose elements lie among the threads of a warp, or of four.

Of float32, tensor cores see the first 11 bits of a factor (tf32), and cut off what float32 has no room for:
they do not round. How many bits they add with nobody says; here it is done exactly, and cut off once.

Legend: `w` warps, `T` threads; a product is of (m, k) and (k, n).
"""

import re

import numpy as np

from tests.emulated.memory import GpuError


def seen(value):
    """What is seen of float32 numbers, given as their bits."""
    return (value & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def cut_off(value):
    """To float32, towards zero."""
    near = value.astype(np.float32)
    return np.where(np.abs(near) > np.abs(value), np.nextafter(near, np.float32(0)), near)


def of_warps(name: list[str], left, right, total):
    """`mma.sync`: the total of each warp and its product.

    Args:
        name: of the instruction.
        left: registers (T, m k / 32), float64, or bits of float32.
        right: (T, k n / 32).
        total: (T, m n / 32).
    """
    m, n, k = map(int, re.findall(r"\d+", name[3]))
    kinds = name[6:]
    if n != 8 or name[4:6] != ["row", "col"] or kinds not in (["f64"] * 4, ["f32", "tf32", "tf32", "f32"]):
        raise GpuError("unknown product")
    if kinds[1] == "tf32":
        left, right = seen(left), seen(right)
    h = m // 8
    A = left.reshape(-1, 8, 4, k // 4, h).transpose(0, 4, 1, 3, 2).reshape(-1, m, k)
    B = right.reshape(-1, 8, 4, k // 4).transpose(0, 3, 2, 1).reshape(-1, k, 8)
    C = total.reshape(-1, 8, 4, h, 2).transpose(0, 3, 1, 2, 4).reshape(-1, m, 8)
    D = C + A @ B
    if kinds[1] == "tf32":
        D = cut_off(D)
    return D.reshape(-1, h, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(len(total), -1)


def of_four_warps(left, right, total):
    """`wgmma`: total and product of (64, 8) and (8, n).

    Args:
        left: registers (128, 4), bits of float32.
        right: (n, 8), likewise, from shared memory.
        total: (128, n / 2) float32.
    """
    n = len(right)
    A = seen(left).reshape(4, 8, 4, 2, 2).transpose(0, 4, 1, 3, 2).reshape(64, 8)
    C = total.reshape(4, 8, 4, n // 8, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(64, n)
    D = cut_off(C + A @ seen(right).T)
    return D.reshape(4, 2, 8, n // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(128, n // 2)


def described(descriptor: int, n: int):
    """Where the elements (n, 8) of float32 lie that a descriptor of shared memory tells of [bytes]."""
    start, down = ((descriptor >> bits & 0x3FFF) << 4 for bits in (0, 32))
    swizzle = descriptor >> 62  # a row takes 128 bytes, 64 or 32
    if swizzle == 0:
        raise GpuError("unknown layout")
    i, k = np.arange(n)[:, None], np.arange(8)[None, :]
    at = start + i // 8 * down + i % 8 * (256 >> swizzle) + k * 4
    return at ^ ((at >> 7 & (16 >> swizzle) - 1) << 4)
