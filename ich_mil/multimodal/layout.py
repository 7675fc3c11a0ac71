"""Order of instances in memory: chunks of bags, and in each the instances of a modality turn by turn.

In: standardised features of every modality and the bag of every row. Out: `Chunk`s, so that the k-th
instances of a modality of all bags of a chunk are one block of rows, whatever the sizes of the bags; a bag
may lack a modality. Instances of a bag come by their values: their order in the input is of no effect.

Shapes: B bags, N instances of one modality, n of them in one chunk, D features, P = D + 1 regressors.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ich_mil.kernels.leave_one_out import Turns

CHUNK_ROWS = 32_768
"""Instances of a chunk: its temporary tensors stay near the processor."""


class Rows(NamedTuple):
    """Instances of one modality.

    Attributes:
        x: (N, D) standardised features.
        bags: (N,) int64 number of the bag of each row, 0 to B - 1.
    """

    x: Tensor
    bags: Tensor


class Block(NamedTuple):
    """Instances of one modality in one chunk of bags, turn by turn.

    Attributes:
        h: (n, P) regressors: 1 and the features.
        rows: (n,) rows of the modality's features.
        bags: (n,) bag of each row, counted from the first bag of the chunk.
        bag_order: (b,) bags that have the modality, by falling number of instances.
        counts: how many of those have a first, second, ... instance.
    """

    h: Tensor
    rows: Tensor
    bags: Tensor
    bag_order: Tensor
    counts: list[int]

    @property
    def x(self) -> Tensor:
        """(n, D) features, without the leading 1."""
        return self.h[:, 1:]


class Chunk(NamedTuple):
    """Consecutive bags with their instances.

    Attributes:
        bags: the bags, as a slice of 0 to B.
        blocks: one for each modality; None where no bag of the chunk has it.
    """

    bags: slice
    blocks: tuple[Block | None, ...]


class Columns(NamedTuple):
    """Ranges of the coefficients in the outer tier.

    Attributes:
        ranges: slice of each modality in θ₂ = (α, β of modality 0, β of modality 1, ...).
        size: number of coefficients.
    """

    ranges: tuple[slice, ...]
    size: int

    @classmethod
    def of(cls, widths: Sequence[int]) -> "Columns":
        """Ranges for modalities of `widths` features."""
        ends = [1, *(1 + sum(widths[: m + 1]) for m in range(len(widths)))]
        return cls(tuple(slice(*pair) for pair in pairwise(ends)), ends[-1])


def value_order(modalities: Sequence[Rows]) -> np.ndarray:
    """Rows (N,) of all modalities sorted by bag, and within a bag by their values."""
    generator, values = torch.Generator().manual_seed(0), []
    for modality in modalities:  # almost surely equal for equal rows alone
        direction = torch.randn(1 + modality.x.shape[1], generator=generator, dtype=torch.float64)
        values.append(direction[0] + modality.x.detach().cpu() @ direction[1:])
    return np.lexsort((torch.cat(values).numpy(), torch.cat([m.bags for m in modalities]).cpu().numpy()))


def chunks_of(modalities: Sequence[Rows], n_bags: int, *, rows: int = CHUNK_ROWS) -> list[Chunk]:
    """Lay out bags for vector steps.

    Args:
        modalities: instances of each modality.
        n_bags: B.
        rows: about so many instances in a chunk; a bag stays whole.
    """
    orders = [value_order([modality]) for modality in modalities]
    sizes = [np.bincount(modality.bags.cpu().numpy(), minlength=n_bags) for modality in modalities]
    ends = [np.concatenate([[0], size.cumsum()]) for size in sizes]
    filled = np.sum(ends, axis=0) // rows
    starts = np.flatnonzero(np.diff(filled[:-1], prepend=-1))
    chunks = []
    for start, stop in zip(starts, [*starts[1:], n_bags], strict=True):
        blocks = tuple(
            _block(modality, order[end[start] : end[stop]], size[start:stop], int(start))
            for modality, order, size, end in zip(modalities, orders, sizes, ends, strict=True)
        )
        chunks.append(Chunk(slice(int(start), int(stop)), blocks))
    return chunks


def _block(modality: Rows, rows: np.ndarray, sizes: np.ndarray, start: int) -> Block | None:
    """Rows sorted by bag, brought into turns; `sizes` of the chunk's bags, the first of which is `start`."""
    if len(rows) == 0:
        return None
    device = modality.x.device
    there = torch.as_tensor(np.flatnonzero(sizes))
    turns = Turns(torch.as_tensor(np.concatenate([[0], sizes[sizes > 0].cumsum()])))
    ordered = torch.as_tensor(rows)[turns.order].to(device)
    x = modality.x[ordered]
    h = torch.cat([x.new_ones(len(x), 1), x], dim=1)  # (n, P)
    return Block(h, ordered, modality.bags[ordered] - start, there[turns.bag_order].to(device), turns.counts)
