"""Detection of lossy compression, 8-bit sources and coarse grey levels in a slice.

In: the HU of one slice and the storage attributes of its pixels. Out: a note if the pixels are lossy or have
8-bit precision, and a note if the grey levels are too far apart to distinguish blood from brain.
"""

import numpy as np
from pydicom.uid import HTJ2K, JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless

from ich_mil.dicom.files.header import StoredPixels
from ich_mil.dicom.pixels.hounsfield import HU_MAX, HU_MIN
from ich_mil.ledger import Code

COARSE_HU = 4.0
"""Minimum distance of grey levels that is too coarse [HU].

Grey and white matter differ by 5 to 10 HU, blood and brain by 30 HU.
"""
LEAST_SOFT = 1000
"""Minimum number of soft-tissue pixels for judging grey levels: air has few distinct values."""
SOFT_HU = (-100, 200)
"""HU range of fat, brain and blood."""
EIGHT_BIT = 256
"""Maximum number of grey levels of an 8-bit picture; an original slice with soft tissue has over 500."""

_LOSSY = frozenset({JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless, HTJ2K})
"""Lossy transfer syntaxes, whatever the header says; JPEG 2000 (.91) is absent because it may be lossless."""


def grey_notes(hu: np.ndarray, pixels: StoredPixels) -> list[tuple[Code, str]]:
    """Notes on the grey levels of one slice.

    Args:
        hu: (H, W) int16 within `HU_MIN`..`HU_MAX`.
        pixels: storage attributes of the slice.

    Returns:
        At most two (code, detail) pairs.
    """
    counts = np.bincount(hu.ravel() - np.int16(HU_MIN), minlength=HU_MAX - HU_MIN + 1)  # (V,)
    low, high = SOFT_HU[0] - HU_MIN, SOFT_HU[1] - HU_MIN + 1
    soft = np.flatnonzero(counts[low:high])
    has_soft = int(counts[low:high].sum()) >= LEAST_SOFT
    n_values = int(np.count_nonzero(counts))
    notes = []
    if has_soft and len(soft) > 2 and (step := float(np.median(np.diff(soft)))) >= COARSE_HU:
        notes.append((Code.COARSE, f"its grey values are {step:g} HU apart: blood and brain may look alike"))
    if pixels.lossy or pixels.syntax in _LOSSY:
        notes.append((Code.LOSSY, "its pixels were compressed with loss"))
    elif pixels.bits_stored <= 8:
        notes.append((Code.LOSSY, f"its pixels have {pixels.bits_stored} bits"))
    elif has_soft and n_values <= EIGHT_BIT:
        notes.append((Code.LOSSY, f"it has {n_values} grey values, as a picture of 8 bits"))
    return notes
