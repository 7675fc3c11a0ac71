"""8-bit slice pictures: conversion of PNG and JPEG files of single CT slices to Hounsfield units.

A picture shows one slice in a known window, in greyscale or with three equal colour channels:

    HU = level - width / 2 + grey · width / 255

Grey 255 lies above the window and becomes bone. Grey 0 that is connected to the border of the picture becomes
air. Both have a tolerance, because JPEG is lossy. Grey 0 inside the head stays at the lower end of the
window. A picture with inverted grey values, whose background is white, is refused. Pictures contain no
position, orientation, pixel spacing or patient: the header has height and spacing 0 and an empty orientation.

Legend: `H, W` pixels.
"""

from collections.abc import Sequence
from pathlib import Path, PurePath

import numpy as np
from PIL import Image
from scipy.ndimage import label

from ich_mil.errors import DataError
from ich_mil.ledger import Code
from ich_mil.study.files.header import SliceHeader, StoredPixels
from ich_mil.study.files.refusal import refusal
from ich_mil.study.window_presets import parse_windows

Window = tuple[float, float]
"""Display window of the pictures: (level, width), HU."""

SUFFIXES = (".png", ".jpg", ".jpeg")
BONE = 1000
"""HU for pixels above the window (dense bone), or the upper end of the window if that is higher."""
AIR = -1000
"""HU for air around the head (DICOM PS3.3 C.11.1.1.2), or the lower end of the window if that is lower."""
WHITE, BLACK = 254, 3
"""Smallest grey value that counts as above the window, and largest that counts as below it."""
RING = (0.46, 0.49)
"""Radii of a ring inside a circular field of view, as fractions of the sides: background around the head."""
WHITE_RING = 0.45
"""Fraction of white pixels in the ring above which a picture is inverted. In 1,206 pictures of RSNA 2019 and
CT-ICH it is at most 0.20, in the same pictures inverted at least 0.72."""
NEARLY_WHITE = 250
"""Smallest grey value that counts as white in the ring: JPEG changes white by a few grey values."""
MODES = ("L", "P", "RGB")
"""Pillow modes that can hold 8-bit greyscale."""


def parse_window(values: Sequence[float], *, layout: str) -> Window:
    """Parse level and width in HU. `ValueError` if they are no window within int16, or not for `layout`."""
    if layout != "slices":
        raise ValueError(f"window is for layout slices, not for {layout}; leave it out")
    ((level, width),) = parse_windows([values])
    if abs(level) + width / 2 > np.iinfo(np.int16).max:
        raise ValueError(f"window must be [level, width] in HU, got {[level, width]}")
    return level, width


def is_picture(path: str) -> bool:
    """Whether a file has the suffix of a PNG or JPEG picture."""
    return PurePath(path).suffix.lower() in SUFFIXES


def picture_headers(path: Path) -> tuple[SliceHeader]:
    """Header of one picture; the stem of the file name is used for every UID. `DataError`: unusable file."""
    with _opened(path) as image:
        columns, rows = image.size
    header = SliceHeader(
        path=str(path),
        frame=0,
        sop_uid=path.stem,
        study_uid=path.stem,
        series_uid=path.stem,
        patient_id="",
        rows=rows,
        columns=columns,
        position=(0.0, 0.0, 0.0),
        orientation=(),
        spacing=(0.0, 0.0),
        thickness=None,
        instance_number=None,
        acquisition=None,
        description="",
        kernel="",
        body_part="",
        contrast=False,
        pixels=StoredPixels("", 0, 1, 8, 8, False, 1.0, 0.0, None),
        notes=(),
    )
    return (header,)


def read_picture(path: Path, *, window: Window) -> np.ndarray:
    """Read one picture, rendered in `window`, as HU (H, W) int16.

    Raises:
        DataError: the file cannot be read, is not 8-bit greyscale, or has inverted grey values.
        DicomError: all pixels are equal (code `flat`, as for a DICOM file).
    """
    with _opened(path) as image:
        try:
            colours = np.asarray(image if image.mode == "L" else image.convert("RGB"))
        except Exception as error:  # decoders raise exceptions of many classes
            raise _unreadable(path, error) from error
    if colours.ndim == 3 and (colours != colours[..., :1]).any():
        raise DataError(f"{path}: is a colour picture; save it as 8-bit grey")
    grey = colours if colours.ndim == 2 else colours[..., 0]
    if is_inverted(grey):
        raise DataError(f"{path}: its background is white: invert its grey values, or remove it and its row")
    hu = hu_of_grey(grey, window=window)
    if hu.min() == hu.max():
        raise refusal(path, Code.FLAT, "all pixels are equal")
    return hu


def hu_of_grey(grey: np.ndarray, *, window: Window) -> np.ndarray:
    """Convert grey values (H, W) uint8, rendered in a window (level, width), to HU (H, W) int16."""
    level, width = window
    low, high = level - width / 2, level + width / 2
    hu = np.rint(low + grey * (width / 255)).astype(np.int16)  # (H, W)
    hu[grey >= WHITE] = max(BONE, round(high))
    regions, count = label(grey <= BLACK)  # (H, W) 0 where brighter
    outside = np.zeros(count + 1, dtype=bool)
    for edge in (regions[0], regions[-1], regions[:, 0], regions[:, -1]):
        outside[edge] = True
    outside[0] = False
    hu[outside[regions]] = min(AIR, round(low))
    return hu


def is_inverted(grey: np.ndarray) -> bool:
    """Whether the background of grey values (H, W) is white, in the corners or inside a black rim."""
    y, x = np.ogrid[: grey.shape[0], : grey.shape[1]]
    middle = (np.array(grey.shape) - 1) / 2
    radius = np.hypot((y - middle[0]) / grey.shape[0], (x - middle[1]) / grey.shape[1])
    ring = grey[(radius > RING[0]) & (radius < RING[1])]
    return bool(np.count_nonzero(ring >= NEARLY_WHITE) > WHITE_RING * ring.size)


def _opened(path: Path) -> Image.Image:
    """Open a picture without reading its pixels. `DataError` if it is no picture, or not 8-bit greyscale."""
    try:
        image = Image.open(path, formats=("PNG", "JPEG"))
    except Exception as error:  # Pillow has no common exception class for damaged files
        raise _unreadable(path, error) from error
    if image.mode not in MODES:
        image.close()
        raise DataError(f"{path}: is a picture of mode {image.mode}; save it as 8-bit grey (mode L)")
    return image


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be read as PNG or JPEG ({error}); replace it, or remove it and its row")
