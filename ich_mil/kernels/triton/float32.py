"""Products of float32 on tensor cores, each from three tf32 products.

A tensor core truncates sums, which over hundreds of steps would cost two digits: let it sum a few tens of
terms, and add these sums in float32, which rounds.
"""

import triton
import triton.language as tl


@triton.jit
def _halves(x):
    """Split x into the nearest number of 11 bits (tf32), and the remainder."""
    high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def above(a, b):
    """Two blocks, one above the other, without moving registers."""
    return tl.reshape(tl.permute(tl.join(a, b), (2, 0, 1)), (2 * a.shape[0], a.shape[1]))


@triton.jit
def _beside(a, b):
    """Two blocks, one beside the other, without moving registers."""
    return tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), (a.shape[0], 2 * a.shape[1]))


@triton.jit
def multiply(left, right):
    """Product of float32 blocks from their halves, without the product of the two low halves.

    Two calls, not three: the program waits for the tensor cores after each. Tensor cores truncate the low
    halves too; those of the right block are rounded here, or sums would drift towards zero twice as far.
    """
    high, low = _halves(left)
    top, bottom = _halves(right)
    bottom = (bottom.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
    product = tl.dot(_beside(low, high), above(top, bottom), input_precision="tf32")
    return tl.dot(high, top, product, input_precision="tf32")
