"""Counts and look-ups of stored values against a pass over the pixels."""

import numpy as np
import pytest

from ich_mil.dicom.pixels.stored_values import StoredValues

PIXELS = np.random.default_rng(0).integers(-3, 4, (8, 16)).astype(np.int16)
LEFT_OUT = 1


@pytest.fixture
def values():
    found = StoredValues(PIXELS)
    found.leave_out(LEFT_OUT, 2)
    return found


@pytest.mark.parametrize("first", range(-4, 6))
@pytest.mark.parametrize("last", range(-5, 6))
def test_counts_of_a_range_without_the_pixels_that_are_left_out(values, first, last):
    at = values.places_of(first, last)
    expected = np.count_nonzero((first <= PIXELS) & (last >= PIXELS)) - 2 * (first <= LEFT_OUT <= last)
    assert values.count(at.start, at.stop) == expected


@pytest.mark.parametrize("chosen", [(), (LEFT_OUT,), (0, 1), (-3, 1, 3), (-2, 2)])
def test_counts_of_single_values(values, chosen):
    expected = np.count_nonzero(np.isin(PIXELS, chosen)) - 2 * (LEFT_OUT in chosen)
    assert values.count_where(np.isin(values.values, chosen)) == expected
