"""Divide the scans of a fit among ranks (processes).

In: all scans, on every rank. Out: the scans of this rank, with their indices among all. A single process
gets all scans.

Shapes: B bags (scans), C of them on this rank, n instances (slices) on this rank.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.gp.bags import Bags
from ich_mil.kernels.segments import take_bags
from ich_mil.ranks import Ranks


class Share(NamedTuple):
    """Scans of one rank.

    Attributes:
        bags: scans of this rank.
        numbers: (C,) indices of these scans among all.
        rows: (n,) indices of their slices among all.
        all_labels: (B,) labels of all scans, on the CPU.
    """

    bags: Bags
    numbers: Tensor
    rows: Tensor
    all_labels: Tensor


def share_of(bags: Bags, ranks: Ranks, what: str) -> Share:
    """Select the scans of this rank, with about the same number of slices on each rank.

    Raises:
        DataError: on every rank: fewer scans than ranks.
    """
    n_bags, device = len(bags.truth), bags.x.device
    if n_bags < ranks.size:
        raise DataError(
            f"{what}: {n_bags} cannot be shared among {ranks.size} processes, each needs one; start at most "
            f"{n_bags} processes"
        )
    if ranks.size == 1:
        numbers, rows = torch.arange(n_bags, device=device), torch.arange(len(bags.x), device=device)
        return Share(bags, numbers, rows, bags.truth.cpu())
    numbers = ranks.share(bags.offsets.diff().cpu()).to(device)
    mine = bags.take(numbers.tolist())
    rows, _ = take_bags(bags.offsets, numbers)
    return Share(mine, numbers, rows, bags.truth.cpu())
