"""Slices in order, those that are not used, and the names of slices."""

import random
from dataclasses import replace

import pytest

from ich_mil.ledger import Code
from ich_mil.study.files.header import SliceHeader, slice_name
from tests.study.headers import PIXELS, codes, header, ordered, stack, tilted


def test_order_is_by_position_not_by_instance_number():
    headers = [header(10, number=1), header(-5, number=2), header(5, number=3), header(0, number=9)]
    series = ordered(replace(h, description=f"slice {h.instance_number}") for h in headers)
    assert series.description == "slice 2"
    assert [h.instance_number for h in series.headers] == [2, 9, 3, 1]
    assert series.positions == (-5, 0, 5, 10)
    assert (series.spacing, series.extent) == (5, 15)
    assert series.entries == ()


def test_tilted_slices_are_ordered_along_their_normal():
    headers = [tilted(k, 18.5) for k in range(12)]
    random.Random(0).shuffle(headers)
    series = ordered(headers)
    assert [h.instance_number for h in series.headers] == list(range(12))
    # Steps of 5 mm along z are 5 cos(18.5 degrees) = 4.7416 mm apart along the normal.
    assert series.spacing == pytest.approx(4.741618, abs=1e-6)
    # (-125, -125, 0) . (0, sin, cos) = -125 * 0.3173047
    assert series.positions[0] == pytest.approx(-39.66308, abs=1e-4)
    assert codes(series) == [Code.TILTED]
    assert "18.5 degrees" in series.entries[0].detail
    assert series.entries[0].scan == "study"


@pytest.mark.parametrize("orientation", [(-1.0, 0, 0, 0, 1.0, 0), (-1.0, 0, 0, 0, -1.0, 0)])
def test_feet_come_first_however_the_patient_lay(orientation):
    series = ordered(stack([20, 0, 10, 30], orientation=orientation))
    assert [h.position[2] for h in series.headers] == [0, 10, 20, 30]


def test_same_position_keeps_the_first_instance():
    series = ordered(
        [header(5, number=8), header(0, number=1), header(5.004, number=2), header(10, number=3)]
    )
    assert [h.instance_number for h in series.headers] == [1, 2, 3]
    assert [(e.code, e.file) for e in series.entries] == [(Code.DUPLICATE, "s/5-8.dcm")]


def test_same_sop_uid_twice():
    slices = [header(0, sop_uid="1", path="b"), header(0, sop_uid="1", path="a"), header(5, path="c")]
    series = ordered(slices)
    assert [h.path for h in series.headers] == ["a", "c"]
    assert [(e.code, e.file) for e in series.entries] == [(Code.DUPLICATE, "b")]


def test_one_sop_uid_at_several_positions():
    series = ordered([*stack(range(0, 125, 5), sop_uid="1"), header(20, number=90, sop_uid="1")])
    assert series.positions == tuple(range(0, 125, 5))
    duplicate, repeated = series.entries
    assert (duplicate.code, duplicate.file, repeated.code) == (
        Code.DUPLICATE,
        "s/20-90.dcm",
        Code.SOP_REPEATED,
    )
    assert "25 slices share" in repeated.detail


@pytest.mark.parametrize("change", [{"spacing": (0.5, 0.506)}, {"rows": 256}])
def test_another_shape_or_pixel_spacing_is_left_out(change):
    few = stack(range(2, 20, 5), thickness=5.0, **change)
    series = ordered([*few, *stack(range(0, 50, 5), thickness=5.0)])
    assert series.positions == tuple(range(0, 50, 5))
    assert [(e.code, e.file) for e in series.entries] == [(Code.OTHER_SHAPE, h.path) for h in few]
    assert series.left_out == tuple(few)


def test_spacings_that_differ_by_rounding_are_one():
    spacings = [(0.488 + 0.0002 * k,) * 2 for k in range(10)]
    slices = [header(5 * k, number=k, spacing=mm, thickness=5.0) for k, mm in enumerate(spacings)]
    few = stack([2, 7, 12], spacing=(0.6, 0.6), thickness=5.0)  # each of the ten is rarer than these three
    series = ordered([*slices, *few])
    assert series.positions == tuple(range(0, 50, 5))
    assert codes(series) == [Code.OTHER_SHAPE] * 3


def test_sagittal_slices_run_from_right_to_left():
    sagittal = (0.0, 1.0, 0.0, 0.0, 0.0, -1.0)  # rows along y, columns down z: the normal is x
    places = [(x, -100.0, 80.0) for x in (14.0, -14.0, 0.0, 7.0, -7.0)]
    series = ordered(header(i, number=i, position=p, orientation=sagittal) for i, p in enumerate(places))
    assert [h.instance_number for h in series.headers] == [1, 4, 2, 3, 0]
    assert series.positions == (-14, -7, 0, 7, 14)
    assert series.entries == ()


def frames(positions, *, path: str = "multi.dcm", sop: str = "1.2", **changes: object) -> list[SliceHeader]:
    stored = replace(PIXELS, frames=len(positions))
    return [
        header(z, number=1, path=path, frame=k, sop_uid=sop, pixels=stored, **changes)
        for k, z in enumerate(positions)
    ]


def test_frames_are_named_by_file_and_number():
    assert slice_name(header(5, number=2)) == "s/5-2.dcm"
    assert slice_name(frames([0, 5])[1]) == "multi.dcm frame 1"
    series = ordered([*frames([0, 5, 10, 15, 15, 30]), *frames([0], path="twin.dcm")])
    assert [(h.path, h.frame) for h in series.headers] == [
        ("multi.dcm", 0), ("multi.dcm", 1), ("multi.dcm", 2), ("multi.dcm", 3), ("multi.dcm", 5)
    ]  # fmt: skip
    assert [(e.code, e.file, e.detail) for e in series.entries] == [
        (Code.DUPLICATE, "twin.dcm", "same SOP Instance UID as multi.dcm frame 0"),
        (Code.DUPLICATE, "multi.dcm", "frame 4: same position as multi.dcm frame 3 (15.00 mm)"),
        (Code.GAP, "multi.dcm", "15.00 mm between frame 3 and multi.dcm frame 5, 5.00 mm is regular"),
    ]
