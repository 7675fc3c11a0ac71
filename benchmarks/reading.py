"""Speed of reading scans from a prepared set: by threads, and by the processes of torch's `DataLoader`.

    python -m benchmarks.reading --prepared FOLDER [--bags 4] [--steps 30] [--workers 0 1 2] [--write]

All readers read the same endless sequence of steps, each with its own read-ahead. A step is complete when its
HU are on the GPU. Without a GPU, it is complete when the training process has copied its HU to preallocated
memory, in place of the transfer from pinned memory. The readers run in turn; batches read ahead during
another reader's turn are consumed before timing. Processes pass pixels through shared memory, torch's
default.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.record import command_line, record, table
from benchmarks.timing import DEVICE, machine_name
from ich_mil.data.bags import ScanDataset, StepSampler
from ich_mil.data.loader import AHEAD, loader
from ich_mil.data.store import open_prepared
from ich_mil.training.augment import VariedScans

ROUNDS = 5


@dataclass
class Pixels(Dataset[list[Tensor]]):
    """Dataset whose items are the HU of a step, for the worker processes of torch."""

    scans: VariedScans

    def __getitem__(self, step: Sequence[tuple[int, int]]) -> list[Tensor]:
        return [self.scans[key].hu[0] for key in step]


class Place:
    """Destination of the pixels: the GPU, or preallocated memory."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.int16)

    def take(self, hu: Sequence[Tensor]) -> int:
        """Copy the HU of a step to the destination; number of bytes."""
        if DEVICE.type == "cuda":
            here = [one.to(DEVICE, non_blocking=True) for one in hu]
            torch.cuda.synchronize()
            return sum(one.nbytes for one in here)
        size = sum(one.numel() for one in hu)
        if len(self.memory) < size:
            self.memory = torch.zeros(2 * size, dtype=torch.int16)
        for part, one in zip(self.memory[:size].split([one.numel() for one in hu]), hu, strict=True):
            part.view(one.shape).copy_(one)
        return 2 * size


@dataclass
class Way:
    """A reader: its name, the number of steps it reads ahead, an endless iterator over the HU of steps."""

    name: str
    ahead: int
    coming: Iterator[Sequence[Tensor]]

    def seconds(self, steps: int, place: Place) -> tuple[float, int]:
        """Time of `steps` steps in seconds, and their number of bytes."""
        for _ in range(self.ahead):
            place.take(next(self.coming))
        started = perf_counter()
        size = sum(place.take(next(self.coming)) for _ in range(steps))
        return perf_counter() - started, size


def by_threads(scans: VariedScans, keys: Sequence[list[tuple[int, int]]], workers: int) -> Way:
    """Reader of `ich_mil`, with threads."""
    batches = loader(scans, workers=workers, steps=cycle(keys), device=DEVICE)
    return Way(f"{workers} threads", AHEAD * workers, (batch.hu for batch in batches))


def by_processes(scans: VariedScans, keys: Sequence[list[tuple[int, int]]], workers: int) -> Way:
    """Reader of torch's `DataLoader`, with processes."""
    pinned = DEVICE.type == "cuda"
    batches: DataLoader[list[Tensor]] = DataLoader(
        Pixels(scans), batch_size=None, sampler=cycle(keys), num_workers=workers, pin_memory=pinned
    )
    return Way(f"{workers} processes", 2 * workers, iter(batches))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--bags", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    chosen = parser.parse_args()
    prepared = open_prepared(chosen.prepared)
    scans = ScanDataset(prepared, list(prepared.scans.index[prepared.scans.label >= 0]))
    varied = VariedScans(scans, seed=0, augmented=True)
    keys = list(StepSampler(scans.sizes, bags=chosen.bags, seed=0))
    ways: list[Way] = []
    for workers in chosen.workers:
        ways.append(by_threads(varied, keys, workers))
        if workers:
            ways.append(by_processes(varied, keys, workers))
    place = Place()
    found: dict[str, list[float]] = {way.name: [] for way in ways}
    rates: dict[str, list[float]] = {way.name: [] for way in ways}
    for turn in range(ROUNDS + 1):
        for way in ways:
            seconds, size = way.seconds(chosen.steps, place)
            if turn:  # the first round is the warm-up
                found[way.name].append(seconds / chosen.steps * 1e3)
                rates[way.name].append(size / seconds / 1e9)
    rows = []
    for name, one in found.items():
        times = f"{statistics.median(one):.1f} ms ({min(one):.1f}-{max(one):.1f})"
        rows.append([name, times, f"{statistics.median(rates[name]):.2f} GB/s"])
    slices = sum(int(scans.sizes[place]) for step in keys for _, place in step) / len(keys)
    head = f"{machine_name()}; steps of {slices:.0f} slices, {ROUNDS} rounds."
    record("Reading scans ahead", f"{head}\n\n{table(['read by', 'a step, median (range)', 'rate'], rows)}")


if __name__ == "__main__":
    main()
