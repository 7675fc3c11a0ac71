"""Pixels of a prepared scan on disk: a ZIP file with one JPEG-LS stream (ISO/IEC 14495-1) per slice.

HU are clipped to `LOWEST`..`HIGHEST`, 12 bits, and stored without loss: an eighth to a tenth of int16,
decoded about as fast as the DICOM file. Air is clipped because its noise takes as many bytes as the head; no
window of a network reaches below `LOWEST`.

Legend: `n` slices of the scan, `H, W` pixels.
"""

from pathlib import Path
from zipfile import BadZipFile, ZipFile, ZipInfo

import jpeg_ls
import numpy as np

from ich_mil.errors import DataError
from ich_mil.files import whole_file
from ich_mil.study.window_presets import HIGHEST, LOWEST

BITS = 12
"""Bits of HIGHEST - LOWEST."""
FEWEST = 64
"""Fewest pixels of a slice; the encoder's buffer has no room for the header of smaller ones."""


def clipped(hu: np.ndarray) -> np.ndarray:
    """HU as they are stored: clipped, int16."""
    return np.clip(hu, LOWEST, HIGHEST).astype(np.int16)


def write_hu(path: Path, hu: np.ndarray) -> None:
    """Write slices (n, H, W) of int16 HU. `DiskFullError`, `DataError`: they cannot be written."""
    rows, columns = hu.shape[1:]
    if rows * columns < FEWEST:
        raise DataError(f"{path}: slices of {rows} x {columns} pixels are too small; remove them")
    with whole_file(path) as temporary, ZipFile(temporary, "w") as file:
        for number, slice_ in enumerate(clipped(hu)):
            content = (slice_.view(np.uint16) - np.uint16(LOWEST % 2**16)).tobytes()
            file.writestr(
                ZipInfo(f"{number:04}.jls"), bytes(jpeg_ls.encode_buffer(content, rows, columns, 1, BITS))
            )


def read_hu(path: Path) -> np.ndarray:
    """Read what `write_hu` wrote: (n, H, W) int16. `DataError`: the file is missing or damaged."""
    try:
        with ZipFile(path) as file:
            decoded = [jpeg_ls.decode_buffer(file.read(name)) for name in file.namelist()]
        hu = np.stack(
            [np.frombuffer(content, np.uint16).reshape(of["height"], of["width"]) for content, of in decoded]
        )
    except (OSError, BadZipFile, RuntimeError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); run prepare again") from error
    hu += np.uint16(LOWEST % 2**16)
    return hu.view(np.int16)
