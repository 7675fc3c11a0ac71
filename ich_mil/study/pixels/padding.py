"""Detection of padding outside the field of view that is not stored as air.

In: the stored values of one slice, their HU, and the padding attributes of its header. Out: stored values
that only padding has, or the pixels of a padded rim if its value also occurs in tissue. The caller sets both
to air.

Source: DICOM PS3.3 C.7.5.1.1.2 (pixel padding).
Legend: `H, W` pixels, `V` values from the lowest to the highest stored value.
"""

import numpy as np
from scipy.ndimage import label

from ich_mil.ledger import Code
from ich_mil.study.pixels.stored_values import StoredValues

# HU of padding after repair: the minimum of the CT scale, which most scanners also write for air.
AIR = -1024
# Maximum HU of patient or table (dense bone) that can reach all four corners of an image.
BACKGROUND_MAX = 1000
# Padding up to this HU looks like air, so no rim is visible.
LIKE_AIR = -900
# The usual padding -2000 with its sign lost: 0xF830 & 0x7FFF occurs in RSNA 2019; 0xF830 is -2000 read as
# unsigned.
PADDING_WITHOUT_SIGN = 30768
PADDING_UNSIGNED = 63536


def outside_values(
    pixels: StoredValues, hu: np.ndarray, padding: tuple[int, int] | None, *, bits_stored: int, signed: bool
) -> tuple[np.ndarray, list[tuple[Code, str]]]:
    """Stored values that mean outside the field of view; `hu` (V,) is the HU of each value after rescale.

    Returns:
        (V,) bool mask of these values, and a (code, detail) pair for each range.
    """
    outside = np.zeros(hu.shape, dtype=bool)  # (V,)
    notes: list[tuple[Code, str]] = []
    ranges = _padding_ranges(pixels.stored, padding, bits_stored=bits_stored, signed=signed)
    for first, last, source in ranges:
        inside = pixels.range_of(first, last)
        # Padding stored as air needs no repair; in the range of tissue it looks like tissue.
        in_range = (hu[inside] >= AIR) & (hu[inside] <= BACKGROUND_MAX)
        if outside[inside].any() or in_range.any():
            continue
        if count := pixels.count(inside.start, inside.stop):
            outside[inside] = True
            named = f"value {first}" if first == last else f"values {first} to {last}"
            notes.append((Code.PADDING, f"{count} pixels of stored {named} ({source}) set to {AIR} HU"))
    return outside, notes


def _padding_ranges(
    stored: np.ndarray, padding: tuple[int, int] | None, *, bits_stored: int, signed: bool
) -> list[tuple[int, int, str]]:
    """Candidate ranges of padding values: (first, last, source).

    Candidates are the range of PixelPaddingValue, -2000 with its sign lost, and a value common to all four
    corners: reconstruction fills a circle, so the outside reaches every corner. A corner value that is a
    negative number without sign extension is left to the rule on unused bits.
    """
    ranges: list[tuple[int, int, str]] = []
    if padding is not None:
        source = "PixelPaddingValue" + (" and its RangeLimit" if padding[0] != padding[1] else "")
        ranges.append((*padding, source))
    ranges.append((PADDING_WITHOUT_SIGN, PADDING_WITHOUT_SIGN, "padding -2000 without its sign"))
    ranges.append((PADDING_UNSIGNED, PADDING_UNSIGNED, "padding -2000 read as unsigned"))
    corner = _corner(stored)
    if corner is not None and not (signed and 1 << (bits_stored - 1) <= corner < 1 << bits_stored):
        ranges.append((corner, corner, "all four corners"))
    return ranges


def _corner(stored: np.ndarray) -> int | None:
    """Stored value common to all four corners; None if they differ."""
    corners = {int(stored[row, column]) for row in (0, -1) for column in (0, -1)}
    return corners.pop() if len(corners) == 1 else None


def declared_rim(
    pixels: StoredValues, hu: np.ndarray, padding: tuple[int, int] | None, *, known: np.ndarray
) -> np.ndarray | None:
    """Padded rim whose declared padding value also occurs in tissue.

    An example is PixelPaddingValue 0 with values that are HU: a rim of water. A declared padding value in
    all four corners is padding whatever its HU, but only in regions connected to a corner. Inside the head
    the same value is tissue, because a scanner that pads with it does not reserve it. `known` (V,) are values
    already handled by another rule.

    Returns:
        (H, W) bool mask of the rim, or None without a rim.
    """
    corner = _corner(pixels.stored)
    if padding is None or corner is None or not padding[0] <= corner <= padding[1]:
        return None
    index = corner - int(pixels.values[0])
    if hu[index] <= LIKE_AIR or known[index]:
        return None
    areas, _ = label(pixels.stored == corner)
    return np.isin(areas, areas[[0, 0, -1, -1], [0, -1, 0, -1]])
