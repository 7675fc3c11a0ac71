"""Data loader of steps of scans: torch's `DataLoader` with processes that read ahead."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ich_mil.errors import IchMilError
from ich_mil.network.bags import Batch, collate


class _Steps(Dataset[Batch | IchMilError]):
    def __init__(self, scans: Dataset[Batch]) -> None:
        self.scans = scans

    def __getitem__(self, step: list[Any]) -> Batch | IchMilError:
        try:
            return collate([self.scans[item] for item in step])
        except IchMilError as error:
            return error


class _Loader(DataLoader[Any]):
    """`DataLoader` that raises the errors of its scans as they are: torch would put a traceback before them.

    Workers start at the first batch, not with the iterator: Lightning sets the sampler's epoch in between.
    """

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        for batch in super().__iter__():
            if isinstance(batch, IchMilError):
                raise batch
            yield batch


def loader(
    dataset: Dataset[Batch], *, workers: int, steps: Iterable[list[Any]], device: torch.device | None = None
) -> DataLoader[Batch]:
    """Data loader that yields one batch of `dataset` per step.

    Args:
        dataset: dataset of scans.
        workers: largest number of processes that read ahead, two steps each, one process per core at most; 0
            reads each batch on request.
        steps: the items of each step, as indices of `dataset`.
        device: the device to which the batches will be copied; for a GPU they are in pinned memory.

    Raises:
        IchMilError: while iterating, the error of a scan, after the batches of all earlier steps.
    """
    from joblib import cpu_count  # takes a tenth of a second

    workers = min(workers, cpu_count())
    return _Loader(
        _Steps(dataset),
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=device is not None and device.type == "cuda",
        generator=torch.Generator(),  # otherwise it would draw a number of the global generator
    )
