"""The scans of one rank: each of several processes that fit a head together works on some of them.

In: scans, which every rank has all of. Out: this rank's, with their numbers among all. A process that is
alone has them all.

Shapes: B bags (scans), C of them this rank's, N instances (slices) of all, n of this rank.
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
    """What one rank works on.

    Attributes:
        bags: its scans; positions too, where they are known.
        smoother: of these; None where the head does not smooth along z.
        numbers: (C,) of its scans among all.
        rows: (n,) of its slices among all.
        all_labels: (B,) of all scans, on the CPU.
    """

    bags: Bags
    smoother: Smoother | None
    numbers: Tensor
    rows: Tensor
    all_labels: Tensor


def share_of(bags: Bags, settings: HeadSettings, ranks: Ranks, what: str) -> Share:
    """The scans that are this rank's.

    Args:
        bags: all scans, the same on every rank.
        settings: of the head; they say whether it smooths.
        ranks: that share the scans out.
        what: these scans are, for messages.

    Returns:
        About as many slices for each rank.

    Raises:
        DataError: fewer scans than ranks; or as in `make_smoother`. Every rank finds the same.
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
    """The scans, all of them on this device."""
    x, offsets, labels, positions = bags
    z = None if positions is None else positions.to(device)
    return Bags(x.to(device), offsets.to(device), labels.to(device), z)
