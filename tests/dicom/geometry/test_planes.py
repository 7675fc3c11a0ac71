"""Sides of the patient at the edges of a picture."""

import math

import pytest

from ich_mil.dicom.geometry.planes import Edges, edges_of

TILT, TURN = math.radians(25), math.radians(40)


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        ((1, 0, 0, 0, 1, 0), "RLAP"),  # as is usual: the patient's left at the right of the picture
        ((-1, 0, 0, 0, 1, 0), "LRAP"),  # mirrored
        ((1, 0, 0, 0, -1, 0), "RLPA"),  # upside down
        ((-1, 0, 0, 0, -1, 0), "LRPA"),  # turned by half, or a patient who lay prone
        ((0, 1, 0, -1, 0, 0), "APLR"),  # turned by a quarter
        ((1, 0, 0, 0, math.cos(TILT), -math.sin(TILT)), "RLAP"),  # a tilted gantry
        ((math.cos(TURN), math.sin(TURN), 0, -math.sin(TURN), math.cos(TURN), 0), "RLAP"),  # a turned head
        ((-math.cos(TURN), math.sin(TURN), 0, math.sin(TURN), math.cos(TURN), 0), "LRAP"),  # and mirrored
        ((1, 0, 0, 0, 0, -1), "RLHF"),  # coronal
        ((0, 1, 0, 0, 0, -1), "APHF"),  # sagittal
        ([-1.0, -0.0, 1e-4, -0.0, 1.0, 1e-4], "LRAP"),
    ],
)
def test_letters_by_hand(orientation, expected):
    """Left, right, top, bottom (PS3.3 C.7.6.1.1.1; axes are LPS)."""
    assert edges_of(orientation) == Edges(*expected)


@pytest.mark.parametrize(
    "orientation",
    [(), (1, 0, 0), (1, 0, 0, 0, 1), (0, 0, 0, 0, 1, 0), (1, 0, 0, 0, 0, 0), (1, 0, 0, 0, math.nan, 0)],
)
def test_no_orientation_has_no_letters(orientation):
    assert edges_of(orientation) is None
