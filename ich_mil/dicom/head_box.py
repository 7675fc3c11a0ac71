"""The rectangle of a scan's slices that holds the head: what is left when air, couch and head holder go.

In: HU of a scan. Out: one rectangle for all of its slices, so that they keep their size and place relative to
each other.

Slices are reduced to cells, `CELLS` a side. A cell whose mean is above `TISSUE_FROM` is tissue, and what it
encloses counts with it. What is thinner than a disc of `RADIUS` cells goes, as couch and head holder do; of
the rest the largest part is the head. The rectangle holds the heads of all slices, with a margin.

Legend: `n` slices, `H, W` pixels.
"""

from typing import NamedTuple, Self

import numpy as np
from scipy.ndimage import binary_fill_holes, binary_opening, label

CELLS = 64
"""Cells a side: 4 mm where the field of view is 250 mm."""
TISSUE_FROM = 0.0
"""Least mean HU of a cell of the head, bone counted as `MOST`: fat, air and foam are below."""
MOST = 200
"""Largest HU, of either sign, that a pixel counts with: one of bone or air does not decide on a cell."""
RADIUS = 3
"""Of the disc, in cells: 24 mm wide at 250 mm; head holders are thinner."""
MARGIN = 0.03
"""Margin on each side, as a share of the longer side of the head."""
LEAST = 0.58
"""Shortest side, as a share of the picture's: a slice near the vertex is not blown up to a whole head."""


class HeadBox(NamedTuple):
    """Rows `top` to `bottom` and columns `left` to `right` of each slice, the last ones excluded."""

    top: int
    left: int
    bottom: int
    right: int

    def crop(self, hu: np.ndarray) -> np.ndarray:
        """(n, H, W) to the pixels inside, a view."""
        return hu[:, self.top : self.bottom, self.left : self.right]

    @classmethod
    def whole(cls, hu: np.ndarray) -> Self:
        """All of the slices (n, H, W)."""
        return cls(0, 0, hu.shape[1], hu.shape[2])


def head_box(hu: np.ndarray) -> HeadBox:
    """The rectangle around the head, the same for all slices.

    Args:
        hu: (n, H, W) int16 HU.

    Returns:
        A square around the head's middle, cut off at the edges of the slices; the whole slices where no head
        is found.
    """
    rows, columns = hu.shape[1:]
    found = [edges for picture in hu if (edges := _head(picture)) is not None]
    if not found:
        return HeadBox.whole(hu)
    edges = np.stack(found)  # (n, 4)
    low, high = edges[:, :2].min(0), edges[:, 2:].max(0)  # of rows and columns, each
    side = max(float((high - low).max()) * (1 + 2 * MARGIN), LEAST * max(rows, columns))
    middle = (low + high) / 2
    top, left = np.floor(middle - side / 2).clip(0).astype(int).tolist()
    bottom, right = np.ceil(middle + side / 2).clip(max=(rows, columns)).astype(int).tolist()
    return HeadBox(top, left, bottom, right)


def _head(picture: np.ndarray) -> np.ndarray | None:
    """(4,) top, left, bottom, right of the head on one slice (H, W), in pixels. None where there is none."""
    step = max(1, max(picture.shape) // CELLS)
    rows, columns = (side // step for side in picture.shape)
    cells = picture[: rows * step, : columns * step].clip(-MOST, MOST).reshape(rows, step, columns, step)
    tissue = binary_fill_holes(cells.mean((1, 3)) > TISSUE_FROM)
    y, x = np.ogrid[-RADIUS : RADIUS + 1, -RADIUS : RADIUS + 1]
    parts, count = label(binary_opening(tissue, y**2 + x**2 <= RADIUS**2))
    if not count:
        return None
    down, across = np.nonzero(parts == 1 + np.bincount(parts.ravel())[1:].argmax())
    return step * np.array([down.min(), across.min(), down.max() + 1, across.max() + 1])
