"""Split an encoder in two at a feature map, and locate the cells of that map in the picture.

Shapes: n slices, C channels, S pixels, F channels and h, w cells of a feature map.
"""

from typing import NamedTuple

import torch
from torch import nn


class EncoderParts(NamedTuple):
    """An encoder in two parts, applied one after the other.

    Attributes:
        first: pictures (n, C, S, S) to intermediate maps (n, F, h, h).
        rest: intermediate maps to the encoder's output maps.
        left: left (and upper) edge of the first cell of the intermediate map, in pixels of the picture.
        pitch: side of a cell, in pixels.
        channels: F.
    """

    first: nn.Sequential
    rest: nn.Sequential
    left: float
    pitch: float
    channels: int


def split_encoder(encoder: nn.Sequential, *, channels: int, size: int, side: int) -> EncoderParts:
    """Split an encoder after the first block whose map has at most `side` cells per side.

    If no map is that small, `rest` is empty. A block from `before` to `after` cells per side is assumed to
    merge r = round(before / after) cells into one, and to drop the remainder equally on both sides, with one
    more cell on the right and below if the remainder is odd. This holds for valid convolutions with pooling.
    """
    blocks = list(encoder)
    training = encoder.training
    encoder.eval()
    maps = next(encoder.parameters()).new_zeros(1, channels, size, size)
    left, pitch, cut = 0.0, 1.0, 0
    with torch.no_grad():
        while cut == 0 or (cut < len(blocks) and maps.shape[-1] > side):
            before = maps.shape[-1]
            maps = blocks[cut](maps)
            joined = round(before / maps.shape[-1])
            left += pitch * int((before - joined * maps.shape[-1]) / 2)
            pitch *= joined
            cut += 1
    encoder.train(training)
    return EncoderParts(
        nn.Sequential(*blocks[:cut]), nn.Sequential(*blocks[cut:]), left, pitch, maps.shape[1]
    )
