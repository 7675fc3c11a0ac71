"""Stored pixel values to Hounsfield units, with the repairs that real files need.

In: the stored values of one slice and what its header says of them. Out: int16 HU (H, W) in -1024..3095 and
one (code, detail) pair for each repair. Stored values have at most 16 bits, so every rule is decided on the
values that may occur, lowest to highest, and makes one table of HU that the pixels are looked up in. Every
repair is decided by a rule on the values and the header, never by a file's name:

* outside the field of view -> air: `_padding_ranges`, `_is_background`, `_declared_rim`
* bits above BitsStored are cleared or sign-extended: `_use_stored_bits`, unless they are image: `_check_bits`
* 12-bit unsigned values that are two's complement HU: `_is_wrapped`
* HU that the CT scale cannot hold -> its nearest limit.

Source: DICOM PS3.3 C.8.2.1 and C.11.1 (rescale), C.7.5.1.1.2 (pixel padding), PS3.5 8.1.1 (unused bits).
Legend: `H, W` pixels, `V` values that may occur.
"""

import math

import numpy as np
from scipy.ndimage import label

from ich_mil.ledger import Code

# The 12-bit CT scale: stored 0..4095 with an intercept of -1024 (most makers) or of -1000 (Philips).
HU_MIN = -1024
HU_MAX = 3095
# Padding becomes the lowest value, which is also what most scanners write for air outside the patient.
AIR = HU_MIN
# Nothing that reaches all four corners of an image is denser than this: dense bone.
BACKGROUND_MAX = 1000
# Padding up to this looks like the air it stands for: no rim shows.
LIKE_AIR = -900
# -2000, the usual padding, whose sign was lost on the way. 0xF830 & 0x7FFF is seen in RSNA 2019; 0xF830 is
# the same number read as unsigned.
PADDING_WITHOUT_SIGN = 30768
PADDING_UNSIGNED = 63536
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
# Pixels that are looked up in the table at once.
PIXELS_AT_ONCE = 1 << 15


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
    pixels = _Pixels(stored)
    if pixels.values.size == 1:
        raise NoHounsfieldError(f"all pixels have the stored value {pixels.values[0]}", code=Code.FLAT)
    notes: list[tuple[Code, str]] = []
    wrapped = _is_wrapped(pixels, slope=slope, intercept=intercept, bits_stored=bits_stored, signed=signed)
    hu_of_value = _rescale(pixels.values, slope=slope, intercept=intercept, wrapped=wrapped)  # (V,)

    outside = np.zeros(pixels.values.shape, dtype=bool)  # (V,)
    for first, last, source in _padding_ranges(stored, padding, bits_stored=bits_stored, signed=signed):
        inside = pixels.places_of(first, last)
        if outside[inside].any() or not _is_background(hu_of_value[inside]):
            continue
        if count := pixels.count(inside.start, inside.stop):
            outside[inside] = True
            named = f"value {first}" if first == last else f"values {first} to {last}"
            notes.append((Code.PADDING, f"{count} pixels of stored {named} ({source}) set to {AIR} HU"))

    used = _use_stored_bits(pixels.values, bits_stored=bits_stored, signed=signed)  # (V,)
    changed = (used != pixels.values) & ~outside  # (V,)
    rim = _declared_rim(pixels, padding, (hu_of_value > LIKE_AIR) & ~changed & ~outside)  # (H, W)
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


class _Pixels:
    """The pixels of one slice and the list of the values that may occur in it.

    Counting is a pass over the picture, made only when a rule asks: most rules are decided by the values.

    Args:
        stored: (H, W) integers of 8 or 16 bits.

    Attributes:
        stored: the same.
        values: (V,) lowest to highest stored value; both occur.
    """

    def __init__(self, stored: np.ndarray) -> None:
        self.stored = stored
        lowest, highest = int(stored.min()), int(stored.max())
        self.values = np.arange(lowest, highest + 1, dtype=np.int32)
        self._n_below = {0: 0, self.values.size: stored.size}
        self._left_out = (-1, 0)  # a place in values, and how many of its pixels are not counted

    def leave_out(self, value: int, n: int) -> None:
        """Count n pixels fewer of `value` from now on; for one value only."""
        self._left_out = (value - int(self.values[0]), n)

    def places_of(self, first: int, last: int) -> slice:
        """Where in `values` first to last stand, both included; empty where none may occur."""
        lowest = int(self.values[0])
        return slice(max(first - lowest, 0), min(max(last + 1 - lowest, 0), self.values.size))

    def count(self, start: int, stop: int) -> int:
        """Pixels whose value is one of values[start:stop]."""
        if start >= stop:
            return 0
        for place in (start, stop):
            if place not in self._n_below:
                below = self.stored < self.stored.dtype.type(self.values[place])
                self._n_below[place] = int(np.count_nonzero(below))
        place, n = self._left_out
        return self._n_below[stop] - self._n_below[start] - (n if start <= place < stop else 0)

    def count_where(self, chosen: np.ndarray) -> int:
        """Pixels whose value is chosen; `chosen` is (V,) bool."""
        at = np.flatnonzero(chosen)
        if at.size == 0:
            return 0
        start, stop = int(at[0]), int(at[-1]) + 1
        if at.size == stop - start:  # one run, as almost always: a comparison is ten times faster
            return self.count(start, stop)
        place, n = self._left_out
        return int(np.count_nonzero(self._take(chosen))) - (n if place >= 0 and chosen[place] else 0)

    def look_up(self, table: np.ndarray) -> np.ndarray:
        """The entry of `table`, (V,) int16, for each pixel: int16 (H, W).

        Most tables are clip(value, lowest, highest) + shift: slope 1, and no repair but of padding that is
        less than air. These are clipped and added, at a fifth of the time of the look-up.
        """
        rise = int(np.argmax(table != table[0]))  # the first place off the lower limit
        shift = int(table[rise]) - int(self.values[rise])
        low, high = int(table[0]) - shift, int(table[-1]) - shift
        if np.array_equal(table, self.values.clip(low, high) + shift):
            limits = np.iinfo(self.stored.dtype)
            hu = self.stored.clip(max(low, limits.min), min(high, limits.max))
            hu = hu.astype(np.int16, order="C", copy=False)  # modulo 2^16, as the sum is
            hu += np.array(shift).astype(np.int16)
            return hu
        return self._take(table)

    def _take(self, table: np.ndarray) -> np.ndarray:
        """table[value - lowest] of each pixel, a few rows at a time: their places stay in the cache."""
        taken = np.empty(self.stored.shape, dtype=table.dtype)
        rows = max(1, PIXELS_AT_ONCE // self.stored.shape[1])
        for first in range(0, len(taken), rows):
            places = self.stored[first : first + rows].astype(np.intp)
            places -= int(self.values[0])
            np.take(table, places, out=taken[first : first + rows], mode="clip")  # `clip` looks up unchecked
        return taken


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


def _is_wrapped(pixels: _Pixels, *, slope: float, intercept: float, bits_stored: int, signed: bool) -> bool:
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


def _declared_rim(
    pixels: _Pixels, padding: tuple[int, int] | None, can_be_rim: np.ndarray
) -> np.ndarray | None:
    """(H, W) bool: pixels outside the field of view whose padding is a number that tissue has too.

    As PixelPaddingValue 0 where the values are HU: a rim of water. What is declared to be padding and fills
    all four corners is padding whatever its HU, but only as far as it is joined to a corner: inside the head
    the same value is tissue, since who pads with such a value does not keep it free.

    Args:
        pixels: of the slice.
        padding: as `to_hu` takes it.
        can_be_rim: (V,) bool, values that need this: not air already, and not known to be padding otherwise.

    Returns:
        The rim, or None where there is none.
    """
    corner = _corner(pixels.stored)
    if padding is None or corner is None or not padding[0] <= corner <= padding[1]:
        return None
    if not can_be_rim[corner - int(pixels.values[0])]:
        return None
    areas, _ = label(pixels.stored == corner)
    return np.isin(areas, areas[[0, 0, -1, -1], [0, -1, 0, -1]])


def _is_background(hu: np.ndarray) -> bool:
    """Whether values that may be padding are: none of their HU can be air, patient or table.

    Padding that is air already needs no repair; padding that is tissue, or a range that reaches into it,
    cannot be told from tissue.
    """
    return not ((hu >= HU_MIN) & (hu <= BACKGROUND_MAX)).any()


def _use_stored_bits(values: np.ndarray, *, bits_stored: int, signed: bool) -> np.ndarray:
    """Drop what the bits above BitsStored hold (PS3.5 8.1.1).

    Done here and not by pydicom's `correct_unused_bits`, which turns padding 30768 into 2096, a bright ring.
    """
    lowest = -(1 << (bits_stored - 1)) if signed else 0
    if lowest <= values[0] and values[-1] < lowest + (1 << bits_stored):
        return values
    return ((values - lowest) & ((1 << bits_stored) - 1)) + lowest


def _check_bits(
    pixels: _Pixels, changed: np.ndarray, outside: np.ndarray, *, bits_stored: int, signed: bool
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
