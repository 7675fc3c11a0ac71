"""Normal distribution function and moments of the one-sided normal, exact in both tails.

In: x of any shape. Out: log Φ(x), log Φ(-x), and the inverse Mills ratios λ(x) = φ(x) / Φ(x) and λ(-x), all
from one evaluation of erfcx, the scaled complementary error function. For u ~ N(x, 1)

    E[u | u > 0] = x + λ(x)          E[u | u ≤ 0] = x - λ(-x)
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.special import erfcx, log_ndtr

from ich_mil.gp.inference.gibbs import log_ndtri

_ROOT_2_OVER_PI = math.sqrt(2 / math.pi)


class Sides(NamedTuple):
    """Both sides of N(x, 1), each of the shape of x.

    Attributes:
        log_above: log Φ(x).
        log_below: log Φ(-x).
        mills_above: λ(x).
        mills_below: λ(-x).
    """

    log_above: Tensor
    log_below: Tensor
    mills_above: Tensor
    mills_below: Tensor


def sides(x: Tensor) -> Sides:
    """Log-probabilities and inverse Mills ratios of both sides of N(x, 1)."""
    far = x.abs()
    scaled = erfcx(far / math.sqrt(2))  # Φ(-far) = scaled exp(-far²/2) / 2
    half_square = far.square() / 2
    tail = scaled * torch.exp(-half_square) / 2  # Φ(-far) ≤ 1/2
    log_tail = torch.log(scaled / 2) - half_square
    log_rest = torch.log1p(-tail)
    mills_tail = _ROOT_2_OVER_PI / scaled  # λ(-far)
    mills_rest = mills_tail * tail / (1 - tail)  # λ(far) = λ(-far) Φ(-far) / Φ(far)
    above = x >= 0
    return Sides(
        torch.where(above, log_rest, log_tail),
        torch.where(above, log_tail, log_rest),
        torch.where(above, mills_rest, mills_tail),
        torch.where(above, mills_tail, mills_rest),
    )


def signed_mean(x: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of u ~ N(x, 1) given its sign, and the log-probability of that sign.

    Args:
        x: any shape.
        sign: -1 or 1, broadcast to x.

    Returns:
        E[u | sign·u > 0] and log Φ(sign·x).
    """
    one = sides(sign * x)
    return x + sign * one.mills_above, one.log_above


def draw_signed(x: Tensor, sign: Tensor, generator: torch.Generator) -> Tensor:
    """Draw u ~ N(x, 1) given its sign, by the inverse distribution function in log space.

    Args:
        x: any shape.
        sign: -1 or 1, same shape.
        generator: of the uniform numbers.
    """
    u = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    # with v = -sign·u: v ~ N(-sign·x, 1) below 0, Φ(z) = u Φ(sign·x), v = z - sign·x
    z = log_ndtri(u.clamp_(min=2.0**-54).log_() + log_ndtr(sign * x))
    return -sign * (z - sign * x).clamp(max=0.0)
