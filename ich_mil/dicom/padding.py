"""Which pixels lie outside the field of view: padding that is not air, to be set to air.

In: the stored values of one slice, the HU they would become, and what its header says of padding. Out: the
values that stand for nothing else; or the pixels of a rim, whose value stands for tissue too.

Source: DICOM PS3.3 C.7.5.1.1.2 (pixel padding).
Legend: `H, W` pixels, `V` values that may occur.
"""

import numpy as np
from scipy.ndimage import label

from ich_mil.dicom.stored_values import StoredValues
from ich_mil.ledger import Code

# Padding becomes the lowest value of the CT scale, which most scanners write for air outside the patient too.
AIR = -1024
# Nothing that reaches all four corners of an image is denser than this: dense bone.
BACKGROUND_MAX = 1000
# Padding up to this looks like the air it stands for: no rim shows.
LIKE_AIR = -900
# -2000, the usual padding, whose sign was lost on the way. 0xF830 & 0x7FFF is seen in RSNA 2019; 0xF830 is
# the same number read as unsigned.
PADDING_WITHOUT_SIGN = 30768
PADDING_UNSIGNED = 63536


def outside_values(
    pixels: StoredValues, hu: np.ndarray, padding: tuple[int, int] | None, *, bits_stored: int, signed: bool
) -> tuple[np.ndarray, list[tuple[Code, str]]]:
    """The values that stand for what is outside the field of view.

    Args:
        pixels: of the slice.
        hu: (V,) what each value would become.
        padding: as `to_hu` takes it.
        bits_stored: BitsStored (0028,0101).
        signed: PixelRepresentation (0028,0103) is 1.

    Returns:
        (V,) bool, and a (code, detail) pair for each range of them.
    """
    outside = np.zeros(hu.shape, dtype=bool)  # (V,)
    notes: list[tuple[Code, str]] = []
    for first, last, source in _padding_ranges(
        pixels.stored, padding, bits_stored=bits_stored, signed=signed
    ):
        inside = pixels.places_of(first, last)
        if outside[inside].any() or not _is_background(hu[inside]):
            continue
        if count := pixels.count(inside.start, inside.stop):
            outside[inside] = True
            named = f"value {first}" if first == last else f"values {first} to {last}"
            notes.append((Code.PADDING, f"{count} pixels of stored {named} ({source}) set to {AIR} HU"))
    return outside, notes


def _padding_ranges(
    stored: np.ndarray, padding: tuple[int, int] | None, *, bits_stored: int, signed: bool
) -> list[tuple[int, int, str]]:
    """Stored values that may stand for 'outside the field of view': first, last, and where it was found.

    They are the range of PixelPaddingValue, -2000 with its sign lost, and the one value that fills all
    four corners: reconstruction fills a circle, so its outside reaches every corner. A corner that is a
    negative number whose sign was not extended to the allocated bits is left to the rule on unused bits.
    """
    found: list[tuple[int, int, str]] = []
    if padding is not None:
        source = "PixelPaddingValue" + (" and its RangeLimit" if padding[0] != padding[1] else "")
        found.append((*padding, source))
    found.append((PADDING_WITHOUT_SIGN, PADDING_WITHOUT_SIGN, "padding -2000 without its sign"))
    found.append((PADDING_UNSIGNED, PADDING_UNSIGNED, "padding -2000 read as unsigned"))
    corner = _corner(stored)
    if corner is not None and not (signed and 1 << (bits_stored - 1) <= corner < 1 << bits_stored):
        found.append((corner, corner, "all four corners"))
    return found


def _corner(stored: np.ndarray) -> int | None:
    """The value that fills all four corners; None where they differ."""
    corners = {int(stored[row, column]) for row in (0, -1) for column in (0, -1)}
    return corners.pop() if len(corners) == 1 else None


def declared_rim(
    pixels: StoredValues, hu: np.ndarray, padding: tuple[int, int] | None, *, known: np.ndarray
) -> np.ndarray | None:
    """(H, W) bool: pixels outside the field of view whose padding is a number that tissue has too.

    As PixelPaddingValue 0 where the values are HU: a rim of water. What is declared to be padding and fills
    all four corners is padding whatever its HU, but only as far as it is joined to a corner: inside the head
    the same value is tissue, since who pads with such a value does not keep it free.

    Args:
        pixels: of the slice.
        hu: (V,) what each value would become.
        padding: as `to_hu` takes it.
        known: (V,) bool, values of which is known otherwise what they stand for.

    Returns:
        The rim, or None where there is none.
    """
    corner = _corner(pixels.stored)
    if padding is None or corner is None or not padding[0] <= corner <= padding[1]:
        return None
    place = corner - int(pixels.values[0])
    if hu[place] <= LIKE_AIR or known[place]:
        return None
    areas, _ = label(pixels.stored == corner)
    return np.isin(areas, areas[[0, 0, -1, -1], [0, -1, 0, -1]])


def _is_background(hu: np.ndarray) -> bool:
    """Whether values that may be padding are: none of their HU can be air, patient or table.

    Padding that is air already needs no repair; padding that is tissue, or a range that reaches into it,
    cannot be told from tissue.
    """
    return not ((hu >= AIR) & (hu <= BACKGROUND_MAX)).any()
