"""Packed bags of slices: what a device is sent, and what a CNN is fed.

In: prepared scans. Out: `Batch`, several scans as stored, int16 HU, packed; and from it, on the device it was
sent to, pictures (`ich_mil.kernels.pictures`). HU are a sixth of the bytes of their pictures, and a GPU makes
these faster than they cross to it. Nothing is padded; scans may be cropped to the head.

A scan is one bag with its label. Where it is used slice by slice each of its slices is a bag, with the label
of that slice; its pictures are made, and varied, together all the same.

Shapes: B bags of the batch, N slices of all of them, n of one scan, W windows, C = W (1 + 2 neighbours)
channels, S input size in pixels.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from ich_mil.data.store import PreparedSet
from ich_mil.dicom.head_box import HeadBox, head_box
from ich_mil.kernels.pictures import Variation, pictures_of, vary
from ich_mil.kernels.segments import bag_index
from ich_mil.ranks import ALONE, Ranks
from ich_mil.windows import Windows, to_pictures


@dataclass(frozen=True)
class Batch:
    """Packed scans.

    Attributes:
        hu: a tensor (n, H, W) int16 Hounsfield units for each scan, lowest slice first.
        changed: a tensor (k,) int64 for each scan, the slices that something was drawn into.
        offsets: (B + 1,) int64, of the bags.
        labels: (B,) float32 in {0, 1}; -1 where unknown.
        scans: the ids of the scans; as many as bags unless a scan is used slice by slice.
        variations: of the scans; empty where pictures are left as they are (`ich_mil.training.augment`).
    """

    hu: tuple[Tensor, ...]
    changed: tuple[Tensor, ...]
    offsets: Tensor
    labels: Tensor
    scans: tuple[str, ...]
    variations: tuple[Variation, ...] = ()

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device; from pinned memory the host does not wait for it.

        `offsets` stay where they are: the host reads them, and would wait for a GPU to give them back.
        """
        return self._each(lambda value: value.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """A copy in memory that a GPU can copy from by itself."""
        return self._each(_pinned)

    def _each(self, copy: Callable[[Tensor], Tensor]) -> "Batch":
        hu, changed = tuple(map(copy, self.hu)), tuple(map(copy, self.changed))
        return replace(self, hu=hu, changed=changed, labels=copy(self.labels))


def _pinned(value: Tensor) -> Tensor:
    """A copy in pinned memory, made by this thread alone: torch would start one a core, for each caller."""
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    np.copyto(copy.numpy(), value.numpy())
    return copy


class ScanDataset(Dataset[Batch]):
    """Item i is scan i as a batch of one.

    Args:
        prepared: the scans.
        scans: their ids, in the order of the items.
        crop: crop each scan to the head.
        in_slices: scans that are used slice by slice.

    Attributes:
        labels: of the scans.
        sizes: (scans,) slices of each.
        bag_labels: of the bags of all scans, in their order.
    """

    def __init__(
        self,
        prepared: PreparedSet,
        scans: Sequence[str],
        *,
        crop: bool = False,
        in_slices: Collection[str] = (),
    ) -> None:
        self.prepared = prepared
        self.scans = list(scans)
        self.crop = crop
        self._boxes: dict[int, HeadBox] = {}
        about = prepared.scans.loc[self.scans]
        self.labels: list[int] = about.label.tolist()
        self.sizes = torch.tensor(about.slices.tolist())
        chosen = {*in_slices}
        self._bags = [
            prepared.slices(scan).slice_label.tolist() if scan in chosen else [label]
            for scan, label in zip(self.scans, self.labels, strict=True)
        ]
        self.bag_labels = [label for labels in self._bags for label in labels]

    def __len__(self) -> int:
        return len(self.scans)

    def box(self, index: int) -> HeadBox:
        """The part of the slices of scan `index` that is shown."""
        if index not in self._boxes:
            hu = self.prepared.hu(self.scans[index])
            self._boxes[index] = head_box(hu) if self.crop else HeadBox.whole(hu)
        return self._boxes[index]

    def __getitem__(self, index: int) -> Batch:
        hu = torch.from_numpy(self.box(index).crop(self.prepared.hu(self.scans[index])))
        return Batch(
            (hu,),
            (torch.empty(0, dtype=torch.int64),),
            torch.arange(0, len(hu) + 1, len(hu) // len(self._bags[index])),  # one bag, or one a slice
            torch.tensor([float(label) for label in self._bags[index]]),
            (self.scans[index],),
        )


KEEP_BYTES = 2 << 30
"""Pictures of up to this size stay in memory on the CPU: a small set is windowed once, not each epoch. So do
the maps of an encoder's frozen blocks, on the device."""


class Pictures:
    """Makes the pictures of batches, on the device a batch lies on.

    Attributes:
        windows: W windows.
        size: S in pixels.
        neighbours: slices above and below that are channels too; at the ends of a scan the last one again.
    """

    def __init__(self, windows: Windows, size: int, *, neighbours: int = 0, slices: int = 0) -> None:
        """Take the windows.

        Args:
            windows: W windows.
            size: S in pixels.
            neighbours: 0 or 1.
            slices: of all scans that will come again and again; on the CPU their pictures are kept if all of
                them fit into `KEEP_BYTES`. 0 keeps none.
        """
        self.windows = windows
        self.size = size
        self.neighbours = neighbours
        n_bytes = slices * len(windows) * size**2 * torch.float32.itemsize
        self._kept: dict[str, Tensor] | None = {} if 0 < n_bytes <= KEEP_BYTES else None

    def of(self, hu: Tensor) -> Tensor:
        """Slices (n, H, W) int16 HU, each by itself, as pictures (n, W, S, S)."""
        return to_pictures(hu, self.windows, self.size)

    def beside(self, pictures: Tensor, offsets: Tensor) -> Tensor:
        """Pictures (N, W, S, S) of packed scans with those of their neighbours, (N, C, S, S)."""
        if not self.neighbours:
            return pictures
        bags = bag_index(offsets)  # (N,)
        places = torch.arange(len(bags))
        first, last = offsets[:-1][bags], offsets[1:][bags] - 1
        around = range(-self.neighbours, self.neighbours + 1)
        shifted = [(places + step).clamp(first, last).to(pictures.device) for step in around]
        return torch.cat([pictures[rows] for rows in shifted], 1)

    def scan(self, hu: Tensor) -> Tensor:
        """The slices (n, H, W) int16 HU of one scan as pictures (n, C, S, S)."""
        return self.beside(self.of(hu), torch.tensor([0, len(hu)]))

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Pictures (N, C, S, S) float32 in [0, 1], varied where the batch says so."""
        if self._kept is None or batch.hu[0].device.type != "cpu":
            made = pictures_of(batch.hu, self.windows, self.size, batch.variations)
        else:
            parts = zip(batch.hu, batch.changed, batch.scans, strict=True)
            made = vary([self._scan(self._kept, *part) for part in parts], batch.variations, self.windows)
        return self.beside(made, torch.tensor([0, *(len(hu) for hu in batch.hu)]).cumsum(0))

    def _scan(self, kept: dict[str, Tensor], hu: Tensor, changed: Tensor, scan: str) -> Tensor:
        if scan not in kept:
            if len(changed):
                return self.of(hu)
            kept[scan] = self.of(hu)
        pictures = kept[scan]
        if len(changed):
            pictures = pictures.clone()
            pictures[changed] = self.of(hu[changed])
        return pictures


class StepSampler(Sampler[list[tuple[int, int]]]):
    """The steps of an epoch: which scans each takes, and of those the share of this rank.

    Items of a step are (epoch, place): those who read it ahead learn of the epoch no other way. The steps
    depend on (seed, epoch) alone: a resumed run sees the same, and so does one on another number of ranks.
    Each scan comes once an epoch; steps differ by at most one scan, and have about equally many slices, so
    that memory is not ruled by the unluckiest. All ranks have the same number of steps, none is empty.

    Args:
        sizes: (B,) slices of each scan.
        bags: scans a step, on all ranks together.
        seed: of the order.
        ranks: that share the scans of a step.

    Raises:
        ValueError: a step would have fewer scans than there are ranks.
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
        """Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in self.plan():
            chosen = torch.tensor(step)
            yield [(self.epoch, step[i]) for i in self.ranks.share(self.sizes[chosen]).tolist()]

    def plan(self) -> list[list[int]]:
        """The scans of each step of this epoch, on all ranks."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.sizes), generator=generator)
        steps: list[list[int]] = [[] for _ in range(self.steps)]
        loads = torch.zeros(self.steps, dtype=torch.int64)
        # each round deals one scan to every step, of those at hand the longest to the one with the fewest
        # slices so far
        for dealt in order.split(self.steps):
            falling = dealt[self.sizes[dealt].argsort(descending=True, stable=True)].tolist()
            for step, scan in zip(loads.argsort(stable=True).tolist(), falling, strict=False):
                steps[step].append(scan)
                loads[step] += self.sizes[scan]
        return [steps[i] for i in torch.randperm(self.steps, generator=generator).tolist()]


def collate(batches: Sequence[Batch]) -> Batch:
    """Several batches joined into one, scans in the order given: a `collate_fn` for a `DataLoader`."""
    sizes = torch.cat([batch.offsets.diff() for batch in batches])
    return Batch(
        tuple(one for batch in batches for one in batch.hu),
        tuple(one for batch in batches for one in batch.changed),
        torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
        torch.cat([batch.labels for batch in batches]),
        tuple(scan for batch in batches for scan in batch.scans),
        tuple(one for batch in batches for one in batch.variations),
    )
