"""One scan under several series UIDs."""

import math
from dataclasses import replace

import pytest

from ich_mil.dicom.files.header import SliceHeader
from ich_mil.dicom.series import group_series
from ich_mil.ledger import Code
from tests.dicom.headers import codes, header, ordered, part, parts, stack, tilt_slab, tilted


def test_a_continuation_is_joined():
    upper, lower = part("b", *range(0, 80, 5)), part("a", *range(80, 150, 5))
    assert parts(upper, lower) == [
        ("a", 30, ["one scan under 2 series UIDs, continued: a (14 files), b (16 files)"])
    ]
    series = ordered([*upper, *lower])
    assert series.positions == tuple(range(0, 150, 5))
    assert codes(series) == [Code.SERIES_JOINED]
    assert (series.entries[0].scan, series.entries[0].file) == ("study", "")


@pytest.mark.parametrize(
    ("step", "joined"), [(0.5, True), (4.0, True), (7.5, True), (7.6, False), (12.0, False)]
)
def test_step_over_the_joint(step, joined):
    upper = [75 + step + 5 * i for i in range(14)]
    found = parts(part("a", *range(0, 80, 5)), part("b", *upper, thickness=5.0))
    assert [n for _, n, _ in found] == ([30] if joined else [16, 14])


def test_two_scans_of_two_parts_each():
    low = part("a", *range(0, 50, 5)), part("b", *range(50, 100, 5))
    # 8 mm are no gap where steps of 5.5 mm follow; thicknesses differ by rounding
    high = part("c", *range(200, 250, 5)), part("d", *(253 + 5.5 * k for k in range(10)), thickness=5.004)
    assert [(uid, n) for uid, n, _ in parts(*low, *high)] == [("a", 20), ("c", 20)]


def test_interleaved_parts_are_joined():
    found = parts(part("a", *range(0, 150, 10)), part("b", *range(5, 150, 10)))
    assert found == [("a", 30, ["one scan under 2 series UIDs, interleaved: a (15 files), b (15 files)"])]


def test_more_than_two_parts():
    thirds = [part(uid, *range(start, 150, 15)) for uid, start in (("a", 0), ("b", 5), ("c", 10))]
    detail = "one scan under 3 series UIDs, interleaved: a (10 files), b (10 files), c (10 files)"
    assert parts(*thirds) == [("a", 30, [detail])]
    detail = "one scan under 4 series UIDs, continued: a (10 files), b (5 files), c (5 files), d (10 files)"
    chain = [part("d", *range(0, 50, 5)), part("b", *range(50, 100, 10)), part("c", *range(55, 100, 10))]
    assert parts(*chain, part("a", *range(100, 150, 5))) == [("a", 30, [detail])]


def test_one_part_in_the_spaces_of_another_that_goes_on():
    found = parts(part("a", *range(0, 150, 10)), part("b", 5, 15, 25), part("c", *range(35, 140, 10)))
    assert [(uid, n) for uid, n, _ in found] == [("a", 29)]


@pytest.mark.parametrize("change", [{"rows": 256}, {"columns": 256}, {"spacing": (0.4, 0.4)}])
def test_a_part_of_another_shape_does_not_keep_the_others_apart(change):
    other = part("c", *range(100, 150, 5), **change)
    found = parts(part("a", *range(0, 50, 5)), part("b", *range(50, 100, 5)), other)
    assert [(uid, n) for uid, n, _ in found] == [("a", 20), ("c", 10)]


def test_a_series_of_two_tilts_is_not_joined():
    base, top = tilt_slab(range(0, 60, 5), 0, 0), tilt_slab(range(60, 120, 5), 15, 50)
    found = parts([*base, *top], tilt_slab(range(-75, 0, 5), 0, 90, series_uid="a"))
    assert [(uid, n) for uid, n, _ in found] == [("a", 15), ("series", 24)]


def test_series_whose_own_slices_differ_are_not_joined():
    names = ("a", *range(0, 75, 5)), ("b", *range(75, 150, 5))
    mixed = [[replace(h, body_part="HEAD"[: i % 2]) for i, h in enumerate(part(*name))] for name in names]
    assert [n for _, n, _ in parts(*mixed)] == [15, 15]


def test_sagittal_parts_are_joined():
    def side(uid: str, places) -> list[SliceHeader]:
        return [
            header(x, number=x, series_uid=uid, position=(x, 0.0, 0.0), orientation=(0, 1.0, 0, 0, 0, -1.0))
            for x in places
        ]

    found = parts(side("a", range(0, 75, 5)), side("b", range(75, 150, 5)))
    assert [(uid, n) for uid, n, _ in found] == [("a", 30)]


def test_a_series_uid_for_each_slice():
    found = parts(*(part(f"{z:03d}", z) for z in range(0, 60, 5)))
    assert [(uid, n) for uid, n, _ in found] == [("000", 12)]
    assert len(parts(*(part(f"{z:03d}", z, thickness=0.0) for z in range(0, 60, 5)))) == 12
    # 8 mm from slice to slice of 5 mm: nothing says that they belong together.
    assert len(parts(*(part(f"{z:03d}", z) for z in range(0, 80, 8)))) == 10


def test_a_single_slice_goes_on_at_the_step_of_the_series_whatever_its_thickness():
    found = parts(part("a", *range(0, 50, 5), thickness=3.0), part("b", 50, thickness=3.0))
    assert [(uid, n) for uid, n, _ in found] == [("a", 11)]


def test_entries_of_the_parts_are_kept():
    double = header(20, number=99, series_uid="a", thickness=5.0)
    odd = [*part("a", 3, rows=256), tilted(30, 3, series_uid="b", thickness=5.0)]
    series = ordered([*part("a", *range(0, 80, 5)), double, *odd, *part("b", *range(80, 150, 5))])
    assert [(e.code, e.file) for e in series.entries] == [
        (Code.OTHER_SHAPE, "s/3-0.dcm"),
        (Code.DUPLICATE, "s/20-99.dcm"),
        (Code.OTHER_ORIENTATION, "s/150-30.dcm"),
        (Code.SERIES_JOINED, ""),
    ]


SCAN = range(0, 150, 5)


@pytest.mark.parametrize(
    "other",
    [
        part("b", *SCAN),  # a repeat
        part(
            "b", *(z + 2.5 for z in SCAN)
        ),  # a repeat, moved by half a step: 5 mm slices 2.5 mm apart overlap
        part("b", *(z + 1.0 for z in SCAN)),
        part("b", *range(0, 60, 5)),  # part of it again
        part("b", 72.0),  # a timing slice
        part("b", 147.0),  # a single slice that is not the next one
    ],
)
def test_a_repeat_is_not_joined(other):
    assert [(uid, n) for uid, n, _ in parts(part("a", *SCAN), other)] == [("a", 30), ("b", len(other))]


def test_single_slices_at_one_place_are_not_joined():
    """Bolus tracking stored as a series for each picture."""
    assert [(uid, n) for uid, n, _ in parts(*(part(uid, 40.0) for uid in "abc"))] == [
        ("a", 1),
        ("b", 1),
        ("c", 1),
    ]


@pytest.mark.parametrize("thickness", [None, 0.0, 8.0, 12.5])
def test_interleaved_slices_that_may_overlap_are_not_joined(thickness):
    found = parts(
        part("a", *range(0, 150, 10), thickness=thickness), part("b", *range(5, 150, 10), thickness=thickness)
    )
    assert [n for _, n, _ in found] == [15, 15]


def test_uneven_interleaving_is_not_joined():
    found = parts(part("a", *range(0, 150, 10), thickness=2.0), part("b", *range(3, 150, 10), thickness=2.0))
    assert [n for _, n, _ in found] == [15, 15]


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 256},
        {"spacing": (0.45, 0.45)},
        {"kernel": "BONE"},
        {"contrast": True},
        {"thickness": 2.5},
        {"thickness": None},
        {"description": "CT BONE"},
        {"body_part": "NECK"},
        {"orientation": (1.0, 0.0, 0.0, 0.0, math.cos(0.02), -math.sin(0.02))},
        {"path": "scan/CT BONE/1.dcm"},  # no description: the folder says it
    ],
)
@pytest.mark.parametrize("upper", [range(75, 150, 5), range(2, 75, 5)])
def test_another_kind_of_series_is_not_joined(change, upper):
    same = {"path": "scan/CT PLAIN/1.dcm"}
    lower = [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70]
    other = part("b", *upper, **(same | {"thickness": 5.0} | change))
    assert [n for _, n, _ in parts(part("a", *lower, **same), other)] == [15, 15]


def test_numbers_and_uids_of_folders_do_not_keep_parts_apart():
    for one, two in (("CT PLAIN", "CT PLAIN-2"), ("SE0001", "SE0002"), ("1.2.840.1", "1.2.840.22")):
        found = parts(
            part("a", *range(0, 75, 5), path=f"s/{one}/1.dcm"),
            part("b", *range(75, 150, 5), path=f"s/{two}/1.dcm"),
        )
        assert [n for _, n, _ in found] == [30]


def test_slabs_of_different_spacing_are_not_joined():
    found = parts(part("a", *range(0, 75, 5)), part("b", *range(75, 150, 3)))
    assert [n for _, n, _ in found] == [15, 25]


def test_a_scan_in_halves_and_its_repeat_in_halves_are_left_apart():
    halves = [
        part(uid, *zs) for uid, zs in zip("abcd", 2 * [range(0, 75, 5), range(75, 150, 5)], strict=True)
    ]
    assert [n for _, n, _ in parts(*halves)] == [15] * 4
    assert [n for _, n, _ in parts(*halves[:3])] == [15] * 3
    assert [n for _, n, _ in parts(*halves[1:])] == [15] * 3
    # A repeat of the whole leaves no doubt.
    assert [(uid, n) for uid, n, _ in parts(*halves[:2], part("r", *SCAN))] == [("a", 30), ("r", 30)]


def test_tilted_parts_are_joined_along_their_normal():
    slices = [tilted(k, 18.5, series_uid="ba"[k >= 10], thickness=5.0) for k in range(24)]
    series = ordered(slices)
    assert series.series_uid == "a"
    assert [h.instance_number for h in series.headers] == list(range(24))
    assert codes(series) == [Code.TILTED, Code.SERIES_JOINED]


def test_refused_slices_beyond_a_joined_whole_leave_the_scan_incomplete():
    """They are of its upper part."""
    lower, upper = stack(range(0, 50, 5), series_uid="1"), stack(range(50, 100, 5), series_uid="2")
    odd = header(105, series_uid="2", path="s/odd.dcm", rows=500)
    (series,) = group_series([*lower, *upper, odd])["study"]
    assert codes(series) == [Code.OTHER_SHAPE, Code.GAP, Code.SERIES_JOINED]
    gap = series.entries[1]
    detail = f"0 slices below this one, 0 between those used and 1 above {upper[-1].path} are not used"
    assert (gap.file, gap.detail) == (lower[0].path, detail)
    assert series.left_out == (odd,)
