"""Crop rectangle around the head of a CT scan, without air, couch and head holder.

In: HU of a scan. Out: one rectangle for all slices, so that their relative size and position are kept.

Each slice is reduced to cells, `CELLS` per side. Cells with a mean above `TISSUE_FROM` are tissue, and holes
in the tissue are filled. Opening with a disc of `RADIUS` cells removes thin parts such as couch and head
holder. The largest remaining component is the head. The rectangle encloses the heads of all slices, with a
margin.

Legend: `n` slices, `H, W` pixels.
"""

from typing import NamedTuple, Self

import numpy as np
from scipy.ndimage import binary_fill_holes, binary_opening, label

CELLS = 64
"""Cells per side: a cell is 4 mm wide for a field of view of 250 mm."""
TISSUE_FROM = 0.0
"""Minimum mean HU of a head cell, after clipping at `MOST`: fat, air and foam are below."""
MOST = 200
"""Pixels are clipped to this absolute HU, so that a single pixel of bone or air does not decide a cell."""
RADIUS = 3
"""Radius of the disc [cells]: about 24 mm wide for a field of view of 250 mm; head holders are thinner."""
MARGIN = 0.03
"""Margin on each side, as a fraction of the longer side of the head."""
LEAST = 0.58
"""Minimum side, as a fraction of the slice side: a slice near the vertex is not enlarged to a whole head."""


class HeadBox(NamedTuple):
    """Rectangle of rows `top` to `bottom` and columns `left` to `right`, ends excluded, in pixels."""

    top: int
    left: int
    bottom: int
    right: int

    def crop(self, hu: np.ndarray) -> np.ndarray:
        """View of the pixels of `hu` (n, H, W) inside the rectangle."""
        return hu[:, self.top : self.bottom, self.left : self.right]

    @classmethod
    def whole(cls, hu: np.ndarray) -> Self:
        """Rectangle that covers the slices `hu` (n, H, W) completely."""
        return cls(0, 0, hu.shape[1], hu.shape[2])


def head_box(hu: np.ndarray) -> HeadBox:
    """Rectangle around the head, common to all slices.

    Args:
        hu: (n, H, W) int16 HU.

    Returns:
        A square centred on the head and clipped to the slices; the whole slices if no head is found.
    """
    rows, columns = hu.shape[1:]
    heads = [edges for picture in hu if (edges := _head(picture)) is not None]
    if not heads:
        return HeadBox.whole(hu)
    edges = np.stack(heads)  # (n, 4)
    low, high = edges[:, :2].min(0), edges[:, 2:].max(0)  # (2,) each: row, column
    side = max(float((high - low).max()) * (1 + 2 * MARGIN), LEAST * max(rows, columns))
    middle = (low + high) / 2
    top, left = np.floor(middle - side / 2).clip(0).astype(int).tolist()
    bottom, right = np.ceil(middle + side / 2).clip(max=(rows, columns)).astype(int).tolist()
    return HeadBox(top, left, bottom, right)


def _head(picture: np.ndarray) -> np.ndarray | None:
    """Top, left, bottom, right (4,) of the head on one slice (H, W), in pixels; None if there is no head."""
    step = max(1, max(picture.shape) // CELLS)
    rows, columns = (side // step for side in picture.shape)
    cells = picture[: rows * step, : columns * step].clip(-MOST, MOST).reshape(rows, step, columns, step)
    tissue = binary_fill_holes(cells.mean((1, 3)) > TISSUE_FROM)
    y, x = np.ogrid[-RADIUS : RADIUS + 1, -RADIUS : RADIUS + 1]
    regions, count = label(binary_opening(tissue, y**2 + x**2 <= RADIUS**2))
    if not count:
        return None
    down, across = np.nonzero(regions == 1 + np.bincount(regions.ravel())[1:].argmax())
    return step * np.array([down.min(), across.min(), down.max() + 1, across.max() + 1])
