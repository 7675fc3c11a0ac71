"""Branch-free float64 functions for the range of arguments that occurs in the kernels.

In: blocks of float64. Out: blocks of the same shape, exact to an ulp or two. Library functions have branches
for other arguments, which keep a thread from working on several numbers at once, and reload each constant for
each number. Outside its range a function returns an arbitrary number.

`fma` is rounded once on every device. Where a constant is split in two, the first part times a whole number
is exact, and the second is the rest.
"""

import triton
import triton.language as tl


@triton.jit
def _number(value: tl.constexpr):
    """Constant of float64: Triton 3.6 rounds constants in `fma` and comparisons to float32."""
    return tl.full((), value, tl.float64)


@triton.jit
def _step(x, so_far, C: tl.constexpr):
    """Step of Horner's scheme: x · so_far + C."""
    return tl.fma(x, so_far, _number(C))


@triton.jit
def inverse(d):
    """1 / d for 1e-30 < d < 1e30, to an ulp: a third-order Newton step from the 22 bits of float32."""
    r = (1.0 / d.to(tl.float32)).to(tl.float64)
    h = _step(-d, r, 1.0)
    return tl.fma(r, tl.fma(h, h, h), r)


@triton.jit
def exp(x):
    """Exponential of x ≤ 708, to an ulp; 0 below -708, where it would be 3e-308; NaN for NaN.

    x = k log 2 + r with |r| ≤ log 2 / 2. The polynomial interpolates (exp(r) - 1 - r) / r² at ten Chebyshev
    nodes of 1.0005 times that range, with an error of at most 1.6e-17 of exp(r).
    """
    # 1.5 · 2⁵² + 1023: the last bits are the exponent, as float64 has it
    shifted = _step(x, _number(1.4426950408889634), 6755399441056767.0)
    k = shifted - 6755399441056767.0
    r = tl.fma(k, _number(-0.6931471803691238), x)
    r = tl.fma(k, _number(-1.9082149292705877e-10), r)
    g = _step(r, _number(2.5100424157005067e-08), 2.7620138719733994e-07)
    g = _step(r, g, 2.7557268378684192e-06)
    g = _step(r, g, 2.480152119021773e-05)
    g = _step(r, g, 1.9841269863105968e-04)
    g = _step(r, g, 1.3888888917281794e-03)
    g = _step(r, g, 8.333333333330051e-03)
    g = _step(r, g, 4.166666666662399e-02)
    g = _step(r, g, 0.16666666666666669)
    g = _step(r, g, 0.5)
    near = _step(r, _step(r, g, 1.0), 1.0)
    scale = (shifted.to(tl.int64, bitcast=True) << 52).to(tl.float64, bitcast=True)
    return tl.where(x < -708.0, 0.0, near * scale)


@triton.jit
def _log_near(f, k):
    """log(1 + f) + k log 2 for √½ - 1 ≤ f ≤ √2 - 1, with the coefficients of FreeBSD's msun (e_log.c).

    With s = f / (2 + f): log(1 + f) = f - (f²/2 - s (f²/2 + R(s²))), and R is a polynomial.
    """
    s = f * inverse(2.0 + f)
    t = s * s
    R = _step(t, _number(1.479819860511658591e-01), 1.531383769920937332e-01)
    R = _step(t, R, 1.818357216161805012e-01)
    R = _step(t, R, 2.222219843214978396e-01)
    R = _step(t, R, 2.857142874366239149e-01)
    R = _step(t, R, 3.999999999940941908e-01)
    R = _step(t, R, 6.666666666666735130e-01)
    half = 0.5 * f * f
    rest = tl.fma(s, tl.fma(t, R, half), k * 1.90821492927058770002e-10)
    return tl.fma(k, _number(6.93147180369123816490e-01), f - (half - rest))


@triton.jit
def log1p(e):
    """log(1 + e) for 0 ≤ e ≤ 1, to two ulp; NaN for NaN."""
    far = e > _number(0.41421356237309503)  # √2 - 1: then log 2 + log(½ + e/2), which is exact
    return _log_near(tl.where(far, _step(e, _number(0.5), -0.5), e), far.to(tl.float64))
