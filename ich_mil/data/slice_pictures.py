"""8-bit pictures of single CT slices as Hounsfield units.

In: a PNG or JPEG file, grey or with three equal colours, of one slice in a known window. Out: its
`SliceHeader`, and its pixels as int16 HU (H, W):

    HU = level - width / 2 + grey · width / 255

Grey 255 lies above the window and becomes bone; grey 0 that is connected to the border of the picture becomes
air; JPEG is lossy, so both have a tolerance. Grey 0 inside the head stays at the lower end of the window. A
picture says nothing of place, orientation, pixel spacing or patient: its height and spacing are 0, its
orientation is empty.

Legend: `H, W` pixels.
"""

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import NoReturn

import numpy as np
from PIL import Image
from scipy.ndimage import label

from ich_mil.dicom.header import SliceHeader, StoredPixels
from ich_mil.dicom.refusal import refusal
from ich_mil.errors import DataError
from ich_mil.ledger import Code

Window = tuple[float, float]
"""(level, width) of pictures, HU."""

SUFFIXES = (".png", ".jpg", ".jpeg")
BONE = 1000
"""HU of what lies above the window: dense bone. A window that reaches higher ends there."""
AIR = -1000
"""HU of what surrounds the head (DICOM PS3.3 C.11.1.1.2). A window that reaches lower begins there."""
WHITE = 254
"""Least grey that counts as above the window."""
BLACK = 3
"""Largest grey that counts as below the window."""
MODES = ("L", "P", "RGB")
"""Pillow's modes that can hold 8-bit grey."""


def parse_window(values: Sequence[float], *, layout: str) -> Window:
    """Two numbers as the window of a set's pictures.

    Raises:
        ValueError: the set has another layout than `slices`; no finite numbers, a width that is not positive,
            or HU that int16 cannot hold.
    """
    from ich_mil.windows import parse_windows  # torch, which the processes that prepare do without

    if layout != "slices":
        raise ValueError(f"window is for layout slices, not for {layout}; leave it out")
    ((level, width),) = parse_windows([values])
    if abs(level) + width / 2 > np.iinfo(np.int16).max:
        raise ValueError(f"window must be [level, width] in HU, got {[level, width]}")
    return level, width


def is_picture(path: str) -> bool:
    """Whether the name of a file is that of a PNG or JPEG picture."""
    return PurePath(path).suffix.lower() in SUFFIXES


def picture_headers(path: Path) -> tuple[SliceHeader]:
    """The header of one picture, without its pixels; the file's name stands for every UID.

    Raises:
        DataError: the file cannot be read, or has not 8 bits of grey.
    """
    with _opened(path) as image:
        columns, rows = image.size
    pixels = StoredPixels("", 0, 1, 8, 8, False, 1.0, 0.0, None)
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
        pixels=pixels,
        notes=(),
    )
    return (header,)


def read_picture(path: Path, *, window: Window) -> np.ndarray:
    """The HU (H, W) int16 of one picture.

    Args:
        path: of the file.
        window: (level, width) that the picture was made with, HU.

    Raises:
        DataError: the file cannot be read, or has not 8 bits of grey.
        DicomError: all pixels are equal (`flat`), as of a DICOM file.
    """
    with _opened(path) as image:
        try:
            colours = np.asarray(image if image.mode == "L" else image.convert("RGB"))
        except Exception as error:  # decoders raise anything
            _unreadable(path, error)
    if colours.ndim == 3 and (colours != colours[..., :1]).any():
        raise DataError(f"{path}: is a picture with colours; save it as 8-bit grey")
    hu = hu_of_grey(colours if colours.ndim == 2 else colours[..., 0], window=window)
    if hu.min() == hu.max():
        raise refusal(path, Code.FLAT, "all pixels are equal")
    return hu


def hu_of_grey(grey: np.ndarray, *, window: Window) -> np.ndarray:
    """Grey levels (H, W) uint8 in a window (level, width) as HU (H, W) int16."""
    level, width = window
    low, high = level - width / 2, level + width / 2
    hu = np.rint(low + grey * (width / 255)).astype(np.int16)  # (H, W)
    hu[grey >= WHITE] = max(BONE, round(high))
    parts, count = label(grey <= BLACK)  # (H, W) 0 where brighter
    outside = np.zeros(count + 1, dtype=bool)
    for edge in (parts[0], parts[-1], parts[:, 0], parts[:, -1]):
        outside[edge] = True
    outside[0] = False
    hu[outside[parts]] = min(AIR, round(low))
    return hu


def _opened(path: Path) -> Image.Image:
    """The picture, its pixels not yet read. `DataError` if it is none, or not of 8-bit grey."""
    try:
        image = Image.open(path, formats=("PNG", "JPEG"))
    except Exception as error:  # Pillow has no common class for damaged files
        _unreadable(path, error)
    if image.mode not in MODES:
        image.close()
        raise DataError(f"{path}: is a picture of mode {image.mode}; save it as 8-bit grey (mode L)")
    return image


def _unreadable(path: Path, error: Exception) -> NoReturn:
    raise DataError(
        f"{path}: cannot be read as PNG or JPEG ({error}); replace it, or take it and its row out"
    ) from error
