"""Gaps between slices, and sides of the patient at the edges of a picture."""

import math

import pytest

from ich_mil.ledger import Code
from ich_mil.study.geometry.planes import Edges, edges_of
from tests.study.headers import ordered, stack

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
        ((1, 0, 0, 0, 0, -1), "RLHF"),  # coronal
        ((0, 1, 0, 0, 0, -1), "APHF"),  # sagittal
    ],
)
def test_letters_by_hand(orientation, expected):
    """Left, right, top, bottom (PS3.3 C.7.6.1.1.1; axes are LPS)."""
    assert edges_of(orientation) == Edges(*expected)


@pytest.mark.parametrize("orientation", [(), (0, 0, 0, 0, 1, 0), (1, 0, 0, 0, math.nan, 0)])
def test_no_orientation_has_no_letters(orientation):
    assert edges_of(orientation) is None


@pytest.mark.parametrize(
    ("positions", "after"),
    [
        ([0, 5, 10, 15, 25, 30, 35, 40], [15]),
        ([0, 5, 10, 15, 25, 35, 40, 45, 50], [15, 25]),
        ([0, 10, 15, 20, 25], [0]),
        ([0, 3, 8], []),  # two steps do not say which one is regular
        ([0, 7, 14, 21, 25, 29, 33, 40, 44, 48, 52], [33]),  # slabs of 7 and 4 mm, the nearest counts
        ([0, 5, 10, 15, 22, 29, 36], []),  # slabs of 5 and 7 mm
        ([0, 3, 6, 9, 16.5, 22, 27.5, 33], []),  # 7.5 mm is not 1.5 times the 5.5 mm beside it
        ([0, 4, 8, 12, 23, 30, 37, 44], [12]),
        ([0, 3, 6, 9, 12, 15, 18, 21, 25.5, 31.5, 37.5, 43.5], []),  # slabs of 3 and 6 mm
        ([0, 3, 6, 9, 12, 18, 21, 25.5, 31.5, 37.5, 43.5], [12]),  # one step is left behind what is lost
        ([0, 3, 6, 9, 15, 18, 24, 27, 31.5, 37.5, 43.5, 49.5], [9, 18]),
        ([0, 3, 6, 9, 12, 15, 18, 25.5, 31.5, 37.5, 43.5], []),  # 7.5 mm between the slabs may be as it was
        ([0, 0.6, 1.3, 1.9, 2.5, 3.1, 3.8], []),  # 0.625 mm, rounded
    ],
)
def test_gaps(positions, after):
    series = ordered(stack(positions))
    gaps = [entry for entry in series.entries if entry.code == Code.GAP]
    assert [entry.file for entry in gaps] == [f"s/{z}-{positions.index(z)}.dcm" for z in after]


@pytest.mark.parametrize(
    ("positions", "thickness", "detail"),
    [
        (range(0, 100, 10), 5.0, "9 steps of up to 10.00 mm between slices 5 mm thick"),
        ([*range(0, 50, 5), *range(50, 100, 10)], 5.0, "4 steps of up to 10.00 mm between slices 5 mm thick"),
        (range(0, 100, 7), 5.0, None),
        (range(0, 100, 10), None, "9 steps of up to 10.00 mm between slices of unknown thickness"),
        (range(0, 100, 10), 10.0, None),
        (range(0, 100, 7), None, None),  # it may be their thickness
    ],
)
def test_spaces_between_slices(positions, thickness, detail):
    series = ordered(stack(positions, thickness=thickness))
    found = [entry.detail.partition(":")[0] for entry in series.entries if entry.code == Code.GAP]
    assert found == ([detail] if detail else [])
