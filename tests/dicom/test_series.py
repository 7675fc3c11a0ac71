"""Order, refusals and irregularities of series, the choice among them, and groups to average."""

import math
import random

import pytest

from ich_mil.dicom.read import SliceHeader, read_header
from ich_mil.dicom.series import Series, average_groups, choose_series, group_series
from ich_mil.ledger import Code

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def header(z: float, *, number: int | None = None, **changes: object) -> SliceHeader:
    values: dict[str, object] = {
        "path": f"s/{z:g}-{number}.dcm",
        "sop_uid": f"1.{z:g}.{number}",
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
        "description": "",
        "kernel": "",
        "contrast": False,
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


def coronal(uid: str, n: int, step: float) -> Series:
    slices = [
        header(
            i, number=i, series_uid=uid, position=(0.0, step * i, 0.0), orientation=(1.0, 0, 0, 0, 0, -1.0)
        )
        for i in range(n)
    ]
    return ordered(slices)


def codes(series: Series) -> list[Code]:
    return [entry.code for entry in series.entries]


def tilted(k: int, degrees: float, *, step: float = 5.0, **changes: object) -> SliceHeader:
    """Slice k of a gantry tilted about x: the couch moves along z, not along the normal."""
    angle = math.radians(degrees)
    orientation = (1.0, 0.0, 0.0, 0.0, math.cos(angle), -math.sin(angle))
    return header(step * k, number=k, orientation=orientation, **changes)


def test_order_is_by_position_not_by_instance_number():
    headers = [header(10, number=1), header(-5, number=2), header(5, number=3), header(0, number=9)]
    series = ordered(headers)
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


def test_other_shape_and_orientation_are_refused():
    odd = [header(50, path="shape", rows=256), tilted(12, 3, path="turned")]
    series = ordered([*stack([0, 5, 10, 15]), *odd])
    assert series.positions == (0, 5, 10, 15)
    assert [(e.code, e.file) for e in series.entries] == [
        (Code.OTHER_SHAPE, "shape"),
        (Code.OTHER_ORIENTATION, "turned"),
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
    positions = [0, 4, 8, 12, 17.5, 24.5]
    series = ordered([header(z, thickness=t) for z, t in zip(positions, thickness, strict=True)])
    assert codes(series) == [Code.SPACING_CHANGES]


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
    assert choose_series([series])[1] == "plain, 1 slice, 0 mm; the only series"


# The choice


def chosen(*series: Series) -> tuple[str, str]:
    picked, reason, entries = choose_series(series)
    assert choose_series(series[::-1])[:2] == (picked, reason)
    assert {e.code for e in entries} <= {Code.SERIES_NOT_CHOSEN}
    assert len(entries) == len(series) - 1
    return picked.series_uid, reason


def test_choice_as_in_cq500():
    picked, reason = chosen(
        series_of("thin", 250, 0.625, description="CT PRE CONTRAST THIN"),
        series_of("thick", 32, 5.0, description="CT PRE CONTRAST 5MM"),
        series_of("post", 33, 5.0, description="CT POST CONTRAST"),
        series_of("bone", 34, 5.0, description="CT BONE"),
    )
    assert picked == "thick"
    assert reason == "plain, 5.0 mm, 32 slices, 155 mm; 2 of 4 series are post-contrast, bone or not axial"


def test_entry_for_a_series_that_is_not_chosen():
    other = ordered(
        [*stack([0, 5, 10], series_uid="b", description="CT BONE"), header(5, number=9, series_uid="b")]
    )
    _, _, (entry,) = choose_series([series_of("a", 32, 5.0), other])
    assert (entry.scan, entry.file, entry.code) == ("study", "", Code.SERIES_NOT_CHOSEN)
    assert entry.detail == "series 'CT BONE' (b), 4 files: bone, 5.0 mm, 3 slices, 10 mm, 1 duplicate"


def test_the_only_series_is_always_chosen():
    assert chosen(series_of("a", 3, 10, description="CT BONE POST CONTRAST"))[0] == "a"


def test_no_series_raises():
    with pytest.raises(ValueError, match="at least one series"):
        choose_series([])


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (series_of("z", 32, 5.0), series_of("a", 32, 5.0, contrast=True)),
        (series_of("z", 32, 5.0), series_of("a", 32, 5.0, kernel="BONEPLUS")),
        (series_of("z", 32, 5.0), series_of("a", 32, 5.0, kernel="H60s")),
        (series_of("z", 32, 5.0, kernel="FC68"), series_of("a", 40, 5.0, kernel="FC81")),
        (series_of("z", 32, 5.0, kernel="H31s"), series_of("a", 40, 5.0, kernel="Hr64h\\3")),
        (series_of("z", 22, 7.0), series_of("a", 32, 5.0, contrast=True)),
        (series_of("z", 32, 5.0), series_of("a", 260, 0.625)),
        (series_of("z", 50, 2.5), series_of("a", 260, 0.625)),
        (series_of("z", 24, 7.0), series_of("a", 260, 0.625)),
        (series_of("z", 260, 0.625), series_of("a", 17, 10.0)),
        (series_of("z", 32, 5.0), series_of("a", 24, 7.0)),
        (series_of("z", 260, 0.625), series_of("a", 14, 5.0)),  # 65 mm are not a head
        (series_of("z", 32, 5.0), series_of("a", 31, 5.0)),
        (series_of("z", 32, 5.0, kernel="BONE"), series_of("a", 32, 5.0, contrast=True)),
        (series_of("z", 18, 5.0), series_of("a", 32, 5.0, contrast=True)),  # 85 mm plain
        (series_of("z", 32, 5.0, contrast=True), series_of("a", 2, 5.0)),  # a plain stub
        (series_of("z", 32, 5.0, contrast=True), coronal("a", 60, 4.0)),
        (series_of("z", 260, 0.625), ordered(stack([0, 5, 10, 15, 40, *range(45, 150, 5)], series_uid="a"))),
        (
            series_of("z", 30, 5.0),
            ordered([*stack(range(0, 160, 5), series_uid="a"), header(5, number=99, series_uid="a")]),
        ),
    ],
)
def test_preferences(better, worse):
    assert chosen(better, worse)[0] == "z"


def test_reason_names_the_lack_of_a_plain_series():
    _, reason = chosen(series_of("a", 32, 5.0, contrast=True), series_of("b", 2, 5.0))
    assert reason.startswith("post-contrast, 5.0 mm, 32 slices, 155 mm; 1 of 2 series are post-contrast")
    assert reason.endswith("and the plain ones cover less than 60 mm")


def test_coronal_series_are_ordered_and_named():
    series = coronal("a", 40, 4.0)
    assert (len(series.headers), series.spacing, series.extent) == (40, 4.0, 156.0)
    assert series.entries == ()
    assert choose_series([series])[1].startswith("not axial, 4.0 mm, 40 slices, 156 mm")


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("CT PLAIN", "plain"),
        ("CT PRE CONTRAST THIN", "plain"),
        ("Non-Contrast Head", "plain"),
        ("HEAD W/O CONTRAST", "plain"),
        ("UNENHANCED", "plain"),
        ("HEAD_WITHOUT_IV_CONTRAST", "plain"),
        ("Post Fossa 2.5mm", "plain"),
        ("CT POST CONTRAST-2", "post-contrast"),
        ("CE_5MM", "post-contrast"),
        ("HEAD C+", "post-contrast"),
        ("CTA HEAD", "post-contrast"),
        ("5mm POST", "post-contrast"),
        ("CT BONE", "bone"),
        ("Temporal bones", "bone"),
        ("BONE POST CONTRAST", "post-contrast bone"),
    ],
)
def test_descriptions(description, kind):
    assert choose_series([series_of("a", 32, 5.0, description=description)])[1].split(",")[0] == kind


def test_folder_stands_for_a_missing_description():
    series = ordered([header(5 * i, path=f"scan/CT BONE/CT{i:06d}.dcm") for i in range(30)])
    assert choose_series([series])[1].startswith("bone, 5.0 mm")


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


def test_groups_do_not_span_a_gap():
    series = ordered(stack([0, 1, 2, 3, 4, 5, 6, 20, 21, 22, 23, 24]))
    assert codes(series) == [Code.GAP]
    assert average_groups(series) == [(0, 1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11)]
    assert average_groups(ordered(stack([0, 10, 11, 12, 13, 14]))) == [(0,), (1, 2, 3, 4, 5)]


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
    series = ordered(read_header(path) for path in paths)
    assert [h.instance_number for h in series.headers] == list(range(1, 29))
    assert [h.thickness for h in series.headers] == [4.0] * 14 + [7.0] * 14
    steps = [b - a for a, b in zip(series.positions, series.positions[1:], strict=False)]
    assert steps[:13] == pytest.approx([4.0] * 13, abs=0.01)
    assert steps[13] == pytest.approx(1.08, abs=0.01)
    assert steps[14:] == pytest.approx([7.0] * 13, abs=0.01)
    assert codes(series) == [Code.SPACING_CHANGES, Code.TILTED]
    assert "13 x 4.00, 1 x 1.08, 13 x 7.00" in series.entries[0].detail
    assert "18.5 degrees" in series.entries[1].detail
    assert (
        choose_series([series])[1] == "plain, 4.0 mm, 28 slices, 144 mm, 1 spacing-changes; the only series"
    )
    assert average_groups(series) == [(i,) for i in range(28)]
