"""Two gantry tilts in one series, and what is none."""

import random
from dataclasses import replace

import pytest

from ich_mil.ledger import Code
from ich_mil.study.files.header import SliceHeader
from tests.study.headers import codes, header, ordered, tilt_slab


def test_two_gantry_tilts_are_one_scan():
    headers = [*tilt_slab(range(0, 40, 4), 20, 0), *tilt_slab(range(44, 140, 8), 4, 10)]
    random.Random(2).shuffle(headers)
    series = ordered(headers)
    assert [h.instance_number for h in series.headers] == list(range(22))
    # The axis is the mean normal of 10 and 12 slices: 10 (sin 20, cos 20) + 12 (sin 4, cos 4), of length
    # sqrt((3.42020 + 0.83708)^2 + (9.39693 + 11.97077)^2) = 21.78768; its z is 21.36770 / 21.78768 = 0.98072.
    z = [*range(0, 40, 4), *range(44, 140, 8)]
    assert series.positions == pytest.approx([0.98072 * value for value in z], abs=1e-3)
    assert codes(series) == [Code.SPACING_CHANGES, Code.TILTED]
    assert "12 by 4.0, 10 by 20.0 degrees" in series.entries[1].detail


def test_least_second_tilt():
    headers = [*tilt_slab(range(-315, -300, 5), 30, 0), *tilt_slab(range(-300, -195, 5), 0, 10)]
    assert codes(ordered(headers)) == [Code.TILTED]
    aside = [replace(h, position=(-140.0, *h.position[1:])) for h in headers[3:]]
    assert codes(ordered([*headers[:3], *aside])) == [Code.TILTED]  # in which plane, is not said
    duplicate, tilt = ordered([*headers, *tilt_slab([-310], 30, 90)]).entries
    assert (duplicate.code, duplicate.file) == (Code.DUPLICATE, "s/-310-90.dcm")
    assert "21 by 0.0, 3 by 30.0 degrees" in tilt.detail


def test_third_tilt_over_the_second_is_refused():
    headers = [*tilt_slab(range(0, 120, 5), 0, 0), *tilt_slab(range(-80, 0, 5), 15, 100)]
    again = tilt_slab(range(-60, 0, 5), 20, 200)
    series = ordered([*headers, *again])
    assert {h.instance_number for h in series.headers} == {h.instance_number for h in headers}
    assert codes(series).count(Code.OTHER_ORIENTATION) == len(again)


def test_crossing_tilts_are_ordered_by_centres():
    crossing = [z + 2.5 for z in range(25, 125, 5)]
    series = ordered([*tilt_slab(range(0, 40, 5), 15, 0), *tilt_slab(crossing, 0, 100)])
    assert [h.instance_number for h in series.headers[4:12]] == [4, 5, 100, 6, 101, 7, 102, 103]
    assert (len(series.headers), codes(series)[-1]) == (28, Code.TILTED)


def along_z(zs, orientation: tuple[float, ...]) -> list[SliceHeader]:
    """Slices of any orientation with their first pixel at (0, 0, z)."""
    return [header(z, number=90 + z, position=(0.0, 0.0, z), orientation=orientation) for z in zs]


@pytest.mark.parametrize(
    ("other", "below"),
    [
        (tilt_slab([-10, -5], 15, 90), 2),  # two slices are no slab
        (tilt_slab(range(-30, 70, 5), 15, 90), 6),  # two thirds are the same part of the head again
        (tilt_slab(range(-15, 135, 7), 15, 90), 0),  # a reformat of the whole: it reaches further
        (tilt_slab([-40, -30, -20, -10, 0, 50, 100, 115], 15, 90), 4),  # half of it is beyond the head
        (tilt_slab(range(-80, 0, 5), 40, 90), 0),  # no gantry turns so far
        (along_z(range(-80, 0, 5), (0.96, 0.28, 0.0, -0.28, 0.96, 0.0)), 16),  # turned in the plane
        (along_z(range(-120, -40, 5), (0.96, 0.0, 0.28, 0.0, 1.0, 0.0)), 16),  # the head to one side
        (along_z(range(-120, -40, 5), (1.0, 0.0, 0.0, 0.0, 0.0, -1.0)), 0),  # coronal
    ],
)
def test_what_is_no_second_tilt_is_refused(other, below):
    """Beyond the others it is a part of the head that is not seen."""
    series = ordered([*tilt_slab(range(0, 120, 5), 0, 0), *other])
    assert series.positions == tuple(range(0, 120, 5))
    assert codes(series) == [Code.OTHER_ORIENTATION] * len(other) + [Code.GAP] * bool(below)
    if below:
        gap = series.entries[-1]
        assert (gap.file, gap.detail.split()[0]) == (series.headers[0].path, f"{below}")
