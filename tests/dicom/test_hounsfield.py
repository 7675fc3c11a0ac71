"""Hand-computed HU, and the conditions under which a repair must not fire."""

import numpy as np
import pytest

from ich_mil.dicom.hounsfield import to_hu
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


def test_wrapped_twelve_bit_values_are_unwrapped():
    hu, notes = twelve_bit([[3096, 4095, 0], [40, 1000, 3095], [3100, 3500, 80]])
    assert hu == [[-1000, -1, 0], [40, 1000, 3095], [-996, -596, 80]]
    assert notes[Code.INTERCEPT_12_BIT].endswith("4 of 9 values from 3096 up lowered by 4096")


def test_unwrapping_is_the_published_rule_for_every_twelve_bit_value():
    stored = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    published = stored.astype(int) + 1000
    published[published >= 4096] -= 4096
    hu, _ = to_hu(stored, slope=1, intercept=1, bits_stored=12, signed=False, padding=None)
    np.testing.assert_array_equal(hu, published - 1000)


@pytest.mark.parametrize(
    "changed",
    [
        {"signed": True, "dtype": np.int16, "bits_stored": 16},
        {"bits_stored": 16},
        {"intercept": -1024.0},
        {"intercept": -100.0},
        {"slope": 2.0},
    ],
    ids=["signed", "16-bit", "intercept -1024", "intercept -100", "slope 2"],
)
def test_unwrapping_needs_every_condition(changed):
    _, notes = twelve_bit([[3096, 4095], [40, 3500]], **changed)
    assert Code.INTERCEPT_12_BIT not in notes


def test_a_little_metal_is_not_wrapped_air():
    values = np.full((20, 20), 40)
    values[0, 1:4] = 3500  # 3 of 400 values: less than 1 %
    hu, notes = twelve_bit(values)
    assert hu[0][1] == 3095
    assert set(notes) == {Code.HU_CLIPPED}


def test_signed_values_with_intercept_zero_are_hu_already():
    # As in a real GE head scan: signed 16 bit, intercept 0, padding -1500.
    hu, notes = convert(
        [[-1500, -995, -1500], [-990, 35, 1200], [-1500, -998, -1500]], intercept=0, padding=-1500
    )
    assert hu == [[-1024, -995, -1024], [-990, 35, 1200], [-1024, -998, -1024]]
    assert set(notes) == {Code.PADDING, Code.ALREADY_HU}
    assert notes[Code.PADDING] == "4 pixels of stored value -1500 (PixelPaddingValue) set to -1024 HU"


@pytest.mark.parametrize("value", [-2000, -3024, 32767])
def test_a_value_in_all_corners_that_no_background_can_have_is_padding(value):
    hu, notes = convert([[value, 24, value], [1064, value, 1100], [value, 30, value]])
    assert hu == [[-1024, -1000, -1024], [40, -1024, 76], [-1024, -994, -1024]]
    assert notes == {Code.PADDING: f"5 pixels of stored value {value} (all four corners) set to -1024 HU"}


def test_padding_30768_is_air_though_twelve_bits_cannot_hold_it():
    hu, notes = twelve_bit([[24, 30768], [1064, 1100]], intercept=-1024)
    assert hu == [[-1000, -1024], [40, 76]]
    assert set(notes) == {Code.PADDING}


def test_padding_2096_of_wrapped_values_is_air():
    # -2000 in twelve bits is 2096: without the corner rule a ring of dense bone.
    hu, notes = twelve_bit([[2096, 3096, 2096], [40, 60, 3100], [2096, 3200, 2096]])
    assert hu == [[-1024, -1000, -1024], [40, 60, -996], [-1024, -896, -1024]]
    assert set(notes) == {Code.PADDING, Code.INTERCEPT_12_BIT}


def test_wrapped_air_in_the_corners_is_no_padding():
    hu, notes = twelve_bit([[3096, 40, 3096], [40, 60, 40], [3096, 40, 3096]])
    assert hu == [[-1000, 40, -1000], [40, 60, 40], [-1000, 40, -1000]]
    assert set(notes) == {Code.INTERCEPT_12_BIT}


def test_padding_beyond_twelve_bits_is_not_wrapped():
    hu, notes = twelve_bit([[5000, 3096], [40, 3100]], padding=5000)  # 5000 mod 4096 would be 904 HU
    assert hu == [[-1024, -1000], [40, -996]]
    assert notes[Code.PADDING] == "1 pixels of stored value 5000 (PixelPaddingValue) set to -1024 HU"


def test_padding_that_could_be_tissue_is_left():
    hu, notes = convert([[1024, 24], [1064, 1024]], padding=1024)
    assert hu == [[0, -1000], [40, 0]]
    assert notes == {}


def test_uniform_corners_of_tissue_are_left():
    assert convert([[1064, 24, 1064], [24, 24, 24], [1064, 24, 1064]])[0][0] == [40, -1000, 40]


def test_unused_bits_are_dropped_and_sign_extended():
    # 0x1428 is 1064 with an overlay bit; 0x0C18 is -1000 in twelve bits without sign extension.
    hu, notes = twelve_bit([[0x1428, 24], [1024, 1100]], intercept=-1024)
    assert hu == [[40, -1000], [0, 76]]
    assert notes == {Code.UNUSED_BITS: "1 values used bits above the 12 stored ones"}
    hu, notes = convert([[0x0C18, 40], [0, 76]], intercept=0, bits_stored=12)
    assert hu == [[-1000, 40], [0, 76]]
    assert set(notes) == {Code.UNUSED_BITS, Code.ALREADY_HU}


@pytest.mark.parametrize("slope", [0.0, float("nan"), float("inf")])
def test_impossible_slope_raises(slope):
    with pytest.raises(ValueError, match="RescaleSlope must be finite and not 0"):
        convert([[1, 2]], slope=slope)


@pytest.mark.parametrize("shape", [(0, 4), (4,), (2, 4, 4)])
def test_impossible_shape_raises(shape):
    with pytest.raises(ValueError, match="non-empty"):
        convert(np.zeros(shape))


def test_input_is_not_changed():
    stored = np.array([[-2000, 24], [1064, -2000]], dtype=np.int16)
    to_hu(stored, slope=1, intercept=-1024, bits_stored=16, signed=True, padding=-2000)
    assert stored.tolist() == [[-2000, 24], [1064, -2000]]
