"""Whether the grey values of a slice are as fine as a scanner made them.

In: the HU of one slice and how its pixels are stored. Out: a note where they were compressed with loss or
come from an 8-bit picture, and where their steps are too wide to tell blood from brain.
"""

import numpy as np
from pydicom.uid import HTJ2K, JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless

from ich_mil.dicom.header import StoredPixels
from ich_mil.dicom.hounsfield import HU_MAX, HU_MIN
from ich_mil.ledger import Code

COARSE_HU = 4.0
"""Steps from here up are too wide: grey and white matter differ by 5 to 10 HU, blood and brain by 30."""
LEAST_SOFT = 1000
"""Pixels of soft tissue without which the grey values of a slice say nothing: air has few of them."""
SOFT_HU = (-100, 200)
"""Fat, brain and blood."""
EIGHT_BIT = 256
"""Grey values of an 8-bit picture at most; a slice of a scanner with soft tissue has over 500."""

_LOSSY = frozenset({JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless, HTJ2K})
"""Transfer syntaxes that lose something, whatever the header says; JPEG 2000 (.91) may lose nothing."""


def grey_notes(hu: np.ndarray, pixels: StoredPixels) -> list[tuple[Code, str]]:
    """Notes of one slice.

    Args:
        hu: (H, W) int16 within `HU_MIN`..`HU_MAX`.
        pixels: how it is stored.

    Returns:
        (code, detail) pairs, at most two.
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
