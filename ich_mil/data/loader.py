"""Reads steps of scans ahead, in threads, and sends each to a GPU while the one before it is worked on.

To read a scan is to copy it, from the file's memory-map into memory that a GPU copies from by itself, and a
copy lets other threads run. Processes would have to hand it on through shared memory, which the kernel clears
for each step: steps then come six times as slowly (`python -m benchmarks.reading`).
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
"""Steps that are read or wait for each thread."""


class _Loader(DataLoader[Any]):
    """Lightning finds in it what it expects of a `DataLoader`; how it reads is its own.

    Attributes:
        threads: that read ahead; 0 reads when a batch is asked for.
        device: a GPU that batches are sent to ahead; None leaves them where they are.
    """

    threads: int = 0
    device: torch.device | None = None

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        """The one on which batches are sent: memory that it has used is free for no other one."""
        return torch.cuda.Stream(self.device)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        batches = self._read_ahead() if self.threads else map(self._read, self.sampler)
        return batches if self.device is None else _sent_ahead(batches, self.device, self._stream)

    def _read(self, step: Sequence[Any]) -> Batch:
        """The batch of one step, in pinned memory where it goes on to a GPU."""
        batch = collate([self.dataset[item] for item in step])
        return batch if self.device is None else batch.pinned()

    def _read_ahead(self) -> Iterator[Batch]:
        """The batches in the order of their steps; an error comes in its turn, as it was raised."""
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


def loader(
    dataset: Dataset[Batch], *, workers: int, steps: Iterable[list[Any]], device: torch.device | None = None
) -> DataLoader[Batch]:
    """Batches of `dataset`, one a step.

    Args:
        dataset: of scans; several threads ask it for items at a time.
        workers: threads that read ahead; 0 reads when a batch is asked for.
        steps: the items of each step, as `dataset` takes them.
        device: where batches are wanted; to a GPU each is sent while the one before it is worked on.

    What `dataset` raises comes as it is, after the batches of all steps before.
    """
    made = _Loader(dataset, batch_size=None, sampler=steps)
    made.threads = workers
    made.device = device if device is not None and device.type == "cuda" else None
    return made
