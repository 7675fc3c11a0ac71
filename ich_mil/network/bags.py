"""Packed bags of slices: batches of scans in int16 HU, and the CNN's input pictures computed from them.

The pictures are computed on the device that holds the batch (`ich_mil.network.pictures`): the HU take a sixth
of their bytes, and a GPU computes pictures faster than they could be transferred to it. Nothing is padded.

A scan is one bag with one label. For a scan used slice by slice, each slice is a bag with its own label; the
pictures of the scan are still computed and augmented together.

Shapes: B bags of the batch, N slices of the batch, n slices of one scan, W windows, C = W (1 + 2 neighbours)
channels, S picture size in pixels.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler, get_worker_info

from ich_mil.kernels.segments import bag_index
from ich_mil.network.pictures import Variation, pictures_of, vary
from ich_mil.network.windows import to_pictures
from ich_mil.ranks import ALONE, Ranks
from ich_mil.sets.store import PreparedSet
from ich_mil.study.head_box import HeadBox, head_box
from ich_mil.study.window_presets import Windows


@dataclass(frozen=True)
class Batch:
    """Packed scans.

    Attributes:
        hu: (n, H, W) int16 Hounsfield units of each scan, lowest slice first.
        offsets: (B + 1,) int64 offsets of the bags.
        labels: (B,) float32 bag labels in {0, 1}; -1 where unknown.
        scans: scan ids; one per bag unless a scan is used slice by slice.
        variations: augmentation of each scan (`ich_mil.network.training.augment`); empty for no augmentation.
    """

    hu: tuple[Tensor, ...]
    offsets: Tensor
    labels: Tensor
    scans: tuple[str, ...]
    variations: tuple[Variation, ...] = ()

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to a device, except `offsets`: the host reads them and would wait for the GPU."""
        return self._each(lambda value: value.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """Copy the batch to pinned memory, for an asynchronous copy to a GPU; called by `DataLoader`."""
        return self._each(Tensor.pin_memory)

    def _each(self, copy: Callable[[Tensor], Tensor]) -> "Batch":
        return replace(self, hu=tuple(map(copy, self.hu)), labels=copy(self.labels))


class ScanDataset(Dataset[Batch]):
    """Dataset of scans: item i is scan i as a batch of one scan.

    Scans are cropped to the head if `crop`. The scans `in_slices` are used slice by slice. With `keep`, for
    scans that are requested each epoch, decoded scans stay in memory up to `KEEP_HU_BYTES`; not in workers.

    Attributes:
        labels: scan labels.
        sizes: (scans,) number of slices of each scan.
        bag_labels: labels of the bags of all scans, in order.
    """

    def __init__(
        self,
        prepared: PreparedSet,
        scans: Sequence[str],
        *,
        crop: bool = False,
        in_slices: Collection[str] = (),
        keep: bool = False,
    ) -> None:
        self.prepared, self.scans, self.crop = prepared, list(scans), crop
        self._boxes: dict[int, HeadBox] = {}
        self._kept: dict[int, Tensor] = {}
        self._free = KEEP_HU_BYTES if keep else 0
        rows = prepared.scans.loc[self.scans]
        self.labels: list[int] = rows.label.tolist()
        self.sizes = torch.tensor(rows.slices.tolist())
        chosen = {*in_slices}
        self._bags = [
            prepared.slices(scan).slice_label.tolist() if scan in chosen else [label]
            for scan, label in zip(self.scans, self.labels, strict=True)
        ]
        self.bag_labels = [label for labels in self._bags for label in labels]

    def __len__(self) -> int:
        return len(self.scans)

    def __getitem__(self, index: int) -> Batch:
        hu = self._kept[index].clone() if index in self._kept else self._read(index)
        return Batch(
            (hu,),
            torch.arange(0, len(hu) + 1, len(hu) // len(self._bags[index])),  # one bag, or one bag per slice
            torch.tensor([float(label) for label in self._bags[index]]),
            (self.scans[index],),
        )

    def _read(self, index: int) -> Tensor:
        """HU of a scan from its file, cropped; they are kept if there is room."""
        stack = self.prepared.hu(self.scans[index])
        if index not in self._boxes:
            self._boxes[index] = head_box(stack) if self.crop else HeadBox.whole(stack)
        hu = torch.from_numpy(np.ascontiguousarray(self._boxes[index].crop(stack)))
        if get_worker_info() is None and hu.nbytes <= self._free:
            self._free -= hu.nbytes
            self._kept[index] = hu.clone()
        return hu


KEEP_HU_BYTES = 1 << 30
"""Limit in bytes of the decoded scans that a `ScanDataset` keeps."""

KEEP_BYTES = 2 << 30
"""Cache limit in bytes, for pictures on the CPU (a small set is windowed once, not once per epoch) and for
the feature maps of frozen encoder blocks on the device."""


class Pictures:
    """Compute the CNN's input pictures of a batch, on the device that holds the batch.

    Args:
        windows: W windows.
        size: S in pixels.
        neighbours: number of slices above and below, 0 or 1, whose windows are further channels. At the ends
            of a scan the outermost slice is repeated.
        slices: total number of slices of the scans that are requested repeatedly. On the CPU their pictures
            are cached if all of them fit into `KEEP_BYTES`. 0 disables the cache.
    """

    def __init__(self, windows: Windows, size: int, *, neighbours: int = 0, slices: int = 0) -> None:
        self.windows, self.size, self.neighbours = windows, size, neighbours
        n_bytes = slices * len(windows) * size**2 * torch.float32.itemsize
        self._kept: dict[str, Tensor] | None = {} if 0 < n_bytes <= KEEP_BYTES else None

    def of(self, hu: Tensor) -> Tensor:
        """Window and resize slices (n, H, W) int16 HU to pictures (n, W, S, S), without neighbours."""
        return to_pictures(hu, self.windows, self.size)

    def beside(self, pictures: Tensor, offsets: Tensor) -> Tensor:
        """Append the neighbours' channels to pictures (N, W, S, S) of packed scans: (N, C, S, S)."""
        if not self.neighbours:
            return pictures
        bags = bag_index(offsets)  # (N,)
        rows, first, last = torch.arange(len(bags)), offsets[:-1][bags], offsets[1:][bags] - 1
        around = range(-self.neighbours, self.neighbours + 1)
        shifted = [(rows + step).clamp(first, last).to(pictures.device) for step in around]
        return torch.cat([pictures[rows] for rows in shifted], 1)

    def scan(self, hu: Tensor) -> Tensor:
        """Pictures (n, C, S, S) of the slices (n, H, W) int16 HU of one scan."""
        return self.beside(self.of(hu), torch.tensor([0, len(hu)]))

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Pictures (N, C, S, S) float32 in [0, 1] of a batch, with the batch's augmentation applied."""
        if self._kept is None or batch.hu[0].device.type != "cpu":
            made = pictures_of(batch.hu, self.windows, self.size, batch.variations)
        else:
            for hu, scan in zip(batch.hu, batch.scans, strict=True):
                if scan not in self._kept:
                    self._kept[scan] = self.of(hu)
            made = vary([self._kept[scan] for scan in batch.scans], batch.variations, self.windows)
        return self.beside(made, torch.tensor([0, *(len(hu) for hu in batch.hu)]).cumsum(0))


class StepSampler(Sampler[list[tuple[int, int]]]):
    """Sampler of training steps: the scans of each step of an epoch, restricted to this rank's share.

    The items of a step are pairs (epoch, scan index), because the processes that read ahead have no other way
    to know the epoch. The steps depend on (seed, epoch) alone, so a resumed run and a run on another number
    of ranks see the same steps. Step sizes differ by at most one scan, and the steps have about equally many
    slices, which keeps peak memory low. All ranks have the same number of steps, and none is empty.

    `sizes` (B,) are the numbers of slices, `bags` the scans per step over all ranks. `ValueError`: a step
    would have fewer scans than there are ranks.
    """

    def __init__(self, sizes: Tensor, *, bags: int, seed: int, ranks: Ranks = ALONE) -> None:
        self.sizes = sizes
        self.steps = -(-len(sizes) // bags)
        if (least := len(sizes) // self.steps) < ranks.size:
            raise ValueError(
                f"{len(sizes)} scans in {self.steps} steps leave {least} for some of them, which cannot be "
                f"shared among {ranks.size} processes"
            )
        self.seed = seed
        self.ranks = ranks
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in self.plan():
            chosen = torch.tensor(step)
            yield [(self.epoch, step[i]) for i in self.ranks.share(self.sizes[chosen]).tolist()]

    def plan(self) -> list[list[int]]:
        """Scan indices of each step of this epoch, over all ranks."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.sizes), generator=generator)
        steps: list[list[int]] = [[] for _ in range(self.steps)]
        loads = torch.zeros(self.steps, dtype=torch.int64)
        # Each round assigns one scan to every step. Within a round, the longest scan goes to the step with
        # the fewest slices so far.
        for dealt in order.split(self.steps):
            falling = dealt[self.sizes[dealt].argsort(descending=True, stable=True)].tolist()
            for step, scan in zip(loads.argsort(stable=True).tolist(), falling, strict=False):
                steps[step].append(scan)
                loads[step] += self.sizes[scan]
        return [steps[i] for i in torch.randperm(self.steps, generator=generator).tolist()]


def collate(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches, keeping the order of their scans: a `collate_fn` for a `DataLoader`."""
    sizes = torch.cat([batch.offsets.diff() for batch in batches])
    return Batch(
        tuple(hu for batch in batches for hu in batch.hu),
        torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
        torch.cat([batch.labels for batch in batches]),
        tuple(scan for batch in batches for scan in batch.scans),
        tuple(variation for batch in batches for variation in batch.variations),
    )
