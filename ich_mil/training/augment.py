"""Scans that vary from epoch to epoch: turned, shifted, brightened, with synthetic bleeds.

In: a `ScanDataset`. Out: `VariedScans`, whose items are the same scans varied. What varies depends on (seed,
epoch, scan id) alone, so a resumed run, or one with other workers, sees the same pictures.

All slices of a scan are flipped, turned, scaled, shifted and brightened alike, as another patient on another
scanner would be; only the noise is each pixel's own. Slices are never dropped: the only one with the bleed
might be among them.

Shapes: n slices of a scan, C windows, S pixels.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample
from torch.utils.data import Dataset

from ich_mil.data.bags import Batch, EpochSampler, ScanDataset
from ich_mil.training.bleeds import cells_of, insert, inside_skull
from ich_mil.windows import Windows

TURN = 15.0
"""Largest rotation, in degrees."""
ZOOM = 0.1
"""Largest change of size: a tenth."""
SHIFT = 0.06
"""Largest shift, as a share of the picture's side."""
BRIGHTER = 3.0
"""Largest shift of all values, in HU: scanners differ by about as much."""
NOISE = 3.0
"""Largest standard deviation of added noise, in HU."""


def generator_of(seed: int, epoch: int, scan: str) -> np.random.Generator:
    """The generator of one scan in one epoch."""
    key = int.from_bytes(hashlib.sha256(scan.encode()).digest()[:8])
    return np.random.default_rng([seed, epoch, key])


def augment(pictures: Tensor, windows: Windows, rng: np.random.Generator) -> Tensor:
    """A scan's pictures, varied.

    Brightness and noise are drawn in HU and divided by each window's width. A pixel at 0 or 1 lies outside
    the window, nobody knows how far, and stays there.

    Args:
        pictures: (n, C, S, S) in [0, 1].
        windows: the C windows they were made with.
        rng: the source of every choice.

    Returns:
        (n, C, S, S) in [0, 1].
    """
    flip = -1.0 if rng.random() < 0.5 else 1.0
    angle = np.radians(rng.uniform(-TURN, TURN))
    size = 1 + rng.uniform(-ZOOM, ZOOM)
    across, down = rng.uniform(-2 * SHIFT, 2 * SHIFT, 2)  # the grid runs from -1 to 1
    cos, sin = np.cos(angle) / size, np.sin(angle) / size
    matrix = torch.tensor([[flip * cos, -sin, across], [flip * sin, cos, down]], dtype=pictures.dtype)
    n, _, side, _ = pictures.shape
    grid = affine_grid(matrix[None], [1, 1, side, side], align_corners=False).expand(n, -1, -1, -1)
    # zeros outside: air, in every window
    moved = grid_sample(pictures, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    noise = rng.uniform(0, NOISE) * rng.standard_normal((n, 1, side, side), dtype=np.float32)
    hu = torch.from_numpy(noise).float() + rng.uniform(-BRIGHTER, BRIGHTER)  # (n, 1, S, S)
    width = torch.tensor([w for _, w in windows], dtype=pictures.dtype)[:, None, None]
    within = (moved > 0) & (moved < 1)
    return torch.where(within, moved + hu / width, moved).clamp_(0.0, 1.0)


class Drawn(NamedTuple):
    """Slices of a scan that something was drawn into."""

    slices: Tensor  # (k,) their places in the scan
    pictures: Tensor  # (k, C, S, S)
    shown: Tensor  # (k,) bool, whether enough of it is on the slice to be seen


class VariedScans(Dataset[Batch]):
    """Item (epoch, i) is scan i as it is in that epoch.

    A scan labelled negative becomes positive where it gets a bleed, and stays negative with a control.

    Args:
        scans: the scans as they are.
        seed: of all choices.
        augmented: whether pictures are varied by `augment`.
        bleeds: probability that a negative scan gets a bleed.
        controls: probability that it gets a control instead.
    """

    def __init__(
        self, scans: ScanDataset, *, seed: int, augmented: bool, bleeds: float, controls: float
    ) -> None:
        self.scans = scans
        self.seed = seed
        self.augmented = augmented
        self.bleeds = bleeds
        self.controls = controls
        self._inside: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.scans)

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        epoch, index = key
        batch = self.scans[index]
        rng = generator_of(self.seed, epoch, batch.scans[0])
        pictures, labels = batch.pictures, batch.labels
        if labels.item() == 0:
            draw = rng.random()
            blood = draw < self.bleeds
            if draw < self.bleeds + self.controls and (drawn := self.drawn(index, rng, blood=blood)):
                pictures = pictures.clone()
                pictures[drawn.slices] = drawn.pictures
                labels = torch.full_like(labels, float(blood))
        if self.augmented:
            pictures = augment(pictures, self.scans.windows, rng)
        return Batch(pictures, batch.offsets, labels, batch.scans)

    def drawn(self, index: int, rng: np.random.Generator, *, blood: bool) -> Drawn | None:
        """The slices that a synthetic bleed, or a control, changes; None where the scan has no room."""
        scan = self.scans.scans[index]
        hu = self.scans.prepared.hu(scan)
        if index not in self._inside:
            self._inside[index] = np.packbits(inside_skull(hu), axis=-1)  # 8 KB a slice
        inside = np.unpackbits(self._inside[index], axis=-1, count=cells_of(hu.shape)[1]).view(np.bool_)
        heights = self.scans.prepared.slices(scan).position_mm.to_numpy(np.float64)
        insertion = insert(hu, heights, inside, rng, blood=blood)
        if insertion is None:
            return None
        slices, shown = torch.from_numpy(insertion.slices), torch.from_numpy(insertion.shown)
        return Drawn(slices, self.scans.window(insertion.hu), shown)


class EpochKeys(EpochSampler):
    """As `EpochSampler`, its items are (epoch, place): a worker process learns of the epoch no other way."""

    def __iter__(self) -> Iterator[tuple[int, int]]:  # type: ignore[override]
        return ((self.epoch, place) for place in super().__iter__())
