"""One scan under several series UIDs."""

import math

import pytest

from ich_mil.ledger import Code
from ich_mil.study.files.header import SliceHeader
from ich_mil.study.series import group_series
from tests.study.headers import codes, header, ordered, part, parts, stack, tilt_slab, tilted


def test_a_continuation_is_joined():
    upper, lower = part("b", *range(0, 80, 5)), part("a", *range(80, 150, 5))
    assert parts(upper, lower) == [
        ("a", 30, ["one scan under 2 series UIDs, continued: a (14 files), b (16 files)"])
    ]
    series = ordered([*upper, *lower])
    assert series.positions == tuple(range(0, 150, 5))
    assert codes(series) == [Code.SERIES_JOINED]
    assert (series.entries[0].scan, series.entries[0].file) == ("study", "")


def sagittal(uid: str, places) -> list[SliceHeader]:
    turned = {"orientation": (0, 1.0, 0, 0, 0, -1.0), "series_uid": uid, "thickness": 5.0}
    return [header(x, number=x, position=(x, 0.0, 0.0), **turned) for x in places]


def interleaved(start: float, thickness: float | None) -> list[list[SliceHeader]]:
    return [part(uid, *range(at, 150, 10), thickness=thickness) for uid, at in (("a", 0), ("b", start))]


SCAN = range(0, 150, 5)
HALVES = [range(0, 75, 5), range(75, 150, 5)]


@pytest.mark.parametrize(
    ("slices", "found"),
    [
        *(  # steps over the joint, mm
            ([part("a", *range(0, 80, 5)), part("b", *(75 + step + 5 * i for i in range(14)))], found)
            for step, found in [(0.5, "a30"), (4.0, "a30"), (7.5, "a30"), (7.6, "a16 b14"), (12.0, "a16 b14")]
        ),
        (  # two scans; 8 mm are no gap where steps of 5.5 mm follow; thicknesses differ by rounding
            [
                *(part("a", *range(0, 50, 5)), part("b", *range(50, 100, 5)), part("c", *range(200, 250, 5))),
                part("d", *(253 + 5.5 * k for k in range(10)), thickness=5.004),
            ],
            "a20 c20",
        ),
        (interleaved(5, 5.0), "a30"),
        *((interleaved(5, thickness), "a15 b15") for thickness in (None, 0.0, 8.0, 12.5)),  # may overlap
        ([part("a", *range(0, 150, 10)), part("b", 5, 15, 25), part("c", *range(35, 140, 10))], "a29"),
        *(
            ([part("a", *range(0, 100, 5)), part("c", *range(100, 150, 5), **odd)], "a20 c10")
            for odd in ({"columns": 256}, {"spacing": (0.4, 0.4)})
        ),
        ([sagittal("a", range(0, 75, 5)), sagittal("b", range(75, 150, 5))], "a30"),
        ([part("a", *range(0, 50, 5), thickness=3.0), part("b", 50, thickness=3.0)], "a11"),  # a single slice
        ([part(uid, 40.0) for uid in "abc"], "a1 b1 c1"),  # bolus tracking, a series for each picture
        ([part("a", *range(0, 75, 5)), part("b", *range(75, 150, 3))], "a15 b25"),  # another spacing
        ([part("a", *SCAN), part("b", *SCAN)], "a30 b30"),  # a repeat
        ([part("a", *SCAN), part("b", *(z + 2.5 for z in SCAN))], "a30 b30"),  # 5 mm slices 2.5 mm apart
        ([part("a", *SCAN), part("b", *range(0, 60, 5))], "a30 b12"),  # part of it again
        ([part("a", *SCAN), part("b", 72.0)], "a30 b1"),  # a timing slice
        ([part(uid, *half) for uid, half in zip("abcd", 2 * HALVES, strict=True)], "a15 b15 c15 d15"),
    ],
)
def test_parts_that_are_joined_and_others(slices, found):
    assert " ".join(f"{uid}{n}" for uid, n, _ in parts(*slices)) == found


def test_more_than_two_parts():
    thirds = [part(uid, *range(start, 150, 15)) for uid, start in (("a", 0), ("b", 5), ("c", 10))]
    detail = "one scan under 3 series UIDs, interleaved: a (10 files), b (10 files), c (10 files)"
    assert parts(*thirds) == [("a", 30, [detail])]
    detail = "one scan under 4 series UIDs, continued: a (10 files), b (5 files), c (5 files), d (10 files)"
    chain = [part("d", *range(0, 50, 5)), part("b", *range(50, 100, 10)), part("c", *range(55, 100, 10))]
    assert parts(*chain, part("a", *range(100, 150, 5))) == [("a", 30, [detail])]


def test_a_series_of_two_tilts_is_not_joined():
    base, top = tilt_slab(range(0, 60, 5), 0, 0), tilt_slab(range(60, 120, 5), 15, 50)
    found = parts([*base, *top], tilt_slab(range(-75, 0, 5), 0, 90, series_uid="a"))
    assert [(uid, n) for uid, n, _ in found] == [("a", 15), ("series", 24)]


def test_a_series_uid_for_each_slice():
    found = parts(*(part(f"{z:03d}", z) for z in range(0, 60, 5)))
    assert [(uid, n) for uid, n, _ in found] == [("000", 12)]
    assert len(parts(*(part(f"{z:03d}", z, thickness=0.0) for z in range(0, 60, 5)))) == 12
    # 8 mm from slice to slice of 5 mm: nothing says that they belong together.
    assert len(parts(*(part(f"{z:03d}", z) for z in range(0, 80, 8)))) == 10


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


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 256},
        {"kernel": "BONE"},
        {"contrast": True},
        {"thickness": None},
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


def test_refused_slices_beyond_joined_parts():
    """They are of its upper part."""
    lower, upper = stack(range(0, 50, 5), series_uid="1"), stack(range(50, 100, 5), series_uid="2")
    odd = header(105, series_uid="2", path="s/odd.dcm", rows=500)
    (series,) = group_series([*lower, *upper, odd])["study"]
    assert codes(series) == [Code.OTHER_SHAPE, Code.GAP, Code.SERIES_JOINED]
    gap = series.entries[1]
    detail = f"0 slices below this one, 0 between those used and 1 above {upper[-1].path} are not used"
    assert (gap.file, gap.detail) == (lower[0].path, detail)
    assert series.left_out == (odd,)
