"""Padding that becomes air, and what is left as it is."""

import numpy as np
import pytest

from ich_mil.ledger import Code
from tests.dicom.pixels.test_hounsfield import convert, twelve_bit


@pytest.mark.parametrize("value", [-2000, -3024, 32767])
def test_a_value_in_all_corners_that_no_background_can_have_is_padding(value):
    hu, notes = convert([[value, 24, value], [1064, value, 1100], [value, 30, value]])
    assert hu == [[-1024, -1000, -1024], [40, -1024, 76], [-1024, -994, -1024]]
    assert notes == {Code.PADDING: f"5 pixels of stored value {value} (all four corners) set to -1024 HU"}


def test_the_corner_of_signed_twelve_bits_is_padding_from_the_first_value_that_is_no_lost_sign():
    # 0x0800 is -2048 without its sign; the twelve stored bits of 0x1000 are 0, a rim of water
    for value, code in ((0x1000, Code.PADDING), (0x0FFF, Code.UNUSED_BITS), (0x0800, Code.UNUSED_BITS)):
        values = np.full((8, 8), -990)
        values[[0, 0, -1, -1], [0, -1, 0, -1]] = value
        hu, notes = convert(values, intercept=0, bits_stored=12)
        assert hu[0][0] == (-1 if value == 0x0FFF else -1024)
        assert code in notes
        assert {Code.PADDING, Code.UNUSED_BITS} - {code} - notes.keys()


def test_padding_30768_is_air_though_twelve_bits_cannot_hold_it():
    hu, notes = twelve_bit([[24, 30768], [1064, 1100]], intercept=-1024)
    assert hu == [[-1000, -1024], [40, 76]]
    assert set(notes) == {Code.PADDING}


def test_padding_minus_2000_read_as_unsigned_is_air_though_not_in_every_corner():
    for bits_stored in (12, 16):
        hu, notes = twelve_bit([[63536, 24], [1064, 63536]], intercept=-1024, bits_stored=bits_stored)
        assert hu == [[-1024, -1000], [40, -1024]]
        detail = "2 pixels of stored value 63536 (padding -2000 read as unsigned) set to -1024 HU"
        assert notes == {Code.PADDING: detail}


def test_a_rim_is_not_counted_among_values_that_use_unused_bits():
    values = np.full((6, 8), -995)
    values[2:4, 2:6] = 40
    values[[0, 0, -1, -1], [0, -1, 0, -1]] = 0  # the rim
    values[1, 3], values[4, 3] = 5160, -5000  # 1064 and -904 in 12 bits
    hu, notes = convert(values, intercept=0, bits_stored=12, padding=(0, 0))
    assert (hu[0][0], hu[1][3], hu[4][3]) == (-1024, 1064, -904)
    assert notes[Code.UNUSED_BITS] == "2 values used bits above the 12 stored ones"


def test_declared_padding_that_is_tissue_is_air_as_far_as_it_is_joined_to_the_corners():
    # As with PixelPaddingValue 0 where values are HU: the 0 within the head is tissue.
    stored = [[0, 0, -990, 0, 0], [0, -980, 40, -995, 0], [-998, 35, 0, 30, -999], [0, -990, 37, -997, 0]]
    hu, notes = convert(stored, intercept=0, padding=(0, 0))
    assert hu == [
        [-1024, -1024, -990, -1024, -1024],
        [-1024, -980, 40, -995, -1024],
        [-998, 35, 0, 30, -999],
        [-1024, -990, 37, -997, -1024],
    ]
    detail = "8 pixels of stored value 0 (PixelPaddingValue and all four corners) set to -1024 HU"
    assert notes[Code.PADDING] == detail
    assert set(notes) == {Code.PADDING, Code.ALREADY_HU}


def test_declared_padding_is_air_from_the_first_hu_that_shows():
    hu, notes = convert(
        [[-899, -990, -899], [-980, 40, -995], [-899, -998, -899]], padding=(-899, -899), intercept=0
    )
    assert hu == [[-1024, -990, -1024], [-980, 40, -995], [-1024, -998, -1024]]
    assert set(notes) == {Code.PADDING, Code.ALREADY_HU}


@pytest.mark.parametrize(
    ("corner", "last", "padding"),
    [
        (0, 5, (0, 0)),
        (0, 0, (5, 5)),
        (0, 0, None),
        (-900, -900, (-900, -900)),
        (-1024, -1024, (-1024, -1024)),
    ],
    ids=["another corner", "another value", "not declared", "like air", "air"],
)
def test_declared_padding_is_left_where_a_corner_differs_or_it_is_air(corner, last, padding):
    values = [[corner, -990, corner], [-980, 40, -995], [corner, -998, last]]
    hu, notes = convert(values, intercept=0, padding=padding)
    assert hu == values
    assert set(notes) == {Code.ALREADY_HU}


def test_declared_padding_of_wrapped_values_is_not_counted_as_unwrapped():
    # 4095 is -1 HU; the one in the middle is not joined to a corner
    values = np.full((8, 8), 40)
    values[[0, 0, -1, -1], [0, -1, 0, -1]] = values[3, 3] = 4095
    values[2, 2] = 3100
    hu, notes = twelve_bit(values, padding=(4095, 4095))
    assert (hu[0][0], hu[3][3], hu[2][2], hu[1][1]) == (-1024, -1, -996, 40)
    assert notes[Code.PADDING].startswith("4 pixels of stored value 4095")
    assert notes[Code.INTERCEPT_12_BIT].endswith("2 of 64 values from 3096 up lowered by 4096")


def test_declared_padding_is_not_counted_though_an_overlay_lies_on_a_wrapped_value():
    values = np.full((8, 8), 40)
    values[[0, 0, -1, -1], [0, -1, 0, -1]] = 4095
    values[2, 2], values[5, 5] = 3100, 0x1000 | 3200
    hu, notes = twelve_bit(values, padding=(4095, 4095))
    assert (hu[0][0], hu[2][2], hu[5][5]) == (-1024, -996, -896)
    assert notes[Code.UNUSED_BITS] == "1 values used bits above the 12 stored ones"
    assert notes[Code.INTERCEPT_12_BIT].endswith("2 of 64 values from 3096 up lowered by 4096")


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
    hu, notes = twelve_bit([[5000, 3096], [40, 3100]], padding=(5000, 5000))  # 5000 mod 4096 would be 904 HU
    assert hu == [[-1024, -1000], [40, -996]]
    assert notes[Code.PADDING] == "1 pixels of stored value 5000 (PixelPaddingValue) set to -1024 HU"


def test_padding_that_could_be_tissue_is_left():
    hu, notes = convert([[1024, 24], [1064, 1024]], padding=(1024, 1024))
    assert hu == [[0, -1000], [40, 0]]
    assert notes == {}


def test_padding_range_is_air_from_end_to_end():
    values = [[-2000, 24, -1700], [1064, -1500, 1100], [-1501, 30, 22]]
    hu, notes = convert(values, padding=(-2000, -1501))
    assert hu == [[-1024, -1000, -1024], [40, -1024, 76], [-1024, -994, -1002]]
    assert notes == {
        Code.PADDING: "3 pixels of stored values -2000 to -1501 (PixelPaddingValue and its RangeLimit) "
        "set to -1024 HU",
        Code.HU_CLIPPED: "1 pixels raised to -1024 HU, 0 lowered to 3095 HU",  # -1500 is outside the range
    }


def test_padding_range_above_tissue_is_air_and_the_corners_in_it_are_counted_once():
    values = [[4000, 24, 4000], [1064, 3999, 1100], [4000, 30, 4000]]
    hu, notes = convert(values, padding=(3000, 4000))
    assert hu == [[-1024, -1000, -1024], [40, -1024, 76], [-1024, -994, -1024]]
    assert set(notes) == {Code.PADDING}
    assert notes[Code.PADDING].startswith("5 pixels of stored values 3000 to 4000")


@pytest.mark.parametrize("padding", [(-2000, 1024), (1064, 9000), (2024, 9000)])
def test_padding_range_that_reaches_into_tissue_is_left(padding):
    # 2024 is 1000 HU, the densest background
    hu, notes = convert([[24, 1024], [3024, 2024]], padding=padding)
    assert hu == [[-1000, 0], [2000, 1000]]
    assert notes == {}


def test_padding_that_is_known_otherwise_is_air_though_the_range_is_left():
    unsigned = {"dtype": np.uint16, "signed": False, "padding": (1024, 40000)}
    hu, notes = convert([[5000, 24, 5000], [1064, 30768, 1100], [5000, 30, 5000]], **unsigned)
    assert hu == [[-1024, -1000, -1024], [40, -1024, 76], [-1024, -994, -1024]]
    assert set(notes) == {Code.PADDING}


def test_padding_range_from_the_first_value_that_is_no_background():
    assert convert([[24, 1024], [3024, 2025]], padding=(2025, 9000))[0] == [[-1000, 0], [-1024, -1024]]


def test_padding_range_of_wrapped_values_is_judged_by_their_hu():
    values = np.full((5, 5), 40)
    values[0, :3] = 5000, 3096, 4095
    hu, notes = twelve_bit(values, padding=(4096, 6000))
    assert hu[0] == [-1024, -1000, -1, 40, 40]
    assert notes[Code.PADDING].startswith("1 pixels of stored values 4096 to 6000")
    _, notes = twelve_bit(values, padding=(4095, 6000))  # 4095 is -1 HU
    assert Code.PADDING not in notes


def test_uniform_corners_of_tissue_are_left():
    assert convert([[1064, 24, 1064], [24, 24, 24], [1064, 24, 1064]])[0][0] == [40, -1000, 40]
