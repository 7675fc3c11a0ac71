"""Does a map point at the bleed: the pointing game and the energy inside, where the bleed's place is known.

In: maps of slices, masks of blood and of the head, the patient of each slice. Out: one number a slice for
each measure, and their means with intervals, patients resampled.

* Pointing game (Zhang et al. 2018, 10.1007/s11263-017-1059-x): the share of slices whose map has its maximum
  on the mask, or within a tolerance of it. The point is the middle of the largest cell: it is where the map
  has its maximum when it is drawn over the picture, linear between the middles of cells. Where several cells
  are the largest, the share of them that hit counts: a flat map scores by chance.
* Energy inside (Wang et al. 2020, arXiv 1910.01279): the share of the map's positive part that lies on the
  mask. A map that knows nothing spreads over the head, and reaches the mask's share of the head's area;
  `gain` is how many times more it is.

Shapes: k slices, h x w cells of a map, H x W pixels of a mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from ich_mil.evaluate.bootstrap import Interval, of_proportion, patient_bootstrap

TOLERANCE = 0.03
"""The literature's tolerance as a share of the picture's side: 15 pixels of pictures 500 wide."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Localisation:
    """How well the maps of k slices point.

    Attributes:
        strict: (k,) 1 where the maximum lies on the mask, else 0; a share where several cells tie.
        near: (k,) the same with `TOLERANCE`.
        energy: (k,) share of the positive part on the mask; 0 where a map has none.
        area: (k,) the mask's share of the head, what a map that knows nothing reaches.
        means: of `strict`, `near`, `energy` and `area` over slices, and `gain`, mean energy over mean area.
        intervals: of `means`, by name.
    """

    strict: NDArray[np.float64]
    near: NDArray[np.float64]
    energy: NDArray[np.float64]
    area: NDArray[np.float64]
    means: dict[str, float]
    intervals: dict[str, Interval]


def localise(maps: Tensor, masks: Mask, heads: Mask, patients: Sequence[str], *, seed: int) -> Localisation:
    """The pointing game and the energy inside, with 95 % intervals.

    Args:
        maps: (k, h, w) evidence for blood, of the masks' field of view.
        masks: (k, H, W) blood; every slice has some.
        heads: (k, H, W) what belongs to the head.
        patients: k patient keys; whole patients are resampled.
        seed: of the resamples.

    Raises:
        ValueError: shapes that do not fit, a mask or a head without a pixel, or a map that is not finite.
    """
    if len({len(maps), len(masks), len(heads), len(patients)}) > 1 or masks.shape != heads.shape:
        raise ValueError(
            f"need as many maps as masks, heads and patients, got {len(maps)} maps, masks {masks.shape}, "
            f"heads {heads.shape} and {len(patients)} patients"
        )
    for name, some in (("mask", masks.any(axis=(1, 2))), ("head", heads.any(axis=(1, 2)))):
        if not some.all():
            raise ValueError(f"slice {int(some.argmin())} has an empty {name}: leave it out")
    if not bool(torch.isfinite(maps).all()):
        raise ValueError("a map holds NaN or infinite values")
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
        intervals[name] = of_proportion(intervals[name], whole[name], len(set(patients)))
    return Localisation(**rows, means=whole, intervals=intervals)


def hits(maps: Tensor, masks: Mask, *, tolerance: float) -> NDArray[np.float64]:
    """Whether the maximum of each map lies on the mask, (k,) in [0, 1].

    Args:
        maps: (k, h, w).
        masks: (k, H, W).
        tolerance: largest distance in pixels from the pixel of the maximum to the nearest one of the mask.
    """
    found = np.empty(len(maps))
    height, width = masks.shape[1:]
    for i, (one, mask) in enumerate(zip(maps.numpy(force=True), masks, strict=True)):
        y, x = np.nonzero(one == one.max())
        # the pixel in which the middle of the cell lies
        rows = ((y + 0.5) * height / one.shape[0]).astype(np.int64)
        columns = ((x + 0.5) * width / one.shape[1]).astype(np.int64)
        distance = ndimage.distance_transform_edt(~mask)
        found[i] = (distance[rows, columns] <= tolerance).mean()
    return found


def energy_inside(maps: Tensor, masks: Mask) -> NDArray[np.float64]:
    """The share (k,) of each map's positive part that lies on the mask; 0 where there is none.

    A cell that is partly on the mask counts with that part.

    Args:
        maps: (k, h, w).
        masks: (k, H, W).
    """
    positive = maps.double().clamp(min=0).cpu()
    h, w = positive.shape[1:]
    covered = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(masks).double(), (h, w))
    total = positive.sum((1, 2))
    inside = (positive * covered).sum((1, 2))
    share: NDArray[np.float64] = (inside / total.where(total > 0, 1.0)).numpy()
    return share
