"""What the ledger tells of a series whose slices all take part, or lie beyond or between them."""

from dataclasses import replace

import pytest

from ich_mil.ledger import Code
from ich_mil.study.series import average_groups
from tests.study.headers import PIXELS, codes, ordered, stack, tilted


@pytest.mark.parametrize(
    ("spacing", "noted"), [((0.45, 0.9), True), ((0.5, 0.506), True), ((0.488281, 0.488), False)]
)
def test_pixels_that_are_not_square_are_noted(spacing, noted):
    assert codes(ordered(stack([0, 5, 10], spacing=spacing))) == [Code.PIXELS_NOT_SQUARE] * noted


def test_a_slice_of_another_rescale_is_noted():
    """Of 30 alike, one of which is off by 100 HU; not where each has its own, as in PET, or halves differ."""
    slices = stack(range(0, 150, 5))
    assert codes(ordered(slices)) == []
    slices[-1] = replace(slices[-1], pixels=replace(PIXELS, intercept=-1124.0))
    (entry,) = ordered(slices).entries
    assert (entry.code, entry.file) == (Code.OTHER_RESCALE, slices[-1].path)
    assert all(part in entry.detail for part in ("intercept -1124 HU", "29 slices"))
    each = [replace(one, pixels=replace(PIXELS, slope=1 + i / 8)) for i, one in enumerate(slices)]
    halves = [replace(one, pixels=replace(PIXELS, slope=1 + i // 15)) for i, one in enumerate(slices)]
    assert codes(ordered(each)) == codes(ordered(halves)) == []


def test_moving_picture_centre():
    lower = stack(range(0, 13))
    # 6 and 8 mm aside: 10 mm
    upper = [replace(h, position=(-119.0, -117.0, h.position[2])) for h in stack(range(13, 40))]
    series = ordered([*lower, *upper])
    (entry,) = series.entries
    assert (entry.code, entry.file) == (Code.CENTRE_MOVES, "")
    assert "moves in the plane 1 times, by up to 10.0 mm, first after s/12-12.dcm" in entry.detail
    assert [len(group) for group in average_groups(series)] == [5, 4, 4, 6, 6, 5, 5, 5]
    near = [replace(h, position=(-122.0, -122.0, h.position[2])) for h in upper]  # 4.2 mm
    assert ordered([*lower, *near]).entries == ()
    drift = ordered(tilted(k, 25) for k in range(30) if not 10 < k < 16)
    assert codes(drift) == [Code.GAP, Code.TILTED]  # 30 mm of couch are 12.7 mm in the plane, and no move


@pytest.mark.parametrize(
    ("orientation", "words"),
    [
        ((-1.0, 0.0, 0.0, 0.0, 1.0, 0.0), "rows run from left to right"),
        ((1.0, 0.0, 0.0, 0.0, -1.0, 0.0), "columns run from back to front"),
        ((-1.0, 0.0, 0.0, 0.0, -1.0, 0.0), "rows run from left to right, columns run from back to front"),
        ((0.0, 1.0, 0.0, -1.0, 0.0, 0.0), "rows run from front to back, columns run from left to right"),
    ],
)
def test_flipped_pictures_are_noted(orientation, words):
    (entry,) = ordered(stack([0, 5, 10], orientation=orientation)).entries
    assert (entry.code, entry.file) == (Code.FLIPPED, "")
    assert words in entry.detail


def test_a_turned_head_is_not_flipped():
    turned = (0.8, 0.6, 0.0, -0.6, 0.8, 0.0)  # 37 degrees
    assert ordered(stack([0, 5, 10], orientation=turned)).entries == ()
    to_one_side = (0.96, 0.0, 0.28, 0.0, 1.0, 0.0)
    assert codes(ordered(stack([0, 5, 10], orientation=to_one_side))) == [Code.TILTED]


def test_gap_and_spacing_change_say_the_numbers():
    (gap,) = ordered(stack([0, 5, 10, 15, 25, 30, 35, 40])).entries
    assert gap.detail == "10.00 mm between this slice and s/25-4.dcm, 5.00 mm is regular"
    (change,) = ordered(stack([0, 4, 8, 12, 19, 26, 33])).entries
    assert change.code == Code.SPACING_CHANGES
    assert change.detail.endswith(" 3 x 4.00, 3 x 7.00")


@pytest.mark.parametrize("changes", [{"rows": 500}, {"spacing": (0.6, 0.6)}])
def test_unlike_slices_beyond_leave_scans_incomplete(changes):
    """Where the others are they do not: another field of view of the same head, say."""
    kept = stack([5.0 * i for i in range(20)])
    above = stack([100.0, 105.0], **changes)
    (gap,) = [entry for entry in ordered([*kept, *above]).entries if entry.code == Code.GAP]
    assert (gap.file, gap.detail.startswith("0 slices below this one, 0 between")) == (kept[0].path, True)
    assert f"2 above {kept[-1].path}" in gap.detail
    within = [replace(header, path=f"w/{header.path}") for header in stack([10.0, 15.0], **changes)]
    assert Code.GAP not in codes(ordered([*kept, *within]))


@pytest.mark.parametrize(
    ("thickness", "up", "between"),
    [
        (None, 1.9, 11),
        (None, 1.7, 0),  # the same places
        (8.0, 3.5, 0),  # nothing lies between slices so thick
    ],
)
def test_unlike_slices_between_leave_scans_incomplete(thickness, up, between):
    """Every second slice is another: the steps of those used are regular."""
    kept = stack([7.0 * i for i in range(12)], thickness=thickness)
    other = stack([7.0 * i + up for i in range(11)], thickness=thickness, rows=500)
    found = [entry for entry in ordered([*kept, *other]).entries if entry.code == Code.GAP]
    told = f"0 slices below this one, {between} between those used and 0 above {kept[-1].path} are not used"
    assert [(gap.file, gap.detail) for gap in found] == [(kept[0].path, told)] * bool(between)
