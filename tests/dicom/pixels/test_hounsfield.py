"""Hand-computed HU, and the conditions under which a repair must not fire."""

import numpy as np
import pytest

from ich_mil.dicom.pixels.hounsfield import NoHounsfieldError, has_air, to_hu
from ich_mil.ledger import Code


def convert(
    values, *, dtype=np.int16, slope=1.0, intercept=-1024.0, bits_stored=16, signed=True, padding=None
):
    hu, notes = to_hu(
        np.array(values, dtype=dtype),
        slope=slope,
        intercept=intercept,
        bits_stored=bits_stored,
        signed=signed,
        padding=padding,
    )
    assert hu.dtype == np.int16
    return hu.tolist(), dict(notes)


def twelve_bit(values, **options):
    given = {"dtype": np.uint16, "bits_stored": 12, "signed": False, "intercept": 0.0} | options
    return convert(values, **given)


def test_slope_one_adds_the_intercept():
    assert convert([[24, 1024], [1064, 1100]]) == ([[-1000, 0], [40, 76]], {})


def test_fractional_slope_is_rounded_to_the_nearest_unit():
    # 2.0002442 * 2043 - 4047 = 39.4989..., 2.0002442 * 2100 - 4047 = 153.51...
    values = [[1524, 2043], [2100, 2024]]
    assert convert(values, slope=2.0002442, intercept=-4047)[0] == [[-999, 39], [154, 1]]


def test_big_endian_values_are_the_same():
    assert convert([[24, 1024], [1064, 1100]], dtype=">i2")[0] == [[-1000, 0], [40, 76]]


def test_int16_does_not_overflow():
    hu, notes = convert([[-32768, 1024], [32767, 1064]])
    assert hu == [[-1024, 0], [3095, 40]]
    assert notes == {Code.HU_CLIPPED: "1 pixels raised to -1024 HU, 1 lowered to 3095 HU"}


def test_the_ends_of_the_scale_are_not_clipped():
    assert convert([[0, 4119], [24, 1024]]) == ([[-1024, 3095], [-1000, 0]], {})


def test_wrapped_twelve_bit_values_are_unwrapped():
    hu, notes = twelve_bit([[3096, 4095, 0], [40, 1000, 3095], [3100, 3500, 80]])
    assert hu == [[-1000, -1, 0], [40, 1000, 3095], [-996, -596, 80]]
    assert notes[Code.INTERCEPT_12_BIT].endswith("4 of 9 values from 3096 up lowered by 4096")


@pytest.mark.parametrize("intercept", [1, -99])
def test_unwrapping_is_the_published_rule_for_every_twelve_bit_value(intercept):
    stored = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    published = stored.astype(int) + 1000
    published[published >= 4096] -= 4096
    hu, _ = to_hu(stored, slope=1, intercept=intercept, bits_stored=12, signed=False, padding=None)
    np.testing.assert_array_equal(hu, published - 1000)


@pytest.mark.parametrize("changed", [{"intercept": -1024.0}, {"intercept": -100.0}])
def test_unwrapping_needs_an_intercept_of_hu(changed):
    _, notes = twelve_bit([[3096, 4095], [40, 3500]], **changed)
    assert Code.INTERCEPT_12_BIT not in notes


@pytest.mark.parametrize(
    "changed",
    [{"signed": True, "dtype": np.int16, "bits_stored": 16}, {"bits_stored": 16}, {"slope": 2.0}],
    ids=["signed", "16-bit", "slope 2"],
)
def test_unwrapping_needs_unsigned_twelve_bits_and_slope_one(changed):
    # Left as they are, the values hold no air: they are refused.
    reason = r"intercept is 0 but no pixel is air \(-1024 to -500 HU\): its values are not HU"
    with pytest.raises(NoHounsfieldError, match=reason) as refused:
        twelve_bit([[3096, 4095], [40, 3500]], **changed)
    assert refused.value.code == Code.NO_HU_SCALE


def test_one_percent_of_high_values_is_wrapped_air_and_less_is_metal():
    values = np.full((20, 20), 40)
    values[0, 1:5] = 3500  # 4 of 400 values
    hu, notes = twelve_bit(values)
    assert hu[0][:6] == [40, -596, -596, -596, -596, 40]
    assert set(notes) == {Code.INTERCEPT_12_BIT}
    for no_wrapped_air in (40, 3095, 4096):
        values[0, 4] = no_wrapped_air
        with pytest.raises(NoHounsfieldError, match="no pixel is air"):
            twelve_bit(values)


def test_signed_values_with_intercept_zero_are_hu_already():
    # As in a real GE head scan: signed 16 bit, intercept 0, padding -1500.
    hu, notes = convert(
        [[-1500, -995, -1500], [-990, 35, 1200], [-1500, -998, -1500]], intercept=0, padding=(-1500, -1500)
    )
    assert hu == [[-1024, -995, -1024], [-990, 35, 1200], [-1024, -998, -1024]]
    assert set(notes) == {Code.PADDING, Code.ALREADY_HU}
    assert notes[Code.PADDING] == "4 pixels of stored value -1500 (PixelPaddingValue) set to -1024 HU"


def test_unused_bits_are_dropped_and_sign_extended():
    # 0x1428 is 1064 with an overlay bit; 0x0C18 is -1000 in twelve bits without sign extension.
    values = np.full((5, 4), 1100)
    values[0] = 0x1428, 24, 1024, 1100
    hu, notes = twelve_bit(values, intercept=-1024)
    assert hu == [[40, -1000, 0, 76]] + [[76] * 4] * 4
    assert notes == {Code.UNUSED_BITS: "1 values used bits above the 12 stored ones"}
    hu, notes = convert([[0x0C18, 40], [0, 76]], intercept=0, bits_stored=12)
    assert hu == [[-1000, 40], [0, 76]]
    assert set(notes) == {Code.UNUSED_BITS, Code.ALREADY_HU}


def test_an_overlay_covers_at_most_five_percent_of_what_is_no_padding():
    # 0x1428 is 1064 with an overlay bit; the two pixels of padding are not among the 40 values.
    values = np.full((6, 7), 1100)
    values[:2, 0] = 30768
    values[2, :2] = 0x1428
    hu, notes = twelve_bit(values, intercept=-1024)
    assert (hu[0][0], hu[2][0], hu[2][2]) == (-1024, 40, 76)
    assert notes[Code.UNUSED_BITS] == "2 values used bits above the 12 stored ones"
    values[2, 2] = 0x1428
    reason = "3 of 40 values use bits above the 12 stored ones"
    with pytest.raises(NoHounsfieldError, match=reason) as refused:
        twelve_bit(values, intercept=-1024)
    assert refused.value.code == Code.NO_HU_SCALE


@pytest.mark.parametrize("n_head", [1, 50])
@pytest.mark.parametrize("storage", [{}, {"dtype": np.int16, "signed": True}], ids=["unsigned", "signed"])
def test_values_in_the_upper_bits_are_refused(n_head, storage):
    # 12 bits at the upper end of 16: air stays below 4096, the head does not; near the vertex it is small.
    values = np.full(100, 24)
    values[50 : 50 + n_head] = 1064
    reason = f"{n_head} of 100 values use bits above the 12 stored ones"
    with pytest.raises(NoHounsfieldError, match=reason) as refused:
        twelve_bit(values.reshape(10, 10) << 4, intercept=-1024, **storage)
    assert refused.value.code == Code.NO_HU_SCALE


def test_signs_that_were_not_extended_are_no_overlay():
    # All but two of them negative
    values = np.full((5, 5), -1000) & 0xFFF
    values[2, 2:4] = 40
    hu, notes = convert(values, intercept=0, bits_stored=12)
    assert hu[2] == [-1000, -1000, 40, 40, -1000]
    assert notes[Code.UNUSED_BITS] == "23 values used bits above the 12 stored ones"


def test_eight_bit_values():
    # 8 * 128 - 1024 = 0, 8 * 133 - 1024 = 40, 8 * 255 - 1024 = 1016
    unsigned = {"dtype": np.uint8, "slope": 8, "bits_stored": 8, "signed": False}
    assert convert([[0, 128], [133, 255]], **unsigned) == ([[-1024, 0], [40, 1016]], {})
    signed = {"dtype": np.int8, "slope": 8, "intercept": 0, "bits_stored": 8}
    assert convert([[-128, -125], [5, 127]], **signed)[0] == [[-1024, -1000], [40, 1016]]


def test_halves_are_rounded_to_even_in_float64():
    # 0.5 * 2049 - 1024 = 0.5 and 0.5 * 2051 - 1024 = 1.5
    assert convert([[2049, 2051], [48, 2128]], slope=0.5)[0] == [[0, 2], [-1000, 40]]
    # 1.0000001 * 3001 - 1024.5 = 1976.5003: float32 knows no slope between 1 and 1.0000001192
    assert convert([[3001, 24], [25, 26]], slope=1.0000001, intercept=-1024.5)[0][0] == [1977, -1000]


def test_falling_slope():
    assert convert([[-24, -1064], [0, -3000]], slope=-1)[0] == [[-1000, 40], [-1024, 1976]]


@pytest.mark.parametrize(
    ("slope", "expected"),
    [(1e308, [[-1024, -1024], [3095, 3095]]), (-1e308, [[3095, -1024], [-1024, -1024]])],
)
def test_hu_beyond_float64_are_clipped(slope, expected):
    assert convert([[-2000, 0], [1, 3000]], slope=slope)[0] == expected


@pytest.mark.parametrize("hu", [[-1024, -500], [-1024, -1024], [0, 40]])
def test_lowest_value_and_partial_volume_are_no_air(hu):
    assert not has_air(np.array([hu], dtype=np.int16))


@pytest.mark.parametrize("hu", [-1023, -501])
def test_values_between_are_air(hu):
    assert has_air(np.array([[-1024, hu, 40]], dtype=np.int16))


def test_equal_pixels_are_refused():
    with pytest.raises(NoHounsfieldError, match="all pixels have the stored value 7") as refused:
        convert([[7, 7], [7, 7]])
    assert refused.value.code == Code.FLAT
    with pytest.raises(NoHounsfieldError, match="all pixels are -1024 HU once padding and range") as refused:
        convert([[-2000, -3000], [-1500, -2000]])
    assert refused.value.code == Code.FLAT
    with pytest.raises(NoHounsfieldError, match="all pixels are -1024 HU") as refused:  # air, a rim of water
        convert([[1024, 0, 1024], [0, 0, 0], [1024, 0, 1024]], padding=(1024, 1024))
    assert refused.value.code == Code.FLAT


def by_hand(stored, *, slope, intercept, bits_stored, signed, padding):
    """The rules, pixel by pixel: HU, how many pixels each repair changed, whether the upper bits are image.

    Independent of the code.
    """
    pixels = [int(value) for value in stored.flat]
    wraps = (
        not signed and bits_stored == 12 and slope == 1 and intercept > -100
        and sum(3096 <= value < 4096 for value in pixels) >= 0.01 * len(pixels)
    )  # fmt: skip

    def scaled(value):
        return value - 4096 * (3096 <= value < 4096) if wraps else round(slope * value + intercept)

    def background(first, last):
        present = range(max(first, min(pixels)), min(last, max(pixels)) + 1)
        return not any(-1024 <= scaled(value) <= 1000 for value in present)

    ranges = [padding] if padding else []
    corners = {pixels[0], pixels[stored.shape[1] - 1], pixels[-stored.shape[1]], pixels[-1]}
    ranges += [(30768, 30768), (63536, 63536)] + [(value, value) for value in corners if len(corners) == 1]
    ranges = [ends for ends in ranges if background(*ends)]
    outside = {value for value in pixels for first, last in ranges if first <= value <= last}
    counts = {Code.PADDING: 0, Code.UNUSED_BITS: 0, Code.INTERCEPT_12_BIT: 0, Code.HU_CLIPPED: 0}

    def stored_bits(value):
        value %= 2**bits_stored
        return value - 2**bits_stored * (signed and value >= 2 ** (bits_stored - 1))

    rim = set()  # places
    value = pixels[0]
    declared = padding and len(corners) == 1 and padding[0] <= value <= padding[1]
    if declared and value not in outside and stored_bits(value) == value and scaled(value) > -900:
        height, width = stored.shape
        reached = [(0, 0), (0, width - 1), (height - 1, 0), (height - 1, width - 1)]
        while reached:
            row, column = reached.pop()
            place = row * width + column
            if 0 <= row < height and 0 <= column < width and place not in rim and pixels[place] == value:
                rim.add(place)
                reached += [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]

    inside = [value for place, value in enumerate(pixels) if value not in outside and place not in rim]
    odd = [
        value
        for value in inside
        if stored_bits(value) != value and not (signed and 0 <= value < 2**bits_stored)
    ]
    unit = 2 ** (8 * stored.itemsize - bits_stored)
    is_image = len(odd) > 0.05 * len(inside) or (odd and not any(value % unit for value in pixels))

    result = []
    for place, value in enumerate(pixels):
        if value in outside or place in rim:
            counts[Code.PADDING] += 1
            result.append(-1024)
            continue
        used = stored_bits(value)
        counts[Code.UNUSED_BITS] += used != value
        counts[Code.INTERCEPT_12_BIT] += wraps and used >= 3096
        hu = scaled(used)
        counts[Code.HU_CLIPPED] += not -1024 <= hu <= 3095
        result.append(min(max(hu, -1024), 3095))
    return np.array(result).reshape(stored.shape), counts, is_image


def count_in(detail):
    """The sum of the counts that a note names."""
    before_first_unit = [part.split(": ")[-1].split()[0] for part in detail.split(", ")]
    return sum(int(number) for number in before_first_unit if number.isdigit())


def draw(seed):
    """A picture and a header that make several rules meet."""
    rng = np.random.default_rng(seed)
    signed = bool(rng.integers(2))
    kind = np.dtype(rng.choice(["i1", "i2", "i2"] if signed else ["u1", "u2", "u2"]))
    ends = np.iinfo(kind)
    low, high = rng.choice([(ends.min, ends.max), (0, 4095), (-1100, 1500), (3096, 4095)])
    stored = rng.integers(low, high, (6, 7), endpoint=True).clip(ends.min, ends.max).astype(kind)
    if seed % 2:
        stored[rng.random(stored.shape) < 0.4] = rng.choice([0, 40, 100])
    if seed % 3 == 0:
        stored[[0, 0, -1, -1], [0, -1, 0, -1]] = rng.choice([ends.min, ends.max, 100])
    if kind.itemsize == 2 and seed % 5 == 0:
        stored[2, 2:5] = 30768 if signed or seed % 2 else 63536
    if kind.itemsize == 2 and seed % 7 == 0:
        stored = stored.clip(-500, 500)
        stored[3, 2:4] = rng.integers(8192, 16384, 2)
    return stored, {
        "slope": float(rng.choice([1, 1, 1, 2, 0.5, -1, 1.0000001])),
        "intercept": float(rng.choice([0, 0, -1024, -1000, -1024.5])),
        "bits_stored": 8 if kind.itemsize == 1 else int(rng.choice([10, 12, 12, 16])),
        "signed": signed,
        "padding": (None, tuple(np.sort(rng.integers(-4000, 6000, 2)).tolist()), (100, 100))[rng.integers(3)],
    }


def test_all_rules_together_are_the_rules_pixel_by_pixel():
    outcomes = set()
    for seed in range(600):
        stored, header = draw(seed)
        expected, counts, is_image = by_hand(stored, **header)
        air = ((expected > -1024) & (expected < -500)).any()
        refusal = Code.FLAT if np.ptp(expected) == 0 else Code.NO_HU_SCALE
        if is_image:
            with pytest.raises(NoHounsfieldError, match="values use bits above") as refused:
                to_hu(stored, **header)
            assert refused.value.code == Code.NO_HU_SCALE
            outcomes.add("image in the upper bits")
            continue
        if refusal == Code.FLAT or (header["intercept"] > -100 and not air):
            with pytest.raises(NoHounsfieldError) as refused:
                to_hu(stored, **header)
            assert refused.value.code == refusal, seed
            outcomes.add(refusal)
            continue
        hu, notes = to_hu(stored, **header)
        np.testing.assert_array_equal(hu, expected, err_msg=f"seed {seed}")
        told = dict.fromkeys(counts, 0)
        for code, detail in notes:
            if "and all four corners" in detail:
                outcomes.add("rim")
            if code in told:
                told[code] += count_in(detail)
        assert told == counts, seed
        outcomes |= {code for code, _ in notes}
    refusals = {Code.FLAT, Code.NO_HU_SCALE, "image in the upper bits"}
    assert outcomes == {*counts, Code.ALREADY_HU, "rim", *refusals}


@pytest.mark.parametrize("slope", [0.0, float("nan"), float("inf")])
def test_impossible_slope_raises(slope):
    with pytest.raises(ValueError, match="RescaleSlope must be finite and not 0"):
        convert([[1, 2]], slope=slope)
    with pytest.raises(ValueError, match="RescaleIntercept finite"):
        convert([[1, 2]], intercept=slope or float("nan"))


@pytest.mark.parametrize("shape", [(0, 4), (4,), (2, 4, 4)])
def test_impossible_shape_raises(shape):
    with pytest.raises(ValueError, match="non-empty"):
        convert(np.zeros(shape))


@pytest.mark.parametrize(
    ("dtype", "bits_stored"), [(np.int32, 16), (np.float32, 16), (np.uint16, 17), (np.uint16, 0)]
)
def test_more_than_sixteen_bits_raise(dtype, bits_stored):
    with pytest.raises(ValueError, match="16"):
        convert([[1, 2]], dtype=dtype, bits_stored=bits_stored)


def test_padding_from_high_to_low_raises():
    with pytest.raises(ValueError, match=r"padding must be \(lowest, highest\); got \(5, 3\)"):
        convert([[1, 2]], padding=(5, 3))


def test_pixels_keep_their_places_in_any_memory_order():
    stored = np.arange(24, dtype=np.int16).reshape(4, 6) * 50
    expected = (stored - 1024).tolist()
    for view in (stored, np.asfortranarray(stored), np.repeat(stored, 2, axis=1)[:, ::2]):
        assert convert(view)[0] == expected
        hu, _ = to_hu(view, slope=1, intercept=-1024, bits_stored=16, signed=True, padding=None)
        assert hu.flags.c_contiguous


def test_input_is_not_changed():
    stored = np.array([[-2000, 24], [1064, -2000]], dtype=np.int16)
    to_hu(stored, slope=1, intercept=-1024, bits_stored=16, signed=True, padding=(-2000, -2000))
    assert stored.tolist() == [[-2000, 24], [1064, -2000]]
