"""Which steps are alike, and where a slice is missing."""

import pytest

from ich_mil.dicom.geometry.spacing import alike, runs_of
from ich_mil.ledger import Code
from tests.dicom.headers import codes, header, ordered, stack


@pytest.mark.parametrize(
    ("positions", "after"),
    [
        ([0, 5, 10, 15, 25, 30, 35, 40], [15]),
        ([0, 5, 10, 15, 25, 35, 40, 45, 50], [15, 25]),
        ([0, 5, 10, 15, 25], [15]),
        ([0, 10, 15, 20, 25], [0]),
        ([0, 5, 15], []),  # two steps do not say which one is regular
        ([0, 5, 10, 20], [10]),
        ([0, 7, 14, 21, 25, 29, 33, 40, 44, 48, 52], [33]),  # slabs of 7 and 4 mm, the nearest counts
        ([0, 4, 8, 12, 19, 23, 27, 31, 38, 45, 52], [12]),
        ([0, 7, 14, 21, 30, 34, 38, 42, 46, 50], []),
        ([0, 5, 10, 15, 22, 29, 36], []),  # slabs of 5 and 7 mm
        ([0, 4, 8, 12, 21, 28, 35, 42], []),  # 9 mm is not 1.5 times the 7 mm beside it
        ([0, 4, 8, 12, 23, 30, 37, 44], [12]),
        ([0, 3, 6, 9, 12, 15, 18, 21, 25.5, 31.5, 37.5, 43.5], []),  # slabs of 3 and 6 mm
        ([0, 3, 6, 9, 12, 18, 21, 25.5, 31.5, 37.5, 43.5], [12]),  # one step is left behind what is lost
        ([0, 3, 6, 9, 15, 18, 21, 25.5, 31.5, 37.5, 43.5], [9]),
        ([0, 3, 6, 9, 15, 18, 24, 27, 31.5, 37.5, 43.5, 49.5], [9, 18]),
        ([0, 6, 12, 18, 22.5, 25.5, 31.5, 34.5, 37.5, 40.5], [25.5]),
        ([0, 3, 6, 9, 12, 15, 18, 25.5, 31.5, 37.5, 43.5], []),  # 7.5 mm between the slabs may be as it was
        ([0, 0.6, 1.3, 1.9, 2.5, 3.1, 3.8], []),  # 0.625 mm, rounded
    ],
)
def test_gaps(positions, after):
    series = ordered(stack(positions))
    gaps = [entry for entry in series.entries if entry.code == Code.GAP]
    assert [entry.file for entry in gaps] == [f"s/{z}-{positions.index(z)}.dcm" for z in after]


def test_thick_slices_that_meet_leave_no_gap():
    thickness = [4, 4, 4, 4, 7, 7]
    positions = [0, 4, 8, 12, 18.4, 25.4]
    series = ordered([header(z, thickness=t) for z, t in zip(positions, thickness, strict=True)])
    assert codes(series) == [Code.SPACING_CHANGES]
    # 8 mm are more than the 5.5 mm from the middle of one slice to that of the next, and a fifth
    positions = [0, 4, 8, 12, 20, 27]
    series = ordered([header(z, thickness=t) for z, t in zip(positions, thickness, strict=True)])
    assert [e.file for e in series.entries if e.code == Code.GAP] == ["s/12-None.dcm"]


@pytest.mark.parametrize(
    ("positions", "thickness", "told"),
    [
        (
            range(0, 100, 10),
            5.0,
            "9 steps of up to 10.00 mm between slices 5 mm thick",
        ),  # every second is gone
        ([*range(0, 50, 5), *range(50, 100, 10)], 5.0, "4 steps of up to 10.00 mm between slices 5 mm thick"),
        (range(0, 100, 5), 3.0, "19 steps of up to 5.00 mm between slices 3 mm thick"),
        (range(0, 100, 7), 5.0, ""),
        (range(0, 100, 10), None, ""),  # it may be their thickness
    ],
)
def test_regular_spaces_between_thin_slices_are_not_seen(positions, thickness, told):
    series = ordered(stack(positions, thickness=thickness))
    found = [entry.detail for entry in series.entries if entry.code == Code.GAP]
    assert found == ([f"{told}: what lies between is not seen"] if told else [])


def test_steps_that_differ_by_rounding_or_a_tenth_of_the_shorter_are_alike():
    assert alike(0.6, 0.75)  # 0.1 + 0.06
    assert not alike(0.6, 0.77)
    assert alike(5.0, 5.59)  # 0.1 + 0.5
    assert not alike(5.0, 5.63)
    assert not alike(5.63, 5.0)


def test_a_run_of_steps_is_alike_to_its_median():
    assert runs_of([5.0, 5.5, 5.5, 6.0]) == [(5.5, [0, 1, 2, 3])]
    assert runs_of([5.0, 5.5, 6.0, 6.5]) == [(5.25, [0, 1]), (6.25, [2, 3])]
