"""What the instructions of a GPU that compute with numbers make of them, NumPy over threads.

In: operands (T,) of T threads in the types of an instruction. Out: the result (T,). Numbers below the least
normal float32 stay, which `.ftz` makes 0.
"""

import operator
from collections.abc import Callable
from functools import cache

import numpy as np

from tests.emulated.memory import RAW, GpuError

TYPES = {
    f"{kind}{8 * size}": np.dtype(f"{code}{size}")
    for kind, code in (("b", "u"), ("u", "u"), ("s", "i"), ("f", "f"))
    for size in (2, 4, 8)
} | {"pred": np.dtype(bool)}
"""Of numbers, by their names in PTX; b is for bits."""

_MEANT = {"rn", "ftz", "lo", "full", "approx"}
"""Parts of the names of instructions that are taken care of, or change nothing here."""


def computed(name: list[str], values: list[np.ndarray]) -> np.ndarray:
    """The result of `add.rn.f32` and the like."""
    if unknown := {*name[1:-1]} - _MEANT:
        raise GpuError(f"unknown: {', '.join(unknown)}")
    found = _OPERATIONS[name[0]](*values)
    return _rough(found) if {"approx", "full"} & {*name} else found


def compared(how: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of a NaN nothing is true, or, where the name ends with u, everything."""
    unordered = (a != a) | (b != b)
    if how in _COMPARISONS:
        return _COMPARISONS[how](a, b) & ~unordered
    return _COMPARISONS[how.removesuffix("u")](a, b) | unordered


def converted(value: np.ndarray, modes: list[str], to: np.dtype) -> np.ndarray:
    """Rounded as the modes say; what an integer has no room for is its nearest end."""
    for mode in {*modes} - {"ftz", "rn"}:
        value = _ROUNDINGS[mode](value)
    if value.dtype.kind == "f" and to.kind != "f":
        most = np.iinfo(to)
        value = np.nan_to_num(np.clip(value.astype(np.float64), most.min, most.max))
    return value.astype(to)


def bits_of(value: float, kind: str) -> int:
    """Of an argument, unsigned."""
    size = TYPES[kind].itemsize
    if isinstance(value, float):
        return int(np.array([value], f"f{size}").view(RAW[size])[0])
    return value % (1 << 8 * size)


@cache
def constant(text: str, dtype: np.dtype) -> np.generic:
    """The number a text means: an integer, or the bits of a float."""
    if dtype.kind == "b":
        return np.bool_(int(text))
    number = int(text[2:], 16) if text[:2] in ("0d", "0f") else int(text.rstrip("U"), 0)
    return np.array([number % (1 << 8 * dtype.itemsize)], RAW[dtype.itemsize]).view(dtype)[0]


def _shifted(way, value, by):
    """By more than there are bits nothing is left, or the sign."""
    bits = 8 * value.itemsize
    shifted = way(value, np.minimum(by, bits - 1).astype(value.dtype))
    return shifted if value.dtype.kind == "i" else np.where(by < bits, shifted, 0).astype(value.dtype)


def _fused(a, b, c):
    """a b + c, rounded once: what the product and the sum lose is found exactly (Dekker 1971, Knuth)."""
    if a.itemsize == 4:
        return (a.astype(np.float64) * b + c).astype(np.float32)
    p, (a1, a2), (b1, b2) = a * b, _halves(a), _halves(b)
    lost = ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2
    s = p + c
    back = s - p
    found = s + (((p - (s - back)) + (c - back)) + lost)
    return np.where(np.isfinite(found), found, s)


def _halves(value):
    big = value * 134217729.0  # 2²⁷ + 1
    high = big - (big - value)
    return high, value - high


def _quotient(a, b):
    """Of integers towards zero."""
    if a.dtype.kind == "f":
        return a / b
    b = np.where(b == 0, 1, b).astype(b.dtype)
    return (a - np.fmod(a, b)) // b


def _rough(found):
    """What a GPU does not promise is cut off: 2 bits of float32, and the lower half of float64."""
    bits = found.view(RAW[found.itemsize])
    promised = bits.dtype.type(0xFFFFFFFC if found.itemsize == 4 else 0xFFFFFFFF_00000000)
    return (bits & promised).view(found.dtype)


_OPERATIONS: dict[str, Callable] = {
    "add": np.add,
    "sub": np.subtract,
    "div": _quotient,
    "rem": lambda a, b: np.fmod(a, np.where(b == 0, 1, b).astype(b.dtype)),
    "fma": _fused,
    "min": np.fmin,
    "max": np.fmax,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": np.invert,  # Triton 3.6 writes it, 3.9 does not
    "neg": np.negative,
    "abs": np.abs,
    "rcp": lambda a: 1 / a,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "shl": lambda value, by: _shifted(np.left_shift, value, by),
    "shr": lambda value, by: _shifted(np.right_shift, value, by),
}
_COMPARISONS: dict[str, Callable] = {
    how: getattr(operator, how) for how in ("eq", "ne", "lt", "le", "gt", "ge")
}
_ROUNDINGS: dict[str, Callable] = {"rzi": np.trunc, "rmi": np.floor}
