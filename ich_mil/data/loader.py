"""Reads steps of scans ahead, in worker processes, and hands them to the process that trains.

torch's `DataLoader` does the work. This file adds what it lacks: an error of a worker reaches the reader as
it was raised; a worker that dies, or cannot hand on what it has read, ends the work with an error, where the
reader would wait for ever; and a batch is sent to a GPU while the one before it is worked on.
"""

import gc
import io
import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ich_mil.data.bags import Batch, collate
from ich_mil.errors import IchMilError, ProcessError


class _Pickler(ForkingPickler):
    """Hands shared memory on as such, and other tensors by value: torch would share each of them."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor) and not obj.is_shared():
            return torch.from_numpy, (obj.numpy(),)
        return NotImplemented


class _Sent:
    """A batch that a worker process hands on; it arrives as the `Batch`.

    Its HU travel in one block of shared memory. All is made ready here: torch would do so in a thread, with a
    block and open files for each tensor, and what fails there is lost while its reader waits for ever.
    """

    def __init__(self, batch: Batch) -> None:
        size = sum(one.nbytes for one in batch.hu)
        shapes = [one.shape for one in batch.hu]
        content = io.BytesIO()
        try:
            # as torch's own collate functions: `share_memory_` would copy once more
            hu = torch.empty(0, dtype=torch.int16).set_(torch.UntypedStorage._new_shared(size))
            torch.cat([one.flatten() for one in batch.hu], out=hu)
            _Pickler(content).dump((hu, shapes, replace(batch, hu=())))
        except (RuntimeError, OSError) as error:
            raise ProcessError(
                f"a process that reads scans ahead cannot hand on a step of {size / 1e6:.1f} MB ({error}); "
                "give the machine more shared memory (Docker: --shm-size) or open files (ulimit -n), or "
                "lower training.workers: 0 needs neither"
            ) from error
        self.content = content.getvalue()

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.content,)


def _arrived(content: bytes) -> Batch:
    """The batch; its scans share the block, which is free when all of them are gone."""
    hu, shapes, batch = pickle.loads(content)
    parts = hu.split([shape.numel() for shape in shapes])
    return replace(batch, hu=tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True)))


class _Caught(Dataset[Batch | _Sent | Exception]):
    """An item is a whole step, or the error that came in its place, for the reader to raise.

    Errors of the program itself are raised here. If the others were, torch would put a worker's traceback
    into their text, and lose the number of an `OSError`.
    """

    def __init__(self, dataset: Dataset[Batch]) -> None:
        self.dataset = dataset

    def __getitem__(self, step: Sequence[Any]) -> Batch | _Sent | Exception:
        try:
            batch = collate([self.dataset[item] for item in step])
            return batch if get_worker_info() is None else _Sent(batch)
        except (IchMilError, OSError, MemoryError) as error:
            return error


class _Loader(DataLoader[Any]):
    """Raises the errors that come as items, and those of workers that end on the way.

    Attributes:
        device: a GPU that batches are sent to ahead; None leaves them where they are.
    """

    device: torch.device | None = None

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        """The one on which batches are sent: memory that it has used is free for no other one."""
        return torch.cuda.Stream(self.device)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # workers must not collect what lies about here: an old loader would look for workers that are not
        # theirs (pytorch issue 149837), a temporary file would be removed under this process
        gc.freeze()
        try:
            items = super().__iter__()
        finally:
            gc.unfreeze()
        batches = _told(items) if self.num_workers else map(_raised, items)
        return batches if self.device is None else _sent_ahead(batches, self.device, self._stream)


def _sent_ahead(batches: Iterator[Batch], device: torch.device, stream: torch.cuda.Stream) -> Iterator[Batch]:
    """The batches on a GPU, each sent while the one before it is worked on."""
    before: tuple[Batch, torch.cuda.Event] | None = None
    try:
        for batch in batches:
            with torch.cuda.stream(stream):
                after = batch.to(device), stream.record_event()
            del batch  # or its memory were held until the next one is there
            if before is not None:
                yield _arrived_on_gpu(*before)
            before = after
    except Exception:
        if before is not None:  # it was there before what failed
            yield _arrived_on_gpu(*before)
        raise
    if before is not None:
        yield _arrived_on_gpu(*before)


def _arrived_on_gpu(batch: Batch, sent: torch.cuda.Event) -> Batch:
    """The batch, which the present stream may use from here on: the stream waits, not the host."""
    now = torch.cuda.current_stream(batch.labels.device)
    now.wait_event(sent)
    for one in (*batch.hu, *batch.changed, batch.labels):
        one.record_stream(now)  # or its memory could be written to while it is still read
    return batch


def _raised(item: Batch | Exception) -> Batch:
    if isinstance(item, Exception):
        raise item
    return item


def _told(items: Iterator[Batch | Exception]) -> Iterator[Batch]:
    while True:
        try:
            item = next(items)
        except StopIteration:
            return
        except (EOFError, ConnectionError) as error:
            if str(error).startswith("Caught "):  # by torch, in the dataset
                raise
            time.sleep(1)  # the worker has ended, and the signal of its end raises an error that says so
            raise _lost(repr(error)) from error
        yield _raised(item)
        del item  # or its memory were held until the next one is there


def loader(
    dataset: Dataset[Batch], *, workers: int, steps: Iterable[list[Any]], device: torch.device | None = None
) -> DataLoader[Batch]:
    """Batches of `dataset`, one a step, read ahead by `workers` processes.

    Args:
        dataset: of scans.
        workers: 0 reads when a batch is asked for.
        steps: the items of each step, as `dataset` takes them.
        device: where batches are wanted; to a GPU each is sent while the one before it is worked on.

    Each `IchMilError`, `OSError` and `MemoryError` of `dataset` comes as it is, from a worker process too. A
    batch that a worker cannot hand on is a `ProcessError`; read within `reading_ahead`, so that the end of a
    worker is one too.
    """
    made = _Loader(
        _Caught(dataset),
        batch_size=None,  # an item of the sampler is a step
        sampler=steps,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )
    made.device = device if device is not None and device.type == "cuda" else None
    return made


@contextmanager
def reading_ahead() -> Iterator[None]:
    """The block in which a `loader` is read.

    Raises:
        ProcessError: one of its workers has ended before its time, or this process has no open files left for
            what they hand on. It is raised wherever this process is at that moment, not in the loader alone.
    """
    try:
        yield
    except RuntimeError as error:
        # torch has no error class of its own
        if not str(error).startswith(
            ("DataLoader worker", "Pin memory thread exited", "Too many open files")
        ):
            raise
        raise _lost(str(error).strip().splitlines()[0]) from error


def _lost(reason: str) -> ProcessError:
    return ProcessError(
        f"scans are no longer read ahead ({reason}); where memory or open files (ulimit -n) ran out, lower "
        "training.workers or training.bags; a run goes on with --resume"
    )
