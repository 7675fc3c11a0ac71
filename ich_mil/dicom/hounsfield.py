"""Stored pixel values to Hounsfield units, with the repairs that real files need.

In: the stored values of one slice and what its header says of them. Out: int16 HU (H, W) in -1024..3095 and
one (code, detail) pair for each repair. Every repair is decided by a rule on the values and the header, never
by a file's name:

* outside the field of view -> air: `_padding_values`
* bits above BitsStored are cleared or sign-extended: `_use_stored_bits`
* 12-bit unsigned values that are two's complement HU: `_is_wrapped`
* HU that the CT scale cannot hold -> its nearest limit.

Source: DICOM PS3.3 C.8.2.1 and C.11.1 (rescale), C.7.5.1.1.2 (pixel padding), PS3.5 8.1.1 (unused bits).
Legend: `H, W` pixels.
"""

import math

import numpy as np

from ich_mil.ledger import Code

# The 12-bit CT scale: stored 0..4095 with an intercept of -1024 (most makers) or of -1000 (Philips).
HU_MIN = -1024
HU_MAX = 3095
# Padding becomes the lowest value, which is also what most scanners write for air outside the patient.
AIR = HU_MIN
# Nothing that reaches all four corners of an image is denser than this: dense bone.
BACKGROUND_MAX = 1000
# -2000, the usual padding, whose sign bit was lost on the way: 0xF830 & 0x7FFF. Seen in RSNA 2019.
PADDING_WITHOUT_SIGN = 30768
# An intercept above this says that the stored values are HU as they stand.
INTERCEPT_OF_HU = -100
# Wrapped 12-bit values: HU -1000..-1 are stored as 3096..4095.
WRAP_FROM = 3096
WRAP_BY = 4096
# A head slice is at least this much air; metal denser than 3095 HU never covers so much.
WRAPPED_FRACTION = 0.01
# Air and the partial volume at the skin: a CT slice whose scale is right has pixels between these.
AIR_BELOW = -500


def has_air(hu: np.ndarray) -> bool:
    """Whether some pixel is air by measurement: above the lowest value of the scale, which may be padding."""
    return bool(((hu > HU_MIN) & (hu < AIR_BELOW)).any())


def to_hu(
    stored: np.ndarray, *, slope: float, intercept: float, bits_stored: int, signed: bool, padding: int | None
) -> tuple[np.ndarray, tuple[tuple[Code, str], ...]]:
    """Hounsfield units of one slice: HU = slope * stored + intercept, after the repairs named above.

    The header's intercept is wrong in some RSNA 2019 files: values are unsigned 12 bit, intercept about 0,
    and HU below 0 are stored as HU + 4096. Then HU = (stored + 1000) mod 4096 - 1000, the published repair
    (add 1000, wrap at 4096, intercept -1000). It does not fire where values are signed (they can hold HU as
    they stand), where more or fewer bits are stored, where the slope is not 1, or where fewer than 1 % of the
    values are 3096 or more: without wrapped air there is nothing to unwrap, and the few are metal.

    Args:
        stored: (H, W) integers as decoded, unused high bits still as in the file.
        slope: RescaleSlope (0028,1053), HU per stored unit.
        intercept: RescaleIntercept (0028,1052), HU.
        bits_stored: BitsStored (0028,0101).
        signed: PixelRepresentation (0028,0103) is 1.
        padding: PixelPaddingValue (0028,0120) where present.

    Returns:
        int16 HU (H, W) within -1024..3095, and one (code, detail) pair for each repair or note.

    Raises:
        ValueError: `stored` is empty or not two-dimensional, or slope or intercept is not a finite number,
            or the slope is 0.
    """
    if stored.ndim != 2 or stored.size == 0:
        raise ValueError(f"stored values must be a non-empty (H, W) array; got shape {stored.shape}")
    if not (math.isfinite(slope) and math.isfinite(intercept)) or slope == 0:
        raise ValueError(
            f"RescaleSlope must be finite and not 0, RescaleIntercept finite; got {slope}, {intercept}"
        )
    notes: list[tuple[Code, str]] = []
    wrapped = _is_wrapped(stored, slope=slope, intercept=intercept, bits_stored=bits_stored, signed=signed)

    outside = np.zeros(stored.shape, dtype=bool)
    for value, source in _padding_values(stored, padding).items():
        is_negative = wrapped and WRAP_FROM <= value < WRAP_BY
        hu_of_value = value - WRAP_BY if is_negative else slope * value + intercept
        # Padding that is air already needs no repair; padding that is tissue cannot be told from tissue.
        if HU_MIN <= hu_of_value <= BACKGROUND_MAX:
            continue
        equal = stored == value
        if count := int(equal.sum()):
            outside |= equal
            notes.append((Code.PADDING, f"{count} pixels of stored value {value} ({source}) set to {AIR} HU"))

    values, n_bits_changed = _use_stored_bits(stored, outside, bits_stored=bits_stored, signed=signed)
    if n_bits_changed:
        notes.append(
            (Code.UNUSED_BITS, f"{n_bits_changed} values used bits above the {bits_stored} stored ones")
        )

    if wrapped:
        hu = values.astype(np.int32)  # (H, W)
        high = hu >= WRAP_FROM
        hu[high] -= WRAP_BY
        notes.append(
            (
                Code.INTERCEPT_12_BIT,
                f"intercept {intercept:g} with 12-bit unsigned values: {int((high & ~outside).sum())} of "
                f"{hu.size} values from {WRAP_FROM} up lowered by {WRAP_BY}",
            )
        )
    elif slope == 1 and float(intercept).is_integer():
        hu = values.astype(np.int32)
        hu += int(intercept)
    else:
        scaled = values.astype(np.float32)
        scaled *= np.float32(slope)
        scaled += np.float32(intercept)
        hu = np.rint(scaled, out=scaled)
    hu[outside] = AIR

    below, above = int((hu < HU_MIN).sum()), int((hu > HU_MAX).sum())
    if below or above:
        np.clip(hu, HU_MIN, HU_MAX, out=hu)
        detail = f"{below} pixels raised to {HU_MIN} HU, {above} lowered to {HU_MAX} HU"
        notes.append((Code.HU_CLIPPED, detail))
    if signed and intercept > INTERCEPT_OF_HU and has_air(hu):
        detail = f"intercept {intercept:g} with signed values that hold air: used as they stand"
        notes.append((Code.ALREADY_HU, detail))
    return hu.astype(np.int16), tuple(notes)


def _is_wrapped(
    stored: np.ndarray, *, slope: float, intercept: float, bits_stored: int, signed: bool
) -> bool:
    """Whether 12-bit unsigned values are HU in two's complement (`to_hu` states the rule)."""
    if signed or bits_stored != 12 or slope != 1 or intercept <= INTERCEPT_OF_HU:
        return False
    n_wrapped = int(((stored >= WRAP_FROM) & (stored < WRAP_BY)).sum())
    return n_wrapped >= WRAPPED_FRACTION * stored.size


def _padding_values(stored: np.ndarray, padding: int | None) -> dict[int, str]:
    """Stored values that may stand for 'outside the field of view', each with where it was found.

    They are PixelPaddingValue, 30768, and the one value that fills all four corners: reconstruction fills a
    circle, so its outside reaches every corner. `to_hu` keeps those whose HU no background can have.
    """
    found: dict[int, str] = {}
    if padding is not None:
        found[padding] = "PixelPaddingValue"
    found.setdefault(PADDING_WITHOUT_SIGN, "padding -2000 without its sign")
    corners = {int(stored[row, column]) for row in (0, -1) for column in (0, -1)}
    if len(corners) == 1:
        found.setdefault(corners.pop(), "all four corners")
    return found


def _use_stored_bits(
    stored: np.ndarray, outside: np.ndarray, *, bits_stored: int, signed: bool
) -> tuple[np.ndarray, int]:
    """Drop what the bits above BitsStored hold (PS3.5 8.1.1), and count the values this changes.

    Done here and not by pydicom's `correct_unused_bits`, which turns padding 30768 into 2096, a bright ring.
    """
    low, high = (
        (-(1 << (bits_stored - 1)), (1 << (bits_stored - 1)) - 1) if signed else (0, (1 << bits_stored) - 1)
    )
    if stored.min() >= low and stored.max() <= high:
        return stored, 0
    wrong = ((stored < low) | (stored > high)) & ~outside
    if not wrong.any():
        return stored, 0
    values = stored.astype(np.int64)
    values &= (1 << bits_stored) - 1
    if signed:
        values[values > high] -= 1 << bits_stored
    return values, int(wrong.sum())
