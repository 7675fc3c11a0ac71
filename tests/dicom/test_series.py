"""Order, refusals and irregularities of series, those that are divided or joined, and groups to average."""

import math
import random
from dataclasses import replace

import pytest

from ich_mil.dicom.choice import reason_for
from ich_mil.dicom.header import SliceHeader, StoredPixels, read_headers
from ich_mil.dicom.order import Series
from ich_mil.dicom.series import average_groups, group_series
from ich_mil.dicom.slice_name import slice_name
from ich_mil.dicom.steps import alike, runs_of
from ich_mil.ledger import Code

PIXELS = StoredPixels("1.2.840.10008.1.2.1", 1000, 1, 16, 16, True, 1.0, 0.0, None)
AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def header(z: float, *, number: int | None = None, **changes: object) -> SliceHeader:
    values: dict[str, object] = {
        "path": f"s/{z:g}-{number}.dcm",
        "frame": 0,
        "sop_uid": f"1.{changes.get('series_uid')}.{z:g}.{number}",
        "study_uid": "study",
        "series_uid": "series",
        "patient_id": "P1",
        "rows": 512,
        "columns": 512,
        "position": (-125.0, -125.0, z),
        "orientation": AXIAL,
        "spacing": (0.5, 0.5),
        "thickness": None,
        "instance_number": number,
        "acquisition": None,
        "description": "",
        "kernel": "",
        "body_part": "",
        "contrast": False,
        "pixels": PIXELS,
        "notes": (),
    }
    return SliceHeader(**(values | changes))  # type: ignore[arg-type]


def stack(positions, **changes: object) -> list[SliceHeader]:
    return [header(z, number=i, **changes) for i, z in enumerate(positions)]


def ordered(headers) -> Series:
    (study,) = group_series(headers).values()
    (series,) = study
    return series


def series_of(uid: str, n: int, step: float, **changes: object) -> Series:
    return ordered(stack([step * i for i in range(n)], series_uid=uid, **changes))


def codes(series: Series) -> list[Code]:
    return [entry.code for entry in series.entries]


def tilted(k: int, degrees: float, *, step: float = 5.0, **changes: object) -> SliceHeader:
    """Slice k of a gantry tilted about x: the couch moves along z, not along the normal."""
    angle = math.radians(degrees)
    orientation = (1.0, 0.0, 0.0, 0.0, math.cos(angle), -math.sin(angle))
    return header(step * k, number=k, orientation=orientation, **changes)


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


def test_no_single_coordinate_orders_a_tilted_series():
    # Steps along the normal, with a shift inside the slice plane that turns the order of z around.
    angle = math.radians(30)
    normal = (0.0, math.sin(angle), math.cos(angle))
    column = (0.0, math.cos(angle), -math.sin(angle))
    headers = []
    for k in range(5):
        y, z = (2 * k * normal[i] + 6 * k * column[i] for i in (1, 2))
        headers.append(header(k, number=k, position=(0.0, y, z), orientation=(1.0, 0.0, 0.0, *column)))
    assert headers[0].position[2] > headers[4].position[2]
    series = ordered(reversed(headers))
    assert [h.instance_number for h in series.headers] == [0, 1, 2, 3, 4]
    assert series.positions == pytest.approx((0, 2, 4, 6, 8))


@pytest.mark.parametrize(
    "orientation",
    [(-1.0, 0.0, 0.0, 0.0, 1.0, 0.0), (1.0, 0.0, 0.0, 0.0, -1.0, 0.0), (-1.0, 0, 0, 0, -1.0, 0)],
)
def test_feet_come_first_however_the_patient_lay(orientation):
    series = ordered(stack([20, 0, 10, 30], orientation=orientation))
    assert [h.position[2] for h in series.headers] == [0, 10, 20, 30]


def test_input_order_does_not_matter():
    headers = [*stack([0, 5, 10, 20, 25]), header(5, number=8), header(15, rows=256), tilted(9, 8)]
    expected = ordered(headers)
    for seed in range(5):
        random.Random(seed).shuffle(headers)
        assert ordered(headers) == expected


def test_studies_and_series_are_kept_apart():
    headers = stack([0, 5]) + stack([1, 6, 11], series_uid="b") + stack([2], study_uid="other")
    studies = group_series(headers)
    found = {study: [(s.series_uid, len(s.headers)) for s in series] for study, series in studies.items()}
    assert found == {"study": [("b", 3), ("series", 2)], "other": [("series", 1)]}


def test_same_position_keeps_the_first_instance():
    series = ordered(
        [header(5, number=8), header(0, number=1), header(5.004, number=2), header(10, number=3)]
    )
    assert [h.instance_number for h in series.headers] == [1, 2, 3]
    (entry,) = series.entries
    assert (entry.code, entry.file) == (Code.DUPLICATE, "s/5-8.dcm")
    assert "same position as s/5.004-2.dcm" in entry.detail


def test_same_sop_uid_twice():
    series = ordered(
        [header(0, sop_uid="1", path="b"), header(0, sop_uid="1", path="a"), header(5, path="c")]
    )
    assert [h.path for h in series.headers] == ["a", "c"]
    assert [(e.code, e.file) for e in series.entries] == [(Code.DUPLICATE, "b")]
    assert "same SOP Instance UID as a" in series.entries[0].detail


def test_thin_slices_of_one_sop_uid_are_all_kept():
    series = ordered(stack([0.25 * k for k in range(40)], sop_uid="1"))
    assert len(series.headers) == 40
    assert codes(series) == [Code.SOP_REPEATED]


def test_one_sop_uid_at_several_positions():
    series = ordered([*stack(range(0, 125, 5), sop_uid="1"), header(20, number=90, sop_uid="1")])
    assert series.positions == tuple(range(0, 125, 5))
    assert [(e.code, e.file) for e in series.entries] == [
        (Code.DUPLICATE, "s/20-90.dcm"),
        (Code.SOP_REPEATED, ""),
    ]
    assert series.entries[0].detail == "same SOP Instance UID as s/20-4.dcm"
    assert "25 slices share a SOP Instance UID with another at another position" in series.entries[1].detail
    (entry,) = ordered([*stack([0, 5]), *stack([10, 15], sop_uid="1")]).entries
    assert entry.detail.startswith("series series: 2 slices share a SOP Instance UID")


@pytest.mark.parametrize("spacing", [(0.4, 0.4), (0.5, 0.506), (0.8, 0.5)])
def test_another_pixel_spacing_is_refused(spacing):
    few = stack(range(2, 20, 5), spacing=spacing)
    series = ordered([*few, *stack(range(0, 50, 5))])
    assert series.positions == tuple(range(0, 50, 5))
    assert [(e.code, e.file) for e in series.entries] == [(Code.OTHER_SHAPE, h.path) for h in few]
    here = f"{spacing[0]:.3f} x {spacing[1]:.3f}"
    assert series.entries[0].detail == (f"pixels of {here} mm; 10 slices of the series have 0.500 x 0.500 mm")


def test_spacings_that_differ_by_rounding_are_one():
    slices = [header(5 * k, number=k, spacing=(0.488 + 0.0002 * k,) * 2) for k in range(10)]
    few = stack([2, 7, 12], spacing=(0.6, 0.6))  # each of the ten is rarer than these three
    series = ordered([*slices, *few])
    assert series.positions == tuple(range(0, 50, 5))
    assert codes(series) == [Code.OTHER_SHAPE] * 3


@pytest.mark.parametrize("spacing", [(0.9, 0.45), (0.45, 0.9), (0.5, 0.506)])
def test_pixels_that_are_not_square_are_noted(spacing):
    (entry,) = ordered(stack([0, 5, 10], spacing=spacing)).entries
    assert (entry.code, entry.file) == (Code.PIXELS_NOT_SQUARE, "")
    detail = f"rows are {spacing[0]} mm apart, columns {spacing[1]} mm; the pixels are left as they are"
    assert entry.detail == f"series series: {detail}"


def test_pixels_that_are_square_up_to_rounding_are_not_noted():
    assert ordered(stack([0, 5, 10], spacing=(0.488281, 0.488))).entries == ()


def test_a_slice_of_another_rescale_is_noted():
    """Of 30 alike, one of which is off by 100 HU; not where every slice has its own, as in PET."""
    slices = stack(range(0, 150, 5))
    assert codes(ordered(slices)) == []
    slices[-1] = replace(slices[-1], pixels=replace(PIXELS, intercept=-1124.0))
    (entry,) = ordered(slices).entries
    assert (entry.code, entry.file) == (Code.OTHER_RESCALE, slices[-1].path)
    usual = f"slope {PIXELS.slope:g} and intercept {PIXELS.intercept:g} HU"
    assert entry.detail == f"slope 1 and intercept -1124 HU; 29 slices of the series have {usual}"
    each = [replace(one, pixels=replace(PIXELS, slope=1 + i / 8)) for i, one in enumerate(slices)]
    assert codes(ordered(each)) == []


def test_a_picture_centre_that_moves_is_noted_and_no_group_spans_it():
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
    back = [replace(h, position=(-125.0, -125.0, h.position[2])) for h in stack(range(40, 50))]
    back += [replace(h, position=(-125.0, -113.0, h.position[2])) for h in stack(range(50, 60))]
    (entry,) = ordered([*lower, *upper, *back]).entries
    assert "moves in the plane 3 times, by up to 12.0 mm, first after s/12-12.dcm" in entry.detail


def test_pixel_spacings_that_differ_by_rounding_do_not_move_the_centre():
    wide = {"rows": 64, "columns": 2048}
    slices = [
        header(z, spacing=(0.5, mm), position=(-1023.5 * mm, 0.0, z), **wide)
        for z, mm in enumerate([0.9] * 10 + [0.908] * 10)  # the first column moves by 8 mm
    ]
    assert codes(ordered(slices)) == [Code.PIXELS_NOT_SQUARE]


def test_the_drift_of_a_tilted_gantry_is_no_move():
    series = ordered(tilted(k, 25) for k in range(30) if not 10 < k < 16)
    assert codes(series) == [Code.GAP, Code.TILTED]  # 30 mm of couch are 12.7 mm in the plane


@pytest.mark.parametrize(
    ("orientation", "words"),
    [
        ((-1.0, 0.0, 0.0, 0.0, 1.0, 0.0), "rows run from left to right"),
        ((1.0, 0.0, 0.0, 0.0, -1.0, 0.0), "columns run from back to front"),
        (
            (-1.0, 0.0, 0.0, 0.0, -1.0, 0.0),
            "rows run from left to right, columns run from back to front",
        ),
        (
            (0.0, 1.0, 0.0, -1.0, 0.0, 0.0),
            "rows run from front to back, columns run from left to right",
        ),
    ],
)
def test_flipped_pictures_are_noted(orientation, words):
    (entry,) = ordered(stack([0, 5, 10], orientation=orientation)).entries
    assert (entry.code, entry.file) == (Code.FLIPPED, "")
    assert entry.detail == f"series series: {words}; the pixels are left as they are"


def test_a_turned_head_is_not_flipped():
    turned = (0.8, 0.6, 0.0, -0.6, 0.8, 0.0)  # 37 degrees
    assert ordered(stack([0, 5, 10], orientation=turned)).entries == ()
    to_one_side = (0.96, 0.0, 0.28, 0.0, 1.0, 0.0)
    assert codes(ordered(stack([0, 5, 10], orientation=to_one_side))) == [Code.TILTED]


def test_other_shape_and_orientation_are_refused():
    odd = [header(50, path="shape", rows=256), tilted(12, 3, path="turned")]
    series = ordered([*stack([0, 5, 10, 15]), *odd])
    assert series.positions == (0, 5, 10, 15)
    assert [(e.code, e.file) for e in series.entries] == [
        (Code.OTHER_SHAPE, "shape"),
        (Code.OTHER_ORIENTATION, "turned"),
        (Code.GAP, "s/0-0.dcm"),  # the odd shape lies above the others
    ]
    assert "256 x 512" in series.entries[0].detail
    assert "3.0 degrees" in series.entries[1].detail


def test_every_header_is_kept_or_named():
    headers = [*stack([0, 5, 10, 10, 20]), header(15, rows=256), tilted(9, 8), header(0, number=0)]
    series = ordered(headers)
    refused = [
        e for e in series.entries if e.code in {Code.DUPLICATE, Code.OTHER_SHAPE, Code.OTHER_ORIENTATION}
    ]
    assert len(series.headers) + len(refused) == len(headers)


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


def test_gap_and_spacing_change_say_the_numbers():
    (gap,) = ordered(stack([0, 5, 10, 15, 25, 30, 35, 40])).entries
    assert gap.detail == "10.00 mm between this slice and s/25-4.dcm, 5.00 mm is regular"
    (change,) = ordered(stack([0, 4, 8, 12, 19, 26, 33])).entries
    assert (change.code, change.detail) == (
        Code.SPACING_CHANGES,
        "series series: steps in mm are 3 x 4.00, 3 x 7.00",
    )


def test_one_slice():
    series = ordered([header(3)])
    assert (series.spacing, series.extent, series.positions, series.entries) == (0, 0, (3,), ())
    assert average_groups(series) == [(0,)]
    assert ordered(stack([3, 8])).spacing == 5


@pytest.mark.parametrize("back", [1.0, -1.0])
def test_sagittal_slices_run_from_right_to_left(back):
    sagittal = (0.0, back, 0.0, 0.0, 0.0, -1.0)  # rows along y, columns down z: the normal is x
    places = [(x, -100.0, 80.0) for x in (30.0, -30.0, 0.0, 15.0, -15.0)]
    series = ordered(header(i, number=i, position=p, orientation=sagittal) for i, p in enumerate(places))
    assert [h.instance_number for h in series.headers] == [1, 4, 2, 3, 0]
    assert series.positions == (-30, -15, 0, 15, 30)
    assert series.entries == ()


# Frames of one file


def frames(positions, *, path: str = "multi.dcm", sop: str = "1.2", **changes: object) -> list[SliceHeader]:
    stored = replace(PIXELS, frames=len(positions))
    return [
        header(z, number=1, path=path, frame=k, sop_uid=sop, pixels=stored, **changes)
        for k, z in enumerate(positions)
    ]


def test_frames_of_one_file_are_slices_of_their_own():
    series = ordered(frames([20, 0, 10, 30]))
    assert [h.frame for h in series.headers] == [1, 2, 0, 3]
    assert series.positions == (0, 10, 20, 30)
    assert series.entries == ()


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


# Several reconstructions under one series UID


@pytest.mark.parametrize("change", [{"kernel": "BONE"}, {"contrast": True}])
def test_reconstructions_of_the_same_slices_are_divided(change):
    first = [header(5 * i, number=i, **({"kernel": "SOFT"} | change)) for i in range(30)]
    second = [header(5 * i, number=40 + i, kernel="SOFT") for i in range(12)]
    (study,) = group_series([*first, *second]).values()
    found = {(s.headers[0].kernel, s.headers[0].contrast): s for s in study}
    changed = found.pop((change.get("kernel", "SOFT"), "contrast" in change))
    assert (changed.positions, changed.entries) == (tuple(range(0, 150, 5)), ())
    plain = found.pop(("SOFT", False))
    assert (plain.positions, plain.entries) == (tuple(range(0, 60, 5)), ())
    assert found == {}


def test_reconstructions_of_which_a_half_shows_the_same_slices_are_divided():
    headers = [*stack(range(0, 50, 5), kernel="BONE"), *stack(range(20, 70, 5), kernel="SOFT")]
    (study,) = group_series(headers).values()
    assert [(one.headers[0].kernel, one.positions) for one in study] == [
        ("BONE", tuple(range(0, 50, 5))),
        ("SOFT", tuple(range(20, 70, 5))),
    ]


def test_kernels_of_different_slices_stay_together():
    series = ordered([*stack(range(0, 40, 5), kernel="BONE"), *stack(range(40, 150, 5), kernel="SOFT")])
    assert (len(series.headers), series.entries) == (30, ())
    thin = [*stack(range(30), kernel="BONE"), *stack([z + 0.5 for z in range(30)], kernel="SOFT")]
    assert len(ordered(thin).headers) == 60


# A scan and its repeat under one series UID


def passes(*slices: list[SliceHeader]) -> list[tuple[float, ...]]:
    (study,) = group_series(one for some in slices for one in some).values()
    return [one.positions for one in study]


def taken(positions, acquisition: int | None, **changes: object) -> list[SliceHeader]:
    return stack(positions, acquisition=acquisition, **({"thickness": 5.0} | changes))


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0, 2.5, 4.0])
def test_a_repeat_under_the_same_series_uid_is_divided(shift):
    again = [z + shift for z in range(0, 150, 5)]
    repeat = taken(again, 2, path="z")
    assert passes(taken(range(0, 150, 5), 1), repeat) == [tuple(range(0, 150, 5)), tuple(again)]
    assert passes(taken(range(0, 150, 5), 1), repeat[:8]) == [tuple(range(0, 150, 5)), tuple(again[:8])]


def test_a_repeat_of_table_positions_is_divided_into_passes():
    def four(start: float, number: int) -> list[SliceHeader]:
        return taken([start + 5 * k for k in range(4)], number, path="z" if number > 6 else "a")

    first = [four(20 * k, 1 + k) for k in range(6)]
    second = [four(20 * k + 2, 7 + k) for k in range(6)]
    assert passes(*first, *second) == [tuple(range(0, 120, 5)), tuple(range(2, 120, 5))]
    single = [taken([5 * k], 1 + k, path="a") for k in range(24)]
    repeat = [taken([5 * k + 2], 30 + k, path="z") for k in range(24)]
    assert passes(*single, *repeat) == [tuple(range(0, 120, 5)), tuple(range(2, 120, 5))]


@pytest.mark.parametrize(
    "slices",
    [
        [header(5 * k, number=k, acquisition=k, thickness=5.0) for k in range(30)],  # each slice
        [header(5 * k, number=k, acquisition=k // 4, thickness=5.0) for k in range(30)],  # table positions
        [header(5 * k, number=k, acquisition=-k // 4, thickness=5.0) for k in range(30)],  # downwards
        [header(5 * k, number=k, acquisition=k % 2, thickness=5.0) for k in range(30)],  # side by side
        [header(4.5 * k, number=k, acquisition=k % 2, thickness=5.0) for k in range(30)],  # nearly
        [header(0.625 * k, number=k, acquisition=k, thickness=1.25) for k in range(30)],  # overlapping
        [header(0.625 * k, number=k, acquisition=k // 4, thickness=1.25) for k in range(32)],
        [header(0.625 * k, number=k, acquisition=k // 15, thickness=1.25) for k in range(30)],
        [header(2.5 * k, number=k, acquisition=k % 2, thickness=None) for k in range(30)],  # not known
        [header(2.5 * k, number=k, acquisition=k % 2, thickness=0.0) for k in range(30)],
        [header(2.5 * k, number=k, acquisition=None, thickness=5.0) for k in range(30)],
        [*taken(range(0, 150, 5), 1), *taken([72, 77, 82], 2)],  # three slices are no pass
        [*taken(range(0, 150, 5), 1), *taken([52, 57, 62, 72, 77], 2)],  # not regular
        [*taken(range(0, 75, 5), 1), *taken(range(75, 150, 5), 2)],  # the next slab
    ],
)
def test_acquisition_numbers_that_say_no_repeat_do_not_divide(slices):
    series = ordered(slices)
    assert series.positions == tuple(sorted(h.position[2] for h in slices))
    assert Code.SERIES_JOINED not in codes(series)  # not divided and joined again


def test_slices_of_a_tilted_gantry_overlap_along_their_normal():
    # 4.5 mm of couch are 3.9 mm along the normal, less than 5 mm / 1.2
    slices = [tilted(k, 30, step=4.5, acquisition=k % 2, thickness=5.0) for k in range(30)]
    assert [len(one) for one in passes(slices)] == [15, 15]


def test_series_under_one_uid_stand_by_kernel_then_by_path():
    low, high = tuple(range(0, 150, 5)), tuple(range(2, 150, 5))
    assert passes(taken(high, 1, path="a"), taken(low, 2, path="z")) == [high, low]
    assert passes(stack(low, kernel="A", path="z"), stack(low[5:], kernel="B", path="a")) == [low, low[5:]]


def test_slabs_and_a_repeat_of_the_whole():
    whole = taken(range(2, 150, 5), 3, path="z")
    slabs = [taken(range(0, 75, 5), 1, path="a"), taken(range(75, 150, 5), 2, path="a")]
    assert passes(*slabs, whole) == [tuple(range(0, 150, 5)), tuple(range(2, 150, 5))]


def test_passes_that_go_on_where_another_ends_are_joined_again():
    low, whole, high = taken(range(0, 75, 5), 1), taken(range(2, 150, 5), 2), taken(range(75, 150, 5), 3)
    detail = "one scan under 2 passes, continued: series (30 files)"
    high = [replace(h, path=f"high/{h.path}") for h in high]
    assert sorted(parts(low, whole, high)) == [("series", 30, []), ("series", 30, [detail])]


def test_a_part_that_is_repeated_before_the_whole():
    part_again, whole = taken(range(2, 50, 5), 2, path="b"), taken(range(3, 150, 5), 3, path="c")
    expected = [tuple(range(0, 75, 5)), tuple(range(2, 50, 5)), tuple(range(3, 150, 5))]
    assert passes(taken(range(0, 75, 5), 1, path="a"), part_again, whole) == expected


# Two gantry tilts in one series


def tilt_slab(zs, degrees: float, start: int, **changes: object) -> list[SliceHeader]:
    """Slices centred on (0, 0, z), the gantry turned: 512 pixels of 0.5 mm, 127.75 mm to the centre."""
    return turned_slab(zs, degrees, start, 127.75, 127.75, **changes)


def turned_slab(zs, degrees: float, start: int, across: float, down: float, **changes) -> list[SliceHeader]:
    """As `tilt_slab`, of pictures whose centre is `across` and `down` mm from the first pixel."""
    angle = math.radians(degrees)
    row, column = (1.0, 0.0, 0.0), (0.0, math.cos(angle), -math.sin(angle))
    return [
        header(
            z,
            number=start + i,
            position=(-across, -down * column[1], z - down * column[2]),
            orientation=(*row, *column),
            **changes,
        )
        for i, z in enumerate(zs)
    ]


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
    assert series.entries[1].detail == (
        "series series: slices have several tilts: 12 by 4.0, 10 by 20.0 degrees; ordered by their centres"
    )


def test_centres_of_pictures_that_are_not_square():
    # (301 - 1) / 2 * 0.6 mm down, (401 - 1) / 2 * 0.9 mm across
    picture = {"rows": 301, "columns": 401, "spacing": (0.6, 0.9)}
    slabs = [
        *turned_slab(range(0, 40, 4), 20, 0, 180.0, 90.0, **picture),
        *turned_slab(range(40, 80, 4), 0, 10, 180.0, 90.0, **picture),
    ]
    # Along the mean normal of 20 and 0 degrees, which is turned by 10.
    cosine = math.cos(math.radians(10))
    assert ordered(slabs).positions == pytest.approx([cosine * z for z in range(0, 80, 4)])


def test_acquisitions_of_two_tilts_are_no_repeat():
    # along the normal of the first the corners of the second lie 44 mm lower, among those of the first
    first = tilt_slab(range(0, 40, 4), 20, 0, acquisition=1, thickness=4.0)
    second = tilt_slab(range(44, 140, 4), 0, 10, acquisition=2, thickness=4.0)
    assert len(ordered([*first, *second]).headers) == 34


def test_three_slices_and_thirty_degrees_are_a_second_tilt():
    headers = [*tilt_slab(range(-315, -300, 5), 30, 0), *tilt_slab(range(-300, -195, 5), 0, 10)]
    assert codes(ordered(headers)) == [Code.TILTED]
    aside = [replace(h, position=(-140.0, *h.position[1:])) for h in headers[3:]]
    assert codes(ordered([*headers[:3], *aside])) == [Code.TILTED]  # in which plane, is not said
    duplicate, tilt = ordered([*headers, *tilt_slab([-310], 30, 90)]).entries
    assert (duplicate.code, duplicate.file) == (Code.DUPLICATE, "s/-310-90.dcm")
    assert "21 by 0.0, 3 by 30.0 degrees" in tilt.detail


def test_a_third_tilt_over_the_slices_of_the_second_is_refused():
    headers = [*tilt_slab(range(0, 120, 5), 0, 0), *tilt_slab(range(-80, 0, 5), 15, 100)]
    again = tilt_slab(range(-60, 0, 5), 20, 200)
    series = ordered([*headers, *again])
    assert {h.instance_number for h in series.headers} == {h.instance_number for h in headers}
    assert codes(series).count(Code.OTHER_ORIENTATION) == len(again)


def test_tilts_whose_planes_cross_are_ordered_by_their_centres():
    crossing = [z + 2.5 for z in range(25, 125, 5)]
    series = ordered([*tilt_slab(range(0, 40, 5), 15, 0), *tilt_slab(crossing, 0, 100)])
    assert [h.instance_number for h in series.headers[4:12]] == [4, 5, 100, 6, 101, 7, 102, 103]
    assert (len(series.headers), codes(series)[-1]) == (28, Code.TILTED)


def test_slices_of_two_tilts_with_one_centre_are_both_kept():
    series = ordered([*tilt_slab(range(0, 40, 5), 15, 0), *tilt_slab(range(35, 130, 5), 0, 100)])
    assert len(series.headers) == 27
    assert {h.instance_number for h in series.headers[7:9]} == {7, 100}
    assert series.positions[8] - series.positions[7] == pytest.approx(0.01, abs=1e-6)


def along_z(zs, orientation: tuple[float, ...]) -> list[SliceHeader]:
    """Slices of any orientation with their first pixel at (0, 0, z)."""
    return [header(z, number=90 + z, position=(0.0, 0.0, z), orientation=orientation) for z in zs]


@pytest.mark.parametrize(
    ("other", "below"),
    [
        (tilt_slab([-10, -5], 15, 90), 2),  # two slices are no slab
        (tilt_slab(range(10, 60, 5), 15, 90), 0),  # the same part of the head again
        (tilt_slab(range(-30, 70, 5), 15, 90), 6),  # two thirds of it
        (tilt_slab(range(-15, 135, 7), 15, 90), 0),  # a reformat of the whole: it reaches further
        (tilt_slab(range(-80, 0, 5), 40, 90), 0),  # no gantry turns so far
        (along_z(range(-80, 0, 5), (0.96, 0.28, 0.0, -0.28, 0.96, 0.0)), 16),  # turned in the plane
        (along_z(range(-80, 0, 5), (-1.0, 0.0, 0.0, 0.0, -1.0, 0.0)), 16),  # upside down
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
        (first, last), gap = (series.headers[0].path, series.headers[-1].path), series.entries[-1]
        told = f"{below} slices below this one and 0 above {last} take no part"
        assert (gap.file, gap.detail) == (first, told)


def test_groups_do_not_span_two_tilts():
    series = ordered([*tilt_slab(range(0, 40), 15, 0), *tilt_slab(range(40, 100), 0, 100)])
    groups = average_groups(series)
    assert [len(group) for group in groups] == [5] * 20
    assert groups[7:9] == [(35, 36, 37, 38, 39), (40, 41, 42, 43, 44)]
    # Nor where the groups would not end there of themselves.
    series = ordered([*tilt_slab(range(0, 38), 15, 0), *tilt_slab(range(38, 100), 0, 100)])
    sides = {
        tuple(series.headers[i].instance_number >= 100 for i in {g[0], g[-1]}) for g in average_groups(series)
    }
    assert sides <= {(False,), (True,), (False, False), (True, True)}


# One scan under several series UIDs


def parts(*slices: list[SliceHeader]) -> list[tuple[str, int, list[str]]]:
    """Each series of the study: UID, slices, details of the entries that join."""
    headers = [one for some in slices for one in some]
    (study,) = group_series(headers).values()
    for seed in range(3):
        random.Random(seed).shuffle(headers)
        assert group_series(headers)["study"] == study
    joins = [[e.detail for e in s.entries if e.code == Code.SERIES_JOINED] for s in study]
    assert sum(len(s.headers) for s in study) + sum(
        e.code == Code.DUPLICATE for s in study for e in s.entries
    ) == len(headers)
    return [(s.series_uid, len(s.headers), join) for s, join in zip(study, joins, strict=True)]


def part(uid: str, *positions, thickness: float | None = 5.0, **changes: object) -> list[SliceHeader]:
    return stack(positions, series_uid=uid, thickness=thickness, **changes)


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


# Groups to average


@pytest.mark.parametrize(
    ("n", "step", "sizes"),
    [
        (6, 5.0, [1] * 6),
        (6, 3.0, [1] * 6),
        (6, 2.5, [1] * 6),
        (6, 2.0, [2, 2, 2]),
        (8, 1.25, [4, 4]),
        (10, 1.0, [5, 5]),
        (320, 0.625, [8] * 40),
        (11, 1.0, [6, 5]),
        (3, 0.625, [3]),
    ],
)
def test_group_sizes(n, step, sizes):
    groups = average_groups(series_of("a", n, step))
    assert [len(group) for group in groups] == sizes
    assert [i for group in groups for i in group] == list(range(n))


@pytest.mark.parametrize(
    ("n", "step", "slice_mm", "groups"),
    [
        (15, 1.0, 5.0, [(2,), (7,), (12,)]),
        (8, 1.25, 2.5, [(1,), (3,), (5,), (7,)]),  # 2.5 mm slices side by side, as they are left alone
        (10, 1.0, 8.0, [(2,), (7,)]),  # no further apart than 5 mm
        (4, 2.0, 2.5, [(0,), (1,), (2,), (3,)]),
        (3, 5.0, 5.0, [(0,), (1,), (2,)]),
        (10, 1.0, 2.3, [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]),  # thin ones that overlap are averaged
        (10, 1.0, 0.0, [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]),  # not known
    ],
)
def test_thick_slices_that_overlap_are_not_averaged(n, step, slice_mm, groups):
    assert average_groups(series_of("a", n, step, thickness=slice_mm)) == groups


def test_the_thickness_and_the_step_of_most_slices_count():
    slices = [header(z, number=z, thickness=5.0 if z == 4 else 1.0) for z in range(10)]
    assert average_groups(ordered(slices)) == [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]
    series = ordered(stack([0, *(0.6 + 0.7 * k for k in range(55))]))  # 0.6 mm once, then 0.7
    assert [len(group) for group in average_groups(series)] == [7] * 8
    uneven = ordered(stack([0, 1, 2.15, 3.3, 4.45, 5.75]))  # 1.3 mm is not alike to the first step
    assert average_groups(uneven) == [(0, 1, 2), (3, 4, 5)]


def test_groups_do_not_span_a_gap():
    series = ordered(stack([0, 1, 2, 3, 4, 5, 6, 20, 21, 22, 23, 24]))
    assert codes(series) == [Code.GAP]
    assert average_groups(series) == [(0, 1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11)]
    assert average_groups(ordered(stack([0, 10, 11, 12, 13, 14]))) == [(0,), (1, 2, 3, 4, 5)]


def test_groups_do_not_span_a_joint():
    series = ordered([*part("a", *range(0, 13), thickness=1.0), *part("b", *range(13, 40), thickness=1.0)])
    assert codes(series) == [Code.SERIES_JOINED]
    groups = average_groups(series)
    assert [len(group) for group in groups] == [5, 4, 4, 6, 6, 5, 5, 5]
    assert (groups[2], groups[3]) == ((9, 10, 11, 12), (13, 14, 15, 16, 17, 18))


def test_groups_span_interleaved_parts():
    series = ordered(
        [*part("a", *range(0, 40, 2), thickness=1.0), *part("b", *range(1, 40, 2), thickness=1.0)]
    )
    assert codes(series) == [Code.SERIES_JOINED]
    assert average_groups(series) == [tuple(range(i, i + 5)) for i in range(0, 40, 5)]


def test_thin_and_thick_slabs_are_grouped_apart():
    series = ordered(stack([0, 1, 2, 3, 4, 9, 14, 19, 24]))
    assert average_groups(series) == [(0, 1, 2, 3, 4), (5,), (6,), (7,), (8,)]


def test_other_thickness():
    assert [len(g) for g in average_groups(series_of("a", 9, 1.0), thickness=3.0)] == [3, 3, 3]
    with pytest.raises(ValueError, match="positive"):
        average_groups(series_of("a", 9, 1.0), thickness=0.0)


@pytest.mark.realdata
def test_ge_head(shared_data):
    paths = sorted((shared_data / "ge_head_ct").glob("*.dcm"))
    random.Random(1).shuffle(paths)
    series = ordered(header for path in paths for header in read_headers(path))
    assert [h.instance_number for h in series.headers] == list(range(1, 29))
    assert [h.thickness for h in series.headers] == [4.0] * 14 + [7.0] * 14
    steps = [b - a for a, b in zip(series.positions, series.positions[1:], strict=False)]
    assert steps[:13] == pytest.approx([4.0] * 13, abs=0.01)
    assert steps[13] == pytest.approx(1.08, abs=0.01)
    assert steps[14:] == pytest.approx([7.0] * 13, abs=0.01)
    assert codes(series) == [Code.SPACING_CHANGES, Code.TILTED]
    assert "13 x 4.00, 1 x 1.08, 13 x 7.00" in series.entries[0].detail
    assert "18.5 degrees" in series.entries[1].detail
    reason = "plain, 4.0 mm, 28 slices, 144 mm, 1 spacing-changes; the only series"
    assert reason_for(series, [series]) == reason
    assert average_groups(series) == [(i,) for i in range(28)]


@pytest.mark.parametrize("changes", [{"rows": 500}, {"spacing": (0.6, 0.6)}])
def test_slices_of_another_kind_beyond_the_others_leave_the_scan_incomplete(changes):
    """Between them they do not: another field of view of the same head, say."""
    kept = stack([5.0 * i for i in range(20)])
    above = stack([100.0, 105.0], **changes)
    (gap,) = [entry for entry in ordered([*kept, *above]).entries if entry.code == Code.GAP]
    detail = f"0 slices below this one and 2 above {kept[-1].path} take no part"
    assert (gap.file, gap.detail) == (kept[0].path, detail)
    within = [replace(header, path=f"w/{header.path}") for header in stack([10.0, 15.0], **changes)]
    assert Code.GAP not in codes(ordered([*kept, *within]))


def test_refused_slices_beyond_a_joined_whole_leave_the_scan_incomplete():
    """They are of its upper part."""
    lower, upper = stack(range(0, 50, 5), series_uid="1"), stack(range(50, 100, 5), series_uid="2")
    odd = header(105, series_uid="2", path="s/odd.dcm", rows=500)
    (series,) = group_series([*lower, *upper, odd])["study"]
    assert codes(series) == [Code.OTHER_SHAPE, Code.GAP, Code.SERIES_JOINED]
    gap = series.entries[1]
    detail = f"0 slices below this one and 1 above {upper[-1].path} take no part"
    assert (gap.file, gap.detail) == (lower[0].path, detail)
    assert series.left_out == (odd,)
