"""Hand-computed HU, and the conditions under which a repair must not fire."""

import numpy as np
import pytest

from ich_mil.ledger import Code
from ich_mil.study.pixels.hounsfield import NoHounsfieldError, has_air, to_hu


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


CASES = {
    "slope 1": ([[24, 1024], [1064, 1100]], {}, [[-1000, 0], [40, 76]], ""),
    # 2.0002442 * 2043 - 4047 = 39.4989..., 2.0002442 * 2100 - 4047 = 153.51...
    "fraction": ([[1524, 2043, 2100]], {"slope": 2.0002442, "intercept": -4047}, [[-999, 39, 154]], ""),
    # 0.5 * 2049 - 1024 = 0.5 and 0.5 * 2051 - 1024 = 1.5
    "halves to even": ([[2049, 2051, 48]], {"slope": 0.5}, [[0, 2, -1000]], ""),
    # 1.0000001 * 3001 - 1024.5 = 1976.5003: float32 knows no slope between 1 and 1.0000001192
    "float64": ([[3001, 24]], {"slope": 1.0000001, "intercept": -1024.5}, [[1977, -1000]], ""),
    # As in a real GE head scan: signed 16 bit, intercept 0, padding -1500.
    "already HU": (
        [[-1500, -995, -1500], [-990, 35, 1200], [-1500, -998, -1500]],
        {"intercept": 0, "padding": (-1500, -1500)},
        [[-1024, -995, -1024], [-990, 35, 1200], [-1024, -998, -1024]],
        "padding already-hu",
    ),
    "padding in all corners": (
        [[-2000, 24, -2000], [1064, -2000, 1100], [-2000, 30, -2000]],
        {},
        [[-1024, -1000, -1024], [40, -1024, 76], [-1024, -994, -1024]],
        "padding",
    ),
    "padding range": (
        [[-2000, 24, -1700], [1064, -1500, 1100], [-1501, 30, 22]],
        {"padding": (-2000, -1501)},
        [[-1024, -1000, -1024], [40, -1024, 76], [-1024, -994, -1002]],
        "padding hu-clipped",  # -1500 is outside the range
    ),
    # As with PixelPaddingValue 0 where values are HU: the 0 within the head is tissue.
    "rim": (
        [[0, 0, -990, 0, 0], [0, -980, 40, -995, 0], [-998, 35, 0, 30, -999], [0, -990, 37, -997, 0]],
        {"intercept": 0, "padding": (0, 0)},
        [
            [-1024, -1024, -990, -1024, -1024],
            [-1024, -980, 40, -995, -1024],
            [-998, 35, 0, 30, -999],
            [-1024, -990, 37, -997, -1024],
        ],
        "padding already-hu",
    ),
    **{
        f"no rim: corners {corner}": (
            [[corner, -990, corner], [-980, 40, -995], [corner, -998, corner]],
            {"intercept": 0, "padding": padding},
            [[corner, -990, corner], [-980, 40, -995], [corner, -998, corner]],
            "already-hu",
        )
        for corner, padding in [(0, None), (-900, (-900, -900)), (-1024, (-1024, -1024))]
    },
}
TWELVE_BIT_CASES = {
    "wrapped": (
        [[3096, 4095, 0], [40, 1000, 3095], [3100, 3500, 80]],
        {},
        [[-1000, -1, 0], [40, 1000, 3095], [-996, -596, 80]],
        "intercept-12-bit",
    ),
    "padding 30768": (
        [[24, 30768], [1064, 1100]],
        {"intercept": -1024},
        [[-1000, -1024], [40, 76]],
        "padding",
    ),
}


@pytest.mark.parametrize(
    ("function", "case"),
    [
        *((convert, case) for case in CASES.values()),
        *((twelve_bit, case) for case in TWELVE_BIT_CASES.values()),
    ],
    ids=[*CASES, *(f"12 bits, {name}" for name in TWELVE_BIT_CASES)],
)
def test_hu_by_hand(function, case):
    values, options, expected, codes = case
    hu, notes = function(values, **options)
    assert hu == expected
    assert set(notes) == set(codes.split())


@pytest.mark.parametrize("intercept", [1, -99])
def test_unwrapping_is_the_published_rule(intercept):
    stored = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    published = stored.astype(int) + 1000
    published[published >= 4096] -= 4096
    hu, _ = to_hu(stored, slope=1, intercept=intercept, bits_stored=12, signed=False, padding=None)
    np.testing.assert_array_equal(hu, published - 1000)


def refused(function, values, **options):
    with pytest.raises(NoHounsfieldError) as error:
        function(values, **options)
    return error.value.code


def test_one_percent_of_high_values_is_wrapped_air():
    values = np.full((20, 20), 40)
    values[0, 1:5] = 3500  # 4 of 400 values
    hu, notes = twelve_bit(values)
    assert hu[0][:6] == [40, -596, -596, -596, -596, 40]
    assert set(notes) == {Code.INTERCEPT_12_BIT}
    for no_wrapped_air in (40, 3095, 4096):
        values[0, 4] = no_wrapped_air
        assert refused(twelve_bit, values) == Code.NO_HU_SCALE


def test_overlay_covers_at_most_five_percent():
    # 0x1428 is 1064 with an overlay bit; the two pixels of padding are not among the 40 values.
    values = np.full((6, 7), 1100)
    values[:2, 0] = 30768
    values[2, :2] = 0x1428
    hu, _ = twelve_bit(values, intercept=-1024)
    assert (hu[0][0], hu[2][0], hu[2][2]) == (-1024, 40, 76)
    values[2, 2] = 0x1428
    assert refused(twelve_bit, values, intercept=-1024) == Code.NO_HU_SCALE


def test_equal_pixels_are_refused():
    assert refused(convert, [[7, 7], [7, 7]]) == Code.FLAT
    assert refused(convert, [[-2000, -3000], [-1500, -2000]]) == Code.FLAT
    water = [[1024, 0, 1024], [0, 0, 0], [1024, 0, 1024]]  # air with a rim of water
    assert refused(convert, water, padding=(1024, 1024)) == Code.FLAT


def test_lowest_value_and_partial_volume_are_no_air():
    found = [has_air(np.array([[hu, 40]], dtype=np.int16)) for hu in (-1024, -500, -1023, -501)]
    assert found == [False, False, True, True]


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


def test_all_rules_pixel_by_pixel():
    outcomes = set()
    for seed in range(400):
        stored, header = draw(seed)
        expected, counts, is_image = by_hand(stored, **header)
        air = ((expected > -1024) & (expected < -500)).any()
        refusal = Code.FLAT if np.ptp(expected) == 0 else Code.NO_HU_SCALE
        if is_image:
            with pytest.raises(NoHounsfieldError, match="values use bits above") as error:
                to_hu(stored, **header)
            assert error.value.code == Code.NO_HU_SCALE
            outcomes.add("image in the upper bits")
            continue
        if refusal == Code.FLAT or (header["intercept"] > -100 and not air):
            assert refused(to_hu, stored, **header) == refusal, seed
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


def test_pixels_keep_their_places_in_any_memory_order():
    stored = np.arange(24, dtype=np.int16).reshape(4, 6) * 50
    expected = (stored - 1024).tolist()
    for view in (stored, np.asfortranarray(stored), np.repeat(stored, 2, axis=1)[:, ::2]):
        assert convert(view)[0] == expected
