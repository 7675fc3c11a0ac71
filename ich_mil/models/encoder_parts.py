"""An encoder cut in two at one of its maps, and where the cells of that map lie in the picture.

Shapes: n slices, C channels, S pixels, F channels and h, w cells of a map.
"""

from typing import NamedTuple

import torch
from torch import nn


class EncoderParts(NamedTuple):
    """An encoder cut in two; what the first part gives, the rest takes.

    Attributes:
        first: pictures (n, C, S, S) to maps (n, F, h, h).
        rest: those maps to the encoder's last ones.
        left: upper and left edge of the first cell of the map between them, in pixels of the picture.
        pitch: side of a cell, in pixels.
        channels: F.
    """

    first: nn.Sequential
    rest: nn.Sequential
    left: float
    pitch: float
    channels: int


def split_encoder(encoder: nn.Sequential, *, channels: int, size: int, side: int) -> EncoderParts:
    """Cut an encoder after the first of its blocks whose map has at most `side` cells a side.

    Where no map is that small, `rest` is empty; `first` never is. A block that maps `before` cells to
    `after` is taken to join r = before / after of them, rounded, and to lose what is left over on both sides
    alike, one more on the right and below where their number is odd: so do valid convolutions with pooling.
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
