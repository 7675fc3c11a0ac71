"""Split an encoder in two at a feature map. Shapes: n slices, C channels, S pixels, F channels of a map."""

from typing import NamedTuple

import torch
from torch import nn


class EncoderParts(NamedTuple):
    """An encoder in two parts, applied one after the other.

    Attributes:
        first: pictures (n, C, S, S) to intermediate maps (n, F, h, h).
        rest: intermediate maps to the encoder's output maps.
        channels: F.
    """

    first: nn.Sequential
    rest: nn.Sequential
    channels: int


@torch.no_grad()
def split_encoder(encoder: nn.Sequential, *, channels: int, size: int, side: int) -> EncoderParts:
    """Split an encoder after the first block whose map has at most `side` cells per side.

    If no map is that small, `rest` is empty.
    """
    blocks = list(encoder)
    training = encoder.training
    encoder.eval()
    maps = blocks[0](next(encoder.parameters()).new_zeros(1, channels, size, size))
    cut = 1
    while cut < len(blocks) and maps.shape[-1] > side:
        maps = blocks[cut](maps)
        cut += 1
    encoder.train(training)
    return EncoderParts(nn.Sequential(*blocks[:cut]), nn.Sequential(*blocks[cut:]), maps.shape[1])
