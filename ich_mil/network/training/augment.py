"""Data augmentation of scans: flips, rotation, scaling, shift, brightness and noise.

The augmentation is applied when the pictures are computed (`ich_mil.network.pictures`). It depends on (seed,
epoch, scan id) alone, so a resumed run and a run with other workers or ranks see the same pictures, except
for the pixel noise, which differs between GPU and CPU.

All slices of a scan get the same flip, rotation, scaling, shift and brightness, like another patient on
another scanner. Slices are never dropped, because a dropped slice could be the only slice with a bleed.
"""

import hashlib
from dataclasses import replace

import numpy as np
import torch
from torch.utils.data import Dataset

from ich_mil.network.bags import Batch, ScanDataset
from ich_mil.network.pictures import Variation

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

    Args:
        scans: the original scans.
        seed: random seed.
        augmented: whether pictures are augmented.
    """

    def __init__(self, scans: ScanDataset, *, seed: int, augmented: bool) -> None:
        self.scans, self.seed, self.augmented = scans, seed, augmented

    def __len__(self) -> int:
        return len(self.scans)

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        epoch, index = key
        batch = self.scans[index]
        if not self.augmented:
            return batch
        rng = generator_of(self.seed, epoch, batch.scans[0])
        if batch.labels.tolist() == [0]:
            rng.random()  # the draw of a former setting; without it stored figures would change
        return replace(batch, variations=(draw_variation(rng),))
