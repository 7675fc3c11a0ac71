"""Turn of axial pictures to one convention: rows run to the left, columns to the back, pixels are square.

In: the header of a slice. Out: an `Upright` that turns the pictures of its series, and maps on them back to
the stored pixels. Transposition and reversal are exact. Pixels of unequal spacing are averaged to the coarser
spacing, so that a picture is equally sharp in both directions. Slices that are not axial are not turned.

Source: DICOM PS3.3 C.7.6.2.1.1 (position and orientation; patient axes are LPS).
Shapes: H, W stored pixels; h, w pixels of the turned picture.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from PIL import Image
from PIL.Image import Resampling

from ich_mil.study.files.header import SliceHeader
from ich_mil.study.geometry.planes import AXIAL_DEGREES, edges_of, same_spacing, tilt_degrees


@dataclass(frozen=True)
class Upright:
    """Turn of the pictures of one series: transposed, then rows or columns reversed, then resampled.

    Attributes:
        stored_shape: (H, W).
        shape: (h, w).
        spacing: distance between rows and between columns after the turn, mm.
        transposed: rows and columns are exchanged.
        down, across: step through the rows, through the columns: 1, or -1 for the reverse order.
    """

    stored_shape: tuple[int, int]
    shape: tuple[int, int]
    spacing: tuple[float, float]
    transposed: bool = False
    down: int = 1
    across: int = 1

    @classmethod
    def of(cls, header: SliceHeader) -> Self:
        """Turn for all slices of the series of `header`."""
        stored_shape, spacing = (header.rows, header.columns), header.spacing
        transposed, down, across = False, 1, 1
        if edges_of(header.orientation) is not None and tilt_degrees(header) <= AXIAL_DEGREES:
            row, column = header.orientation[:3], header.orientation[3:]
            transposed = abs(column[0]) > abs(row[0])
            row, column = (column, row) if transposed else (row, column)
            down, across = (-1 if column[1] < 0 else 1), (-1 if row[0] < 0 else 1)
        shape = stored_shape[::-1] if transposed else stored_shape
        spacing = spacing[::-1] if transposed else spacing
        if not same_spacing(spacing[:1], spacing[1:]):
            coarse = max(spacing)
            height, width = np.rint(np.multiply(shape, spacing) / coarse).clip(1).astype(int).tolist()
            shape, spacing = (height, width), (coarse, coarse)
        return cls(stored_shape, shape, spacing, transposed, down, across)

    def orientation(self, stored: Sequence[float]) -> tuple[float, ...]:
        """Direction cosines of rows and columns after the turn, for those of a stored slice."""
        row, column = tuple(stored[:3]), tuple(stored[3:])
        row, column = (column, row) if self.transposed else (row, column)
        return tuple(self.across * x for x in row) + tuple(self.down * x for x in column)

    def picture(self, hu: np.ndarray) -> np.ndarray:
        """Turned picture (h, w) int16 of the stored HU (H, W)."""
        turned = (hu.T if self.transposed else hu)[:: self.down, :: self.across]
        if turned.shape == self.shape:
            return np.ascontiguousarray(turned)
        return np.rint(_resampled(turned, self.shape, Resampling.HAMMING)).astype(np.int16)

    def as_stored(self, maps: np.ndarray) -> np.ndarray:
        """Maps (k, H, W) on the stored pixels, from maps (k, h, w) on the turned pictures."""
        (rows, columns) = self.stored_shape
        shape = (columns, rows) if self.transposed else (rows, columns)
        turned = np.stack([_resampled(picture, shape, Resampling.BILINEAR) for picture in maps])[
            :, :: self.down, :: self.across
        ]
        return np.ascontiguousarray(turned.transpose(0, 2, 1) if self.transposed else turned)


def _resampled(picture: np.ndarray, shape: tuple[int, int], how: Resampling) -> np.ndarray:
    """A picture of `shape` (h, w); fewer pixels are averages, more are interpolated."""
    if picture.shape == shape:
        return picture
    return np.asarray(Image.fromarray(np.asarray(picture, np.float32)).resize(shape[::-1], how))
