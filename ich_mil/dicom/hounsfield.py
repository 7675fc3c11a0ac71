"""Stored pixel values to Hounsfield units, with the repairs that real files need.

In: the stored values of one slice and what its header says of them. Out: int16 HU (H, W) in -1024..3095 and
one (code, detail) pair for each repair. Every rule is decided on the header and on the values that may occur
(`ich_mil.dicom.stored_values`), never by a file's name, and all together make one table of HU that the pixels
are looked up in. The traps that are known:

* outside the field of view -> air: `ich_mil.dicom.padding`
* bits above BitsStored are cleared or sign-extended: `_use_stored_bits`, unless they are image: `_check_bits`
* 12-bit unsigned values that are two's complement HU: `_is_wrapped`
* an intercept of about 0: the values are HU as they stand, or none, by whether there is air: `has_air`
* HU that the CT scale cannot hold -> its nearest limit.

Source: DICOM PS3.3 C.8.2.1 and C.11.1 (rescale), PS3.5 8.1.1 (unused bits).
Legend: `H, W` pixels, `V` values that may occur.
"""

import math

import numpy as np

from ich_mil.dicom.padding import AIR, declared_rim, outside_values
from ich_mil.dicom.stored_values import StoredValues
from ich_mil.ledger import Code

# The 12-bit CT scale: stored 0..4095 with an intercept of -1024 (most makers) or of -1000 (Philips).
HU_MIN = AIR
HU_MAX = 3095
# An intercept above this says that the stored values are HU as they stand.
INTERCEPT_OF_HU = -100
# Wrapped 12-bit values: HU -1000..-1 are stored as 3096..4095.
WRAP_FROM = 3096
WRAP_BY = 4096
# A head slice is at least this much air; metal denser than 3095 HU never covers so much.
WRAPPED_FRACTION = 0.01
# Bits above BitsStored hold an overlay in old files: text, a ruler, an outline, at most a few percent of the
# pixels. A head fills tens of percent: where more values than this reach up there, they are the image.
OVERLAY_FRACTION = 0.05
# Air and the partial volume at the skin: a CT slice whose scale is right has pixels between these.
AIR_BELOW = -500


class NoHounsfieldError(ValueError):
    """Stored values that no rule here makes Hounsfield units. `code` is their ledger code."""

    def __init__(self, message: str, *, code: Code) -> None:
        super().__init__(message)
        self.code = code


def has_air(hu: np.ndarray) -> bool:
    """Whether some pixel is air by measurement: above the lowest value of the scale, which may be padding."""
    return bool(np.count_nonzero(hu < AIR_BELOW) > np.count_nonzero(hu <= HU_MIN))


def to_hu(
    stored: np.ndarray,
    *,
    slope: float,
    intercept: float,
    bits_stored: int,
    signed: bool,
    padding: tuple[int, int] | None,
) -> tuple[np.ndarray, tuple[tuple[Code, str], ...]]:
    """Hounsfield units of one slice: HU = slope * stored + intercept, after the repairs named above.

    The header's intercept is wrong in some RSNA 2019 files: values are unsigned 12 bit, intercept about 0,
    and HU below 0 are stored as HU + 4096. Then HU = (stored + 1000) mod 4096 - 1000, the published repair
    (add 1000, wrap at 4096, intercept -1000). It does not fire where values are signed (they can hold HU as
    they stand), where more or fewer bits are stored, where the slope is not 1, or where fewer than 1 % of the
    values are 3096 or more: without wrapped air there is nothing to unwrap, and the few are metal.

    Where the intercept is about 0 and no such repair applies, the stored values claim to be HU as they stand.
    Every CT slice shows air, so they are believed where some pixel is air, and refused where none is.

    Values that use bits above BitsStored lose them, as an overlay. They are refused instead where that would
    make noise of a picture (12 bits written to the upper end of 16): where more than 5 % of the pixels that
    are not padding use them, or where the bits that such a picture leaves empty are empty in every pixel.
    Negative numbers whose sign was not extended are not counted among these.

    Args:
        stored: (H, W) integers of 8 or 16 bits as decoded, unused high bits still as in the file.
        slope: RescaleSlope (0028,1053), HU per stored unit.
        intercept: RescaleIntercept (0028,1052), HU.
        bits_stored: BitsStored (0028,0101), 1 to 16.
        signed: PixelRepresentation (0028,0103) is 1.
        padding: PixelPaddingValue (0028,0120) and PixelPaddingRangeLimit (0028,0121), lowest first, both
            included; twice the value where there is no limit.

    Returns:
        int16 HU (H, W) within -1024..3095, and one (code, detail) pair for each repair or note. Fractions
        are rounded to the nearest even, as `np.rint` does in float64.

    Raises:
        NoHounsfieldError: all pixels are equal, as stored or once set right (`flat`), intercept is about
            0 and no pixel is air (`no-hu-scale`), or the bits above BitsStored hold the picture
            (`no-hu-scale`).
        ValueError: `stored` is empty, not two-dimensional or not of 8 or 16 bits, bits_stored is not 1 to 16,
            slope or intercept is not a finite number, the slope is 0, or padding ends before it begins.
    """
    _check(stored, slope=slope, intercept=intercept, bits_stored=bits_stored, padding=padding)
    pixels = StoredValues(stored)
    if pixels.values.size == 1:
        raise NoHounsfieldError(f"all pixels have the stored value {pixels.values[0]}", code=Code.FLAT)
    wrapped = _is_wrapped(pixels, slope=slope, intercept=intercept, bits_stored=bits_stored, signed=signed)
    hu_of_value = _rescale(pixels.values, slope=slope, intercept=intercept, wrapped=wrapped)  # (V,)

    outside, notes = outside_values(pixels, hu_of_value, padding, bits_stored=bits_stored, signed=signed)

    used = _use_stored_bits(pixels.values, bits_stored=bits_stored, signed=signed)  # (V,)
    changed = (used != pixels.values) & ~outside  # (V,)
    rim = declared_rim(pixels, hu_of_value, padding, known=changed | outside)  # (H, W)
    if rim is not None:
        n_rim = int(np.count_nonzero(rim))
        named = f"value {stored[0, 0]} (PixelPaddingValue and all four corners)"
        notes.append((Code.PADDING, f"{n_rim} pixels of stored {named} set to {AIR} HU"))
        pixels.leave_out(int(stored[0, 0]), n_rim)

    _check_bits(pixels, changed, outside, bits_stored=bits_stored, signed=signed)
    if n_bits_changed := pixels.count_where(changed):
        detail = f"{n_bits_changed} values used bits above the {bits_stored} stored ones"
        notes.append((Code.UNUSED_BITS, detail))
        hu_of_value = _rescale(used, slope=slope, intercept=intercept, wrapped=wrapped)

    if wrapped:
        n_wrapped = pixels.count_where((used >= WRAP_FROM) & ~outside)
        detail = (
            f"intercept {intercept:g} with 12-bit unsigned values: {n_wrapped} of {stored.size} values from "
            f"{WRAP_FROM} up lowered by {WRAP_BY}"
        )
        notes.append((Code.INTERCEPT_12_BIT, detail))

    hu_of_value[outside] = AIR
    below, above = pixels.count_where(hu_of_value < HU_MIN), pixels.count_where(hu_of_value > HU_MAX)
    if below or above:
        detail = f"{below} pixels raised to {HU_MIN} HU, {above} lowered to {HU_MAX} HU"
        notes.append((Code.HU_CLIPPED, detail))
    table = hu_of_value.clip(HU_MIN, HU_MAX).astype(np.int16)  # (V,)
    hu = pixels.look_up(table)  # (H, W)
    if rim is not None:
        hu[rim] = AIR

    # the first and the last value occur
    if (rim is not None or table[0] == table[-1]) and hu.min() == hu.max():
        detail = f"all pixels are {hu[0, 0]} HU once padding and range are set right"
        raise NoHounsfieldError(detail, code=Code.FLAT)
    if intercept > INTERCEPT_OF_HU:
        if not has_air(hu):
            detail = (
                f"intercept is {intercept:g} but no pixel is air (-1024 to -500 HU): its values are not HU"
            )
            raise NoHounsfieldError(detail, code=Code.NO_HU_SCALE)
        if signed:
            detail = f"intercept {intercept:g} with signed values that hold air: used as they stand"
            notes.append((Code.ALREADY_HU, detail))
    return hu, tuple(notes)


def _check(
    stored: np.ndarray, *, slope: float, intercept: float, bits_stored: int, padding: tuple[int, int] | None
) -> None:
    """Refuse what no reader of a CT slice can hand on; `to_hu` states what is allowed."""
    if stored.ndim != 2 or stored.size == 0:
        raise ValueError(f"stored values must be a non-empty (H, W) array; got shape {stored.shape}")
    if stored.dtype.kind not in "iu" or stored.dtype.itemsize > 2:
        raise ValueError(f"stored values must be integers of 8 or 16 bits; got {stored.dtype}")
    if not 1 <= bits_stored <= 16:
        raise ValueError(f"BitsStored must be 1 to 16; got {bits_stored}")
    if not (math.isfinite(slope) and math.isfinite(intercept)) or slope == 0:
        raise ValueError(
            f"RescaleSlope must be finite and not 0, RescaleIntercept finite; got {slope}, {intercept}"
        )
    if padding is not None and padding[0] > padding[1]:
        raise ValueError(f"padding must be (lowest, highest); got {padding}")


def _is_wrapped(
    pixels: StoredValues, *, slope: float, intercept: float, bits_stored: int, signed: bool
) -> bool:
    """Whether 12-bit unsigned values are HU in two's complement (`to_hu` states the rule)."""
    if signed or bits_stored != 12 or slope != 1 or intercept <= INTERCEPT_OF_HU:
        return False
    high = pixels.places_of(WRAP_FROM, WRAP_BY - 1)
    return pixels.count(high.start, high.stop) >= WRAPPED_FRACTION * pixels.stored.size


def _rescale(values: np.ndarray, *, slope: float, intercept: float, wrapped: bool) -> np.ndarray:
    """float64 HU of stored values, rounded to whole units."""
    if wrapped:
        return np.where((values >= WRAP_FROM) & (values < WRAP_BY), values - WRAP_BY, values).astype(float)
    with np.errstate(over="ignore"):  # beyond float64 is beyond the CT scale, which it is clipped to
        return np.rint(slope * values + intercept)


def _use_stored_bits(values: np.ndarray, *, bits_stored: int, signed: bool) -> np.ndarray:
    """Drop what the bits above BitsStored hold (PS3.5 8.1.1).

    Done here and not by pydicom's `correct_unused_bits`, which turns padding 30768 into 2096, a bright ring.
    """
    lowest = -(1 << (bits_stored - 1)) if signed else 0
    if lowest <= values[0] and values[-1] < lowest + (1 << bits_stored):
        return values
    return ((values - lowest) & ((1 << bits_stored) - 1)) + lowest


def _check_bits(
    pixels: StoredValues, changed: np.ndarray, outside: np.ndarray, *, bits_stored: int, signed: bool
) -> None:
    """Refuse a picture that lies in the bits above BitsStored (`to_hu` states the rule)."""
    if signed:  # a sign that was not extended
        changed = changed & ((pixels.values < 0) | (pixels.values >= 1 << bits_stored))
    n_changed = pixels.count_where(changed)
    if not n_changed:
        return
    n = pixels.count(0, pixels.values.size) - pixels.count_where(outside)
    empty = (1 << (8 * pixels.stored.itemsize - bits_stored)) - 1  # the lowest bits
    if n_changed > OVERLAY_FRACTION * n or not int(np.bitwise_or.reduce(pixels.stored, axis=None)) & empty:
        detail = f"{n_changed} of {n} values use bits above the {bits_stored} stored ones"
        raise NoHounsfieldError(detail, code=Code.NO_HU_SCALE)
