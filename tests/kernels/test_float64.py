"""The functions of float64 in kernels against numpy's 80-bit ones, over their whole ranges and at seams."""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from packaging.version import Version

from ich_mil.kernels.triton.float64 import exp, inverse, log1p

BLOCK = 1024
TINY = 2.0**-1022
"""The smallest normal number."""


@triton.jit
def _apply(x, out, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, FUNCTION(tl.load(x + at, mask=at < n, other=1.0)), mask=at < n)


@pytest.fixture(autouse=True)
def _fused(kernel_device, interpreted):
    if interpreted and Version(triton.__version__) < Version("3.7"):
        pytest.skip("Triton before 3.7 interprets a fused product and sum as two roundings")


def apply(function, values, device):
    """Results (n,) of a kernel function."""
    x = torch.as_tensor(values, dtype=torch.float64).to(device)
    out = torch.full_like(x, math.nan)
    _apply[(triton.cdiv(len(x), BLOCK),)](x, out, len(x), function, BLOCK, enable_fp_fusion=False)
    return out.cpu().numpy()


def around(*centres, steps=40):
    """Each number and its neighbours in float64, on both sides."""
    found = []
    for centre in centres:
        for end in (-np.inf, np.inf):
            value = np.float64(centre)
            for _ in range(steps):
                found.append(value)
                value = np.nextafter(value, end)
    return np.array(found)


def ulps(got, expected):
    """The largest error in units of the last place of the true value."""
    return float((np.abs(got - expected) / np.spacing(np.abs(expected.astype(np.float64)))).max())


RNG = np.random.default_rng(0)
SEAMS = math.log(2) * (np.arange(-1021, 1021, 7) + 0.5)
"""Where `exp` goes from one power of 2 to the next."""


# a polynomial and its last sum: half an ulp of rounding, and less than that of all before
@pytest.mark.parametrize(
    ("function", "values", "truth", "most"),
    [
        (exp, np.linspace(-708, 708, 40_001), np.exp, 1.0),
        (exp, around(0.0, 708.0, *SEAMS, steps=3), np.exp, 1.0),
        (exp, RNG.standard_normal(20_000) * 10.0 ** RNG.uniform(-300, 1, 20_000), np.exp, 1.0),
        # where log 2 + log(½ + e/2) cancels, an ulp of log 2 is two of what is left
        (log1p, np.linspace(0, 1, 40_001)[1:], np.log1p, 2.0),
        (log1p, around(2**0.5 - 1, 0.41421356237309503, 0.5, 1e-16, 1 - 2.0**-50), np.log1p, 2.0),
        (inverse, 10.0 ** RNG.uniform(-29.9, 29.9, 40_000), np.reciprocal, 1.0),
        (inverse, around(1.0, 2.0, 16.0, 1.5, 0.5), np.reciprocal, 1.0),
    ],
)
def test_a_value_is_within_so_many_ulp(function, values, truth, most, kernel_device):
    assert np.finfo(np.longdouble).nmant > 52, "numpy has no longer numbers on this machine"
    assert ulps(apply(function, values, kernel_device), truth(values.astype(np.longdouble))) < most


def test_values_that_are_exact(kernel_device):
    assert apply(exp, [0.0, -0.0, 1e-300, -1e-300], kernel_device).tolist() == [1.0] * 4
    assert apply(exp, [-708.0000001, -745.0, -1e4, -1e300, -math.inf], kernel_device).tolist() == [0.0] * 5
    assert apply(log1p, [0.0, TINY, 1e-300, 1.0], kernel_device).tolist() == [0, TINY, 1e-300, math.log(2)]
    assert apply(inverse, [0.25, 1.0, 2.0, 16.0], kernel_device).tolist() == [4.0, 1.0, 0.5, 0.0625]
    for function in (exp, log1p):
        found = apply(function, [math.nan, -0.0, math.nan], kernel_device)
        assert np.isnan(found).tolist() == [True, False, True]
