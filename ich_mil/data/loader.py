"""Reads steps of scans ahead, in worker processes, and hands them to the process that trains.

torch's `DataLoader` does the work. Here is what it leaves open: errors of workers come as they are, a worker
that cannot hand on what it has read says so instead of letting its reader wait for ever, and so does the end
of one.
"""

import gc
import io
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ich_mil.data.bags import Batch, pack
from ich_mil.errors import IchMilError, ProcessError


class _ByValue(pickle.Pickler):
    """Pickles small tensors as arrays: torch writes a file for each, in ten times the time."""

    def reducer_override(self, obj: Any) -> Any:
        return (torch.from_numpy, (obj.numpy(),)) if isinstance(obj, Tensor) else NotImplemented


class _Sent:
    """A batch that a worker process hands on; it arrives as the `Batch`.

    Its HU travel as one block of shared memory. torch would take one, and an open file, for each tensor, and
    later: where there were no more of them the batch would be lost and its reader would wait for ever.
    """

    def __init__(self, batch: Batch) -> None:
        size = sum(one.nbytes for one in batch.hu)
        try:
            # as torch's own collate functions: `share_memory_` would copy once more
            block = torch.UntypedStorage._new_shared(size)
        except RuntimeError as error:
            raise ProcessError(
                f"a process that reads scans ahead has no shared memory for a step of {size >> 20} MB "
                f"({error}); give the machine more (Docker: --shm-size), or lower training.workers: "
                "0 needs none"
            ) from error
        self.hu = torch.empty(0, dtype=torch.int16).set_(block)
        torch.cat([one.flatten() for one in batch.hu], out=self.hu)
        self.shapes = [one.shape for one in batch.hu]
        file = io.BytesIO()
        _ByValue(file).dump(replace(batch, hu=()))
        self.rest = file.getvalue()

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.hu, self.shapes, self.rest)


def _received(hu: Tensor, shapes: list[torch.Size], rest: bytes) -> Batch:
    parts = hu.split([shape.numel() for shape in shapes])
    batch: Batch = pickle.loads(rest)
    return replace(batch, hu=tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True)))


class _Caught(Dataset[Batch | _Sent | IchMilError]):
    """Items are steps, and errors among them: torch would put a worker's traceback into their text."""

    def __init__(self, dataset: Dataset[Batch]) -> None:
        self.dataset = dataset

    def __getitem__(self, step: Sequence[Any]) -> Batch | _Sent | IchMilError:
        try:
            batch = pack([self.dataset[item] for item in step])
            return batch if get_worker_info() is None else _Sent(batch)
        except IchMilError as error:
            return error


def _leave_garbage(_worker: int) -> None:
    """In a worker: do not collect what lay about in the process it was made from.

    An old loader there would fail to end workers that are not this one's (pytorch issue 149837), and in
    Python 3.11 the telling of it breaks what reads the header of a file just then.
    """
    gc.freeze()


class _Loader(DataLoader[Any]):
    """Raises the errors that come as items."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        return map(_raised, super().__iter__())


def _raised(item: Batch | IchMilError) -> Batch:
    if isinstance(item, IchMilError):
        raise item
    return item


def loader(dataset: Dataset[Batch], *, workers: int, steps: Iterable[list[Any]]) -> DataLoader[Batch]:
    """Batches of `dataset`, one a step, read ahead by `workers` processes.

    Args:
        dataset: of scans.
        workers: 0 reads when a batch is asked for.
        steps: the items of each step, as `dataset` takes them.

    Errors of `dataset` that are an `IchMilError` come as they are, from a worker process too. A batch that a
    worker cannot hand on is a `ProcessError`; read within `reading_ahead`, so that a worker's end is one too.
    """
    return _Loader(
        _Caught(dataset),
        batch_size=None,  # an item of the sampler is a step
        sampler=steps,
        num_workers=workers,
        worker_init_fn=_leave_garbage,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )


@contextmanager
def reading_ahead() -> Iterator[None]:
    """The block in which a `loader` is read.

    Raises:
        ProcessError: one of its workers has ended before its time. It comes wherever this process is just
            then, not from the loader alone.
    """
    try:
        yield
    except RuntimeError as error:
        # torch has no error class of its own
        if not str(error).startswith("DataLoader worker"):
            raise
        raise ProcessError(
            f"a process that reads scans ahead has ended before its time ({str(error).strip()}); where "
            "memory ran out, lower training.workers or training.bags; a run goes on with --resume"
        ) from error
