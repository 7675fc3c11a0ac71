"""Data augmentation of scans: flips, rotation, scaling, shift, brightness, noise and synthetic bleeds.

The augmentation is applied when the pictures are computed (`ich_mil.kernels.pictures`). It depends on (seed,
epoch, scan id) alone, so a resumed run and a run with other workers or ranks see the same pictures, except
for the pixel noise, which differs between GPU and CPU.

All slices of a scan get the same flip, rotation, scaling, shift and brightness, like another patient on
another scanner. Slices are never dropped, because a dropped slice could be the only slice with a bleed.
"""

import hashlib
import math
import zlib
from dataclasses import replace

import numpy as np
import torch
from torch.utils.data import Dataset

from ich_mil.data.bags import Batch, ScanDataset
from ich_mil.kernels.pictures import Variation
from ich_mil.synthetic.bleeds import Insertion, cells_of, insert, inside_skull

TURN = 15.0
"""Largest rotation, in degrees."""
ZOOM = 0.1
"""Largest relative change of size."""
SHIFT = 0.06
"""Largest shift, as a share of the picture's side."""
BRIGHTER = 3.0
"""Largest shift of all values, in HU; about the difference between scanners."""
NOISE = 3.0
"""Largest standard deviation of added noise, in HU."""


def generator_of(seed: int, epoch: int, scan: str) -> np.random.Generator:
    """Random generator for one scan in one epoch."""
    key = int.from_bytes(hashlib.sha256(scan.encode()).digest()[:8])
    return np.random.default_rng([seed, epoch, key])


def draw_variation(rng: np.random.Generator) -> Variation:
    """Draw a random augmentation of one scan."""
    flip = -1.0 if rng.random() < 0.5 else 1.0
    angle = np.radians(rng.uniform(-TURN, TURN))
    size = 1 + rng.uniform(-ZOOM, ZOOM)
    across, down = rng.uniform(-2 * SHIFT, 2 * SHIFT, 2)  # the grid runs from -1 to 1
    cos, sin = np.cos(angle) / size, np.sin(angle) / size
    matrix = torch.tensor([[flip * cos, -sin, across], [flip * sin, cos, down]], dtype=torch.float32)
    noise = float(rng.uniform(0, NOISE))
    return Variation(matrix, float(rng.uniform(-BRIGHTER, BRIGHTER)), noise, int(rng.integers(2**62)))


class VariedScans(Dataset[Batch]):
    """Dataset of augmented scans: item (epoch, i) is scan i as augmented in that epoch.

    A negative scan becomes positive if it gets a synthetic bleed, and stays negative if it gets a control.

    Args:
        scans: the original scans.
        seed: random seed.
        augmented: whether pictures are augmented.
        bleeds: probability that a negative scan gets a bleed.
        controls: probability that a negative scan gets a control instead.
    """

    def __init__(
        self, scans: ScanDataset, *, seed: int, augmented: bool, bleeds: float, controls: float
    ) -> None:
        self.scans, self.seed, self.augmented = scans, seed, augmented
        self.bleeds, self.controls = bleeds, controls
        self._inside: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.scans)

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        epoch, index = key
        batch = self.scans[index]
        rng = generator_of(self.seed, epoch, batch.scans[0])
        if batch.labels.tolist() == [0]:  # one negative bag: insertions are drawn into whole scans only
            draw = rng.random()
            blood = draw < self.bleeds
            if draw < self.bleeds + self.controls and (drawn := self.drawn(index, rng, blood=blood)):
                hu, changed = batch.hu[0].clone(), torch.from_numpy(drawn.slices)
                hu[changed] = torch.from_numpy(drawn.hu)
                labels = torch.full_like(batch.labels, float(blood))
                batch = replace(batch, hu=(hu,), changed=(changed,), labels=labels)
        return replace(batch, variations=(draw_variation(rng),)) if self.augmented else batch

    def drawn(self, index: int, rng: np.random.Generator, *, blood: bool) -> Insertion | None:
        """Draw a synthetic bleed, or a control, into scan `index`. None if it has no room."""
        scan = self.scans.scans[index]
        hu = self.scans.prepared.hu(scan)
        box = self.scans.box(index, hu)
        cells = (len(hu), *cells_of(hu.shape))
        if index not in self._inside:
            self._inside[index] = zlib.compress(np.packbits(inside_skull(hu)).tobytes())  # 0.3 KB per slice
        bits = np.frombuffer(zlib.decompress(self._inside[index]), np.uint8)
        inside = np.unpackbits(bits, count=math.prod(cells)).view(np.bool_).reshape(cells)
        heights = self.scans.prepared.slices(scan).position_mm.to_numpy(np.float64)
        drawn = insert(hu, heights, inside, rng, blood=blood)
        return None if drawn is None else replace(drawn, hu=box.crop(drawn.hu))
