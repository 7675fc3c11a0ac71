"""Divide the scans of a fit among ranks (processes), and move bags to a device.

In: all scans, on every rank. Out: the scans of this rank, with their indices among all. A single process
gets all scans.

Shapes: B bags (scans), C of them on this rank, N instances (slices) in all, n on this rank.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.gp.bags import Bags, take
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.smoothing import Smoother, make_smoother
from ich_mil.kernels.segments import take_bags
from ich_mil.ranks import Ranks


class Share(NamedTuple):
    """Scans of one rank.

    Attributes:
        bags: scans of this rank, with positions if they are known.
        smoother: smoother of these scans; None if the head does not smooth along z.
        numbers: (C,) indices of these scans among all.
        rows: (n,) indices of their slices among all.
        all_labels: (B,) labels of all scans, on the CPU.
    """

    bags: Bags
    smoother: Smoother | None
    numbers: Tensor
    rows: Tensor
    all_labels: Tensor


def share_of(bags: Bags, settings: HeadSettings, ranks: Ranks, what: str) -> Share:
    """Select the scans of this rank, with about the same number of slices on each rank.

    Args:
        bags: all scans, the same on every rank.
        settings: settings of the head, for the smoothing along z.
        ranks: the ranks among which the scans are divided.
        what: name of these scans in error messages.

    Returns:
        The scans of this rank.

    Raises:
        DataError: fewer scans than ranks; or as in `make_smoother`. It is raised on every rank.
    """
    smoother = make_smoother(settings, bags.positions, bags.offsets, what=what)
    n_bags, device = len(bags.labels), bags.offsets.device
    if n_bags < ranks.size:
        raise DataError(
            f"{what}: {n_bags} cannot be shared among {ranks.size} processes, each needs one; start at most "
            f"{n_bags} processes"
        )
    if ranks.size == 1:
        return Share(
            bags,
            smoother,
            torch.arange(n_bags, device=device),
            torch.arange(len(bags.x), device=device),
            bags.labels.cpu(),
        )
    numbers = ranks.share(bags.offsets.diff().cpu())
    mine = take(bags, tuple(numbers.tolist()))
    if smoother is not None:
        smoother = make_smoother(settings, mine.positions, mine.offsets, what=what)
    numbers = numbers.to(device)
    return Share(mine, smoother, numbers, take_bags(bags.offsets, numbers)[0], bags.labels.cpu())


def on_device(bags: Bags, device: torch.device) -> Bags:
    """Move all tensors of the bags to a device."""
    x, offsets, labels, positions = bags
    z = None if positions is None else positions.to(device)
    return Bags(x.to(device), offsets.to(device), labels.to(device), z)
