"""Packed bags of windowed slices: what the CNN is fed.

In: prepared scans. Out: `Batch`, several scans packed into one tensor with offsets; nothing is padded or
cropped.

Shapes: B scans of the batch, N slices of all of them, C windows, S input size in pixels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ich_mil.data.store import PreparedSet
from ich_mil.windows import Windows, apply_windows, resize


@dataclass(frozen=True)
class Batch:
    """Packed scans.

    Attributes:
        pictures: (N, C, S, S) float32 in [0, 1].
        offsets: (B + 1,) int64.
        labels: (B,) float32 in {0, 1}; -1 where unknown.
        scans: B scan ids.
    """

    pictures: Tensor
    offsets: Tensor
    labels: Tensor
    scans: list[str]

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        return Batch(self.pictures.to(device), self.offsets.to(device), self.labels.to(device), self.scans)


KEEP_BYTES = 2 << 30
"""Windowed pictures of up to this size stay in memory: a small set is windowed once, not each epoch."""


class ScanDataset(Dataset[Batch]):
    """Item i is scan i as a batch of one, windowed and resized on load.

    Args:
        prepared: the scans.
        scans: their ids, in the order of the items.
        windows: C windows.
        image_size: S in pixels.
        keep: hold each scan's pictures after the first load if all of them fit into `KEEP_BYTES`.
    """

    def __init__(
        self,
        prepared: PreparedSet,
        scans: Sequence[str],
        *,
        windows: Windows,
        image_size: int,
        keep: bool = False,
    ) -> None:
        self.prepared = prepared
        self.scans = list(scans)
        self.windows = windows
        self.image_size = image_size
        about = prepared.scans.loc[self.scans]
        self.labels = about.label.tolist()
        size = int(about.slices.sum()) * len(windows) * image_size**2 * torch.float32.itemsize
        self._kept: dict[int, Tensor] | None = {} if keep and size <= KEEP_BYTES else None

    def __len__(self) -> int:
        return len(self.scans)

    def __getitem__(self, index: int) -> Batch:
        pictures = self._pictures(index)
        offsets = torch.tensor([0, len(pictures)])
        return Batch(pictures, offsets, torch.tensor([float(self.labels[index])]), [self.scans[index]])

    def _pictures(self, index: int) -> Tensor:
        if self._kept is not None and index in self._kept:
            return self._kept[index]
        pictures = self.window(self.prepared.hu(self.scans[index]))
        if self._kept is not None:
            self._kept[index] = pictures
        return pictures

    def window(self, hu: np.ndarray) -> Tensor:
        """Slices (n, H, W) int16 HU as pictures (n, C, S, S)."""
        return resize(apply_windows(torch.from_numpy(hu.copy()), self.windows), self.image_size)


class EpochSampler(Sampler[int]):
    """A new order each epoch that depends on (seed, epoch) alone: a resumed run sees the same order."""

    def __init__(self, size: int, *, seed: int) -> None:
        self.size = size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return iter(torch.randperm(self.size, generator=generator).tolist())


def pack(batches: Sequence[Batch]) -> Batch:
    """Several batches as one."""
    sizes = torch.cat([batch.offsets.diff() for batch in batches])
    return Batch(
        torch.cat([batch.pictures for batch in batches]),
        torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
        torch.cat([batch.labels for batch in batches]),
        [scan for batch in batches for scan in batch.scans],
    )


def loader(
    dataset: Dataset[Batch], *, bags: int, workers: int, sampler: EpochSampler | None = None
) -> DataLoader[Batch]:
    """Batches of `bags` scans, in order, or in the order of `sampler`."""
    return DataLoader(
        dataset,
        batch_size=bags,
        sampler=sampler,
        num_workers=workers,
        collate_fn=pack,
        persistent_workers=workers > 0,
    )
