"""Data loader with prefetching threads: batches are read ahead and copied to the GPU during computation.

Threads suffice, because reading a scan is a copy from the file's memory map into pinned memory, and a copy
releases the GIL. Worker processes would pass batches through shared memory, which the kernel clears for each
step; this is six times slower (`python -m benchmarks.reading`).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ich_mil.data.bags import Batch, collate

AHEAD = 2
"""Prefetched steps per thread: steps that are being read or wait to be used."""


class _Loader(DataLoader[Any]):
    """`DataLoader` with its own iteration; the base class is the interface for Lightning.

    Attributes:
        threads: number of threads that read ahead; 0 reads each batch on request.
        device: a GPU to copy batches to in advance; None leaves them on the CPU.
    """

    threads: int = 0
    device: torch.device | None = None

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        """Stream for the copies. One for all epochs: freed memory is reused within the same stream only."""
        return torch.cuda.Stream(self.device)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        batches = self._read_ahead() if self.threads else map(self._read, self.sampler)
        return batches if self.device is None else _sent_ahead(batches, self.device, self._stream)

    def _read(self, step: Sequence[Any]) -> Batch:
        """Batch of one step, in pinned memory if it will be copied to a GPU."""
        batch = collate([self.dataset[item] for item in step])
        return batch if self.device is None else batch.pinned()

    def _read_ahead(self) -> Iterator[Batch]:
        """Batches in the order of their steps; an exception is raised unchanged, at its step."""
        pool = ThreadPoolExecutor(self.threads, "ich_mil-reads")
        waiting: deque[Future[Batch]] = deque()
        try:
            for step in self.sampler:
                waiting.append(pool.submit(self._read, step))
                if len(waiting) == AHEAD * self.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _sent_ahead(batches: Iterator[Batch], device: torch.device, stream: torch.cuda.Stream) -> Iterator[Batch]:
    """Copy batches to a GPU, each while the previous batch is in use."""
    before: tuple[Batch, torch.cuda.Event] | None = None
    try:
        for batch in batches:
            with torch.cuda.stream(stream):
                after = batch.to(device), stream.record_event()
            del batch  # free this batch before the next one is loaded
            if before is not None:
                yield _arrived(*before)
            before = after
    except Exception:
        if before is not None:  # this batch was complete before the failure
            yield _arrived(*before)
        raise
    if before is not None:
        yield _arrived(*before)


def _arrived(batch: Batch, sent: torch.cuda.Event) -> Batch:
    """Make the current stream wait for the copy of a batch, without blocking the host."""
    now = torch.cuda.current_stream(batch.labels.device)
    now.wait_event(sent)
    for one in (*batch.hu, *batch.changed, batch.labels):
        one.record_stream(now)  # otherwise its memory could be reused while it is still read
    return batch


def loader(
    dataset: Dataset[Batch], *, workers: int, steps: Iterable[list[Any]], device: torch.device | None = None
) -> DataLoader[Batch]:
    """Data loader that yields one batch of `dataset` per step.

    An exception of `dataset` is raised unchanged, after the batches of all earlier steps.

    Args:
        dataset: dataset of scans; several threads request items at the same time.
        workers: number of threads that read ahead; 0 reads each batch on request.
        steps: the items of each step, as indices of `dataset`.
        device: a GPU to copy batches to in advance; a CPU changes nothing.
    """
    made = _Loader(dataset, batch_size=None, sampler=steps)
    made.threads = workers
    made.device = device if device is not None and device.type == "cuda" else None
    return made
