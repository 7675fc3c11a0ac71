"""Conversion of stored values to Hounsfield units, with repairs for faulty files.

In: the stored values of one slice and its rescale, bit depth and padding attributes. Out: int16 HU (H, W) in
-1024..3095 and one (code, detail) pair per repair. Rules depend only on the header and the stored values,
never on a file name. Together they yield one table from stored value to HU, in which the pixels are looked up
(`ich_mil.study.pixels.stored_values`). Handled faults:

* Padding outside the field of view is set to air (`ich_mil.study.pixels.padding`).
* Wrapped 12-bit values. In some RSNA 2019 files HU below 0 are stored as HU + 4096, unsigned, with an
  intercept of about 0. Then HU = (stored + 1000) mod 4096 - 1000, the published repair. It applies only to
  unsigned values, exactly 12 stored bits and a slope of 1, if at least 1 % of the values are 3096 or more:
  this is the wrapped air, and fewer such values are metal.
* Intercept of about 0 without that repair: the stored values themselves should be HU. Every CT slice shows
  air, so they are accepted if some pixel is air and refused otherwise.
* Bits above BitsStored are cleared or sign-extended: an overlay. They are refused if they hold the image (12
  bits written to the upper end of 16), because removal would leave noise: more than 5 % of the pixels that
  are not padding use them, or the lowest bits, which such an image leaves empty, are empty in every pixel.
  Negative numbers without sign extension do not count.
* HU outside the CT scale are clipped.

Source: DICOM PS3.3 C.8.2.1 and C.11.1 (rescale), PS3.5 8.1.1 (unused bits).
Legend: `H, W` pixels, `V` values from the lowest to the highest stored value.
"""

import numpy as np

from ich_mil.ledger import Code
from ich_mil.study.pixels.padding import AIR, declared_rim, outside_values
from ich_mil.study.pixels.stored_values import StoredValues

# The 12-bit CT scale: stored 0..4095 with an intercept of -1024 (most manufacturers) or -1000 (Philips).
HU_MIN = AIR
HU_MAX = 3095
# An intercept above this means that the stored values themselves are HU.
INTERCEPT_OF_HU = -100
# Wrapped 12-bit values: HU -1000..-1 are stored as 3096..4095.
WRAP_FROM = 3096
WRAP_BY = 4096
# Minimum fraction of wrapped values: a head slice has at least this much air, and metal denser than 3095 HU
# never covers as much.
WRAPPED_FRACTION = 0.01
# In old files the bits above BitsStored hold an overlay (text, ruler, outline) in at most a few percent of
# the pixels. A head fills tens of percent, so above this fraction those bits belong to the image.
OVERLAY_FRACTION = 0.05
# Upper limit of air and partial volume at the skin: a correctly scaled CT slice has pixels below this HU.
AIR_BELOW = -500


class NoHounsfieldError(ValueError):
    """Stored values cannot be converted to Hounsfield units. `code` is the ledger code."""

    def __init__(self, message: str, *, code: Code) -> None:
        super().__init__(message)
        self.code = code


def has_air(hu: np.ndarray) -> bool:
    """Whether a pixel holds measured air: above the minimum of the CT scale, which may be padding."""
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
    """Convert the stored values of one slice to HU = slope * stored + intercept, with the repairs above.

    Args:
        stored: (H, W) decoded integers of 8 or 16 bits, with unused high bits as in the file.
        slope: RescaleSlope (0028,1053), HU per stored unit, not 0.
        intercept: RescaleIntercept (0028,1052), HU.
        bits_stored: BitsStored (0028,0101), 1 to 16.
        signed: True if PixelRepresentation (0028,0103) is 1.
        padding: PixelPaddingValue (0028,0120) and PixelPaddingRangeLimit (0028,0121), lowest first, both
            included; the value twice if there is no limit.

    Returns:
        int16 HU (H, W) within -1024..3095, and one (code, detail) pair per repair or note. Fractions are
        rounded in float64, halves to even (`np.rint`).

    Raises:
        NoHounsfieldError: all pixels are equal before or after the repairs (`flat`), the intercept is about
            0 and no pixel is air (`no-hu-scale`), or the bits above BitsStored hold the image
            (`no-hu-scale`).
    """
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
        notes.append((Code.UNUSED_BITS, f"{n_bits_changed} values used bits above BitsStored {bits_stored}"))
        hu_of_value = _rescale(used, slope=slope, intercept=intercept, wrapped=wrapped)

    if wrapped:
        n_wrapped = pixels.count_where((used >= WRAP_FROM) & ~outside)
        lowered = f"{n_wrapped} of {stored.size} values from {WRAP_FROM} up lowered by {WRAP_BY}"
        detail = f"intercept {intercept:g} with 12-bit unsigned values: {lowered}"
        notes.append((Code.INTERCEPT_12_BIT, detail))

    hu_of_value[outside] = AIR
    below, above = pixels.count_where(hu_of_value < HU_MIN), pixels.count_where(hu_of_value > HU_MAX)
    if below or above:
        clipped = f"{below} pixels raised to {HU_MIN} HU, {above} lowered to {HU_MAX} HU"
        notes.append((Code.HU_CLIPPED, clipped))
    table = hu_of_value.clip(HU_MIN, HU_MAX).astype(np.int16)  # (V,)
    hu = pixels.look_up(table)  # (H, W)
    if rim is not None:
        hu[rim] = AIR

    # The first and the last value of the table occur in the slice.
    if (rim is not None or table[0] == table[-1]) and hu.min() == hu.max():
        raise NoHounsfieldError(f"all pixels are {hu[0, 0]} HU after the repairs", code=Code.FLAT)
    if intercept > INTERCEPT_OF_HU:
        if not has_air(hu):
            detail = f"intercept is {intercept:g} but no pixel is air (-1024 to -500 HU): values are not HU"
            raise NoHounsfieldError(detail, code=Code.NO_HU_SCALE)
        if signed:
            notes.append(
                (Code.ALREADY_HU, f"intercept {intercept:g} with signed values that hold air: unchanged")
            )
    return hu, tuple(notes)


def _is_wrapped(
    pixels: StoredValues, *, slope: float, intercept: float, bits_stored: int, signed: bool
) -> bool:
    """Whether 12-bit unsigned values are HU in two's complement."""
    if signed or bits_stored != 12 or slope != 1 or intercept <= INTERCEPT_OF_HU:
        return False
    high = pixels.range_of(WRAP_FROM, WRAP_BY - 1)
    return pixels.count(high.start, high.stop) >= WRAPPED_FRACTION * pixels.stored.size


def _rescale(values: np.ndarray, *, slope: float, intercept: float, wrapped: bool) -> np.ndarray:
    """Rescale stored values to float64 HU, rounded to whole units."""
    if wrapped:
        return np.where((values >= WRAP_FROM) & (values < WRAP_BY), values - WRAP_BY, values).astype(float)
    with np.errstate(over="ignore"):  # infinite values are clipped to the CT scale later
        return np.rint(slope * values + intercept)


def _use_stored_bits(values: np.ndarray, *, bits_stored: int, signed: bool) -> np.ndarray:
    """Clear or sign-extend the bits above BitsStored (PS3.5 8.1.1).

    pydicom's `correct_unused_bits` is not used: it turns padding 30768 into 2096, a bright ring.
    """
    lowest = -(1 << (bits_stored - 1)) if signed else 0
    if lowest <= values[0] and values[-1] < lowest + (1 << bits_stored):
        return values
    return ((values - lowest) & ((1 << bits_stored) - 1)) + lowest


def _check_bits(
    pixels: StoredValues, changed: np.ndarray, outside: np.ndarray, *, bits_stored: int, signed: bool
) -> None:
    """Raise an error if the bits above BitsStored hold the image."""
    if signed:  # exclude negative numbers without sign extension
        changed = changed & ((pixels.values < 0) | (pixels.values >= 1 << bits_stored))
    n_changed = pixels.count_where(changed)
    if not n_changed:
        return
    n = pixels.count(0, pixels.values.size) - pixels.count_where(outside)
    empty = (1 << (8 * pixels.stored.itemsize - bits_stored)) - 1  # mask of the lowest bits
    if n_changed > OVERLAY_FRACTION * n or not int(np.bitwise_or.reduce(pixels.stored, axis=None)) & empty:
        detail = f"{n_changed} of {n} values use bits above BitsStored {bits_stored}"
        raise NoHounsfieldError(detail, code=Code.NO_HU_SCALE)
