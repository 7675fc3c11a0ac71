"""Localisation metrics of heatmaps against masks of blood: pointing game and energy inside the mask.

In: heatmaps of slices, masks of blood and of the head, the patient of each slice. Out: each metric per slice,
and means with bootstrap intervals over patients.

* Pointing game (Zhang et al. 2018, 10.1007/s11263-017-1059-x): share of slices whose map has its maximum on
  the mask, or within a tolerance of the mask. The point is the centre of the largest cell, where the map has
  its maximum when it is interpolated linearly between cell centres. If several cells tie, the share of them
  on the mask counts, so that a flat map scores by chance.
* Energy inside (Wang et al. 2020, arXiv 1910.01279): share of the positive part of the map that lies on the
  mask. An uninformative map, uniform over the head, reaches the mask's share of the head area; `gain` is the
  ratio of the energy to this share.

Shapes: k slices, h x w cells of a map, H x W pixels of a mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from ich_mil.evaluate.bootstrap import Interval, patient_bootstrap, proportion_interval

TOLERANCE = 0.03
"""Tolerance as a share of the image side; the literature uses 15 pixels for images 500 pixels wide."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Localisation:
    """Localisation metrics of the maps of k slices.

    Attributes:
        strict: (k,) 1 where the maximum lies on the mask, else 0; a share where several cells tie.
        near: (k,) the same with `TOLERANCE`.
        energy: (k,) share of the positive part on the mask; 0 for a map without positive part.
        area: (k,) the mask's share of the head area, the energy of an uninformative map.
        means: means over slices of `strict`, `near`, `energy` and `area`; `gain`, mean energy / mean area.
        intervals: intervals of `means`, by name.
    """

    strict: NDArray[np.float64]
    near: NDArray[np.float64]
    energy: NDArray[np.float64]
    area: NDArray[np.float64]
    means: dict[str, float]
    intervals: dict[str, Interval]


def localise(maps: Tensor, masks: Mask, heads: Mask, patients: Sequence[str], *, seed: int) -> Localisation:
    """Compute the pointing game and the energy inside the mask, with 95 % intervals.

    Args:
        maps: (k, h, w) evidence for blood, with the field of view of the masks.
        masks: (k, H, W) masks of blood, none empty.
        heads: (k, H, W) masks of the head, none empty.
        patients: k patient keys; whole patients are resampled.
        seed: seed of the resamples.
    """
    near = TOLERANCE * max(masks.shape[1:])
    rows = {
        "strict": hits(maps, masks, tolerance=0.0),
        "near": hits(maps, masks, tolerance=near),
        "energy": energy_inside(maps, masks),
        "area": (masks & heads).sum(axis=(1, 2)) / heads.sum(axis=(1, 2)),
    }

    def means(counts: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        found = {name: values @ counts / counts.sum(axis=0) for name, values in rows.items()}
        with np.errstate(divide="ignore", invalid="ignore"):
            return found | {"gain": found["energy"] / found["area"]}

    whole = {name: float(value[0]) for name, value in means(np.ones((len(maps), 1))).items()}
    intervals = patient_bootstrap(means, patients, seed=seed)
    for name in rows:
        intervals[name] = proportion_interval(intervals[name], whole[name], len(set(patients)))
    return Localisation(**rows, means=whole, intervals=intervals)


def hits(maps: Tensor, masks: Mask, *, tolerance: float) -> NDArray[np.float64]:
    """Whether the maximum of each map lies within `tolerance` pixels of its mask, (k,) in [0, 1]."""
    found = np.empty(len(maps))
    height, width = masks.shape[1:]
    for i, (one, mask) in enumerate(zip(maps.numpy(force=True), masks, strict=True)):
        y, x = np.nonzero(one == one.max())
        # the pixel that contains the centre of the cell
        rows = ((y + 0.5) * height / one.shape[0]).astype(np.int64)
        columns = ((x + 0.5) * width / one.shape[1]).astype(np.int64)
        distance = ndimage.distance_transform_edt(~mask)
        found[i] = (distance[rows, columns] <= tolerance).mean()
    return found


def energy_inside(maps: Tensor, masks: Mask) -> NDArray[np.float64]:
    """Share (k,) of the positive part of each map on the mask; 0 for a map without positive part.

    A cell that the mask covers in part counts in proportion.
    """
    positive = maps.double().clamp(min=0).cpu()
    h, w = positive.shape[1:]
    covered = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(masks).double(), (h, w))
    total = positive.sum((1, 2))
    inside = (positive * covered).sum((1, 2))
    share: NDArray[np.float64] = (inside / total.where(total > 0, 1.0)).numpy()
    return share
