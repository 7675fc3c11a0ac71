"""Series of a study: those that are divided, and groups to average."""

import random
from dataclasses import replace

import pytest

from ich_mil.ledger import Code
from ich_mil.study.files.header import SliceHeader, read_headers
from ich_mil.study.series import average_groups, group_series
from ich_mil.study.series_choice import reason_for
from tests.study.headers import codes, header, ordered, part, parts, series_of, stack, tilt_slab


def test_studies_and_series_are_kept_apart():
    headers = stack([0, 5]) + stack([1, 6, 11], series_uid="b") + stack([2], study_uid="other")
    studies = group_series(headers)
    found = {study: [(s.series_uid, len(s.headers)) for s in series] for study, series in studies.items()}
    assert found == {"study": [("b", 3), ("series", 2)], "other": [("series", 1)]}


# Several reconstructions under one series UID


@pytest.mark.parametrize("change", [{"kernel": "BONE"}, {"contrast": True}])
def test_reconstructions_of_the_same_slices_are_divided(change):
    other = stack(range(0, 150, 5), **({"kernel": "SOFT"} | change))
    study = group_series([*other, *stack(range(0, 60, 5), kernel="SOFT")])["study"]
    found = {(s.headers[0].kernel, s.headers[0].contrast): (s.positions, s.entries) for s in study}
    kind = change.get("kernel", "SOFT"), "contrast" in change
    assert found == {kind: (tuple(range(0, 150, 5)), ()), ("SOFT", False): (tuple(range(0, 60, 5)), ())}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"kvp": 80.0}, {"kvp": 140.0}),
        ({"image_type": "DERIVED\\PRIMARY\\AXIAL\\MONO"}, {"image_type": "ORIGINAL\\PRIMARY\\AXIAL"}),
        ({"exposure": 250.0}, {"exposure": 60.0}),
        ({"kvp": 120.0}, {"kvp": None}),
    ],
)
def test_volumes_at_the_same_positions_are_divided(first, second):
    """Instance numbers of both run from 1, so that only the attribute tells them apart."""
    one = [replace(h, sop_uid=f"9.{i % 2}.{i}") for i, h in enumerate(stack(range(0, 150, 5), **first))]
    other = [
        replace(h, sop_uid=f"9.{1 - i % 2}.{i}.1") for i, h in enumerate(stack(range(0, 150, 5), **second))
    ]
    headers = [*one, *other]
    random.Random(0).shuffle(headers)
    study = group_series(headers)["study"]
    assert {frozenset(s.headers) for s in study} == {frozenset(one), frozenset(other)}
    assert [s.entries for s in study] == [(), ()]


def test_volumes_of_two_voltages_and_two_kernels_are_divided():
    kinds = [(kvp, kernel) for kvp in (80.0, 140.0) for kernel in ("SOFT", "BONE")]
    headers = [
        h for kvp, kernel in kinds for h in stack(range(0, 150, 5), kvp=kvp, kernel=kernel, path=f"{kvp}")
    ]
    found = [{(h.kvp, h.kernel) for h in s.headers} for s in group_series(headers)["study"]]
    assert sorted(map(list, found)) == sorted([kind] for kind in kinds)


def test_exposure_that_changes_by_slice_divides_nothing():
    modulated = [replace(h, exposure=100.0 + i % 7) for i, h in enumerate(stack(range(0, 150, 5)))]
    double = replace(modulated[3], sop_uid="9.9", exposure=99.0)
    assert codes(ordered([*modulated, double])) == [Code.DUPLICATE]
    halves = stack(range(0, 75, 5), kvp=140.0) + stack(range(75, 150, 5), kvp=120.0)
    assert len(ordered(halves).headers) == 30


def test_reconstructions_that_share_half_of_their_slices():
    low, high, upper = range(0, 50, 5), range(20, 70, 5), range(30, 80, 5)
    assert passes(stack(low, kernel="BONE"), stack(high, kernel="SOFT")) == [tuple(low), tuple(high)]
    together = ordered([*stack(low, kernel="BONE"), *stack(upper, kernel="SOFT", path="z")])
    assert together.positions[:6] == (0, 5, 10, 15, 20, 25)


@pytest.mark.parametrize("shift", [0.1, 2.5, 4.9, 12.0])
@pytest.mark.parametrize(
    "other", [{"kernel": "BONE"}, {"contrast": True}, {"kvp": 80.0}, {"image_type": "DERIVED\\PRIMARY\\VMI"}]
)
def test_volumes_with_positions_of_their_own_are_divided(shift, other):
    ours, theirs = range(0, 150, 5), [z + shift for z in range(0, 150, 5)]
    found = passes(stack(ours, kvp=120.0), stack(theirs, path="z", **({"kvp": 120.0} | other)))
    assert sorted(found) == [tuple(ours), tuple(theirs)]
    some = [replace(h, **other) if i in (2, 3, 9, 11, 12, 20) else h for i, h in enumerate(stack(ours))]
    assert len(ordered(some).headers) == len(some)  # a header that changes from slice to slice
    in_turn = [replace(h, **other) if i % 2 else h for i, h in enumerate(stack(ours, thickness=5.0))]
    assert len(ordered(in_turn).headers) == len(in_turn)


# A scan and its repeat under one series UID


def passes(*slices: list[SliceHeader]) -> list[tuple[float, ...]]:
    (study,) = group_series(one for some in slices for one in some).values()
    return [one.positions for one in study]


def taken(positions, acquisition: int | None, **changes: object) -> list[SliceHeader]:
    return stack(positions, acquisition=acquisition, **({"thickness": 5.0} | changes))


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0, 2.5, 4.0])
def test_repeat_under_one_uid_is_divided(shift):
    again = [z + shift for z in range(0, 150, 5)]
    repeat = taken(again, 2, path="z")
    assert passes(taken(range(0, 150, 5), 1), repeat) == [tuple(range(0, 150, 5)), tuple(again)]
    assert passes(taken(range(0, 150, 5), 1), repeat[:8]) == [tuple(range(0, 150, 5)), tuple(again[:8])]


@pytest.mark.parametrize(
    "slices",
    [
        [header(5 * k, number=k, acquisition=k, thickness=5.0) for k in range(30)],  # each slice
        [header(5 * k, number=k, acquisition=k // 4, thickness=5.0) for k in range(30)],  # table positions
        [header(5 * k, number=k, acquisition=k % 2, thickness=5.0) for k in range(30)],  # side by side
        [header(0.625 * k, number=k, acquisition=k, thickness=1.25) for k in range(30)],  # overlapping
        [header(0.625 * k, number=k, acquisition=k // 15, thickness=1.25) for k in range(30)],
        [header(2.5 * k, number=k, acquisition=k % 2, thickness=None) for k in range(30)],  # not known
        [header(2.5 * k, number=k, acquisition=None, thickness=5.0) for k in range(30)],
        [*taken(range(0, 150, 5), 1), *taken([72, 77, 82], 2)],  # three slices are no pass
        [*taken(range(0, 150, 5), 1), *taken([52, 57, 62, 72, 77], 2)],  # not regular
        [*taken(range(0, 75, 5), 1), *taken(range(75, 150, 5), 2)],  # the next slab
    ],
)
def test_acquisition_numbers_without_a_repeat(slices):
    series = ordered(slices)
    assert series.positions == tuple(sorted(h.position[2] for h in slices))
    assert Code.SERIES_JOINED not in codes(series)  # not divided and joined again


def test_order_of_series_under_one_uid():
    low, high = tuple(range(0, 150, 5)), tuple(range(2, 150, 5))
    assert passes(taken(high, 1, path="a"), taken(low, 2, path="z")) == [high, low]
    assert passes(stack(low, kernel="A", path="z"), stack(low[5:], kernel="B", path="a")) == [low, low[5:]]


def test_slabs_and_a_repeat_of_the_whole():
    whole = taken(range(2, 150, 5), 3, path="z")
    slabs = [taken(range(0, 75, 5), 1, path="a"), taken(range(75, 150, 5), 2, path="a")]
    assert passes(*slabs, whole) == [tuple(range(0, 150, 5)), tuple(range(2, 150, 5))]


def test_continued_passes_are_joined_again():
    low, whole, high = taken(range(0, 75, 5), 1), taken(range(2, 150, 5), 2), taken(range(75, 150, 5), 3)
    detail = "one scan under 2 passes, continued: series (30 files)"
    high = [replace(h, path=f"high/{h.path}") for h in high]
    assert sorted(parts(low, whole, high)) == [("series", 30, []), ("series", 30, [detail])]


def test_acquisitions_of_two_tilts_are_no_repeat():
    # along the normal of the first the corners of the second lie 44 mm lower, among those of the first
    first = tilt_slab(range(0, 40, 4), 20, 0, acquisition=1, thickness=4.0)
    second = tilt_slab(range(44, 140, 4), 0, 10, acquisition=2, thickness=4.0)
    assert len(ordered([*first, *second]).headers) == 34


# Groups to average


@pytest.mark.parametrize(
    ("n", "step", "sizes"),
    [
        *((6, step, [1] * 6) for step in (5.0, 3.0, 2.5)),
        *((6, 2.0, [2, 2, 2]), (8, 1.25, [4, 4]), (10, 1.0, [5, 5]), (320, 0.625, [8] * 40)),
        *((11, 1.0, [6, 5]), (3, 0.625, [3])),
    ],
)
def test_group_sizes(n, step, sizes):
    groups = average_groups(series_of("a", n, step))
    assert [len(group) for group in groups] == sizes
    assert [i for group in groups for i in group] == list(range(n))
    assert [len(g) for g in average_groups(series_of("a", 9, 1.0), thickness=3.0)] == [3, 3, 3]
    with pytest.raises(ValueError, match="positive"):
        average_groups(series_of("a", 9, 1.0), thickness=0.0)


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


def test_thickness_and_step_of_most_slices_count():
    slices = [header(z, number=z, thickness=5.0 if z == 4 else 1.0) for z in range(10)]
    assert average_groups(ordered(slices)) == [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]
    uneven = ordered(stack([0, 1, 2.15, 3.3, 4.45, 5.75]))  # 1.3 mm is not alike to the first step
    assert average_groups(uneven) == [(0, 1, 2), (3, 4, 5)]


def test_groups_do_not_span_a_gap():
    series = ordered(stack([0, 1, 2, 3, 4, 5, 6, 20, 21, 22, 23, 24]))
    assert codes(series) == [Code.GAP]
    assert average_groups(series) == [(0, 1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11)]
    assert average_groups(ordered(stack([0, 10, 11, 12, 13, 14]))) == [(0,), (1, 2, 3, 4, 5)]


def test_groups_span_interleaved_parts_alone():
    series = ordered([*part("a", *range(0, 13), thickness=1.0), *part("b", *range(13, 40), thickness=1.0)])
    assert codes(series) == [Code.SERIES_JOINED]
    groups = average_groups(series)
    assert [len(group) for group in groups] == [5, 4, 4, 6, 6, 5, 5, 5]
    assert (groups[2], groups[3]) == ((9, 10, 11, 12), (13, 14, 15, 16, 17, 18))
    odd, even = part("a", *range(0, 40, 2), thickness=1.0), part("b", *range(1, 40, 2), thickness=1.0)
    assert average_groups(ordered([*odd, *even])) == [tuple(range(i, i + 5)) for i in range(0, 40, 5)]


@pytest.mark.realdata
def test_ge_head(shared_data):
    paths = sorted((shared_data / "ge_head_ct").glob("*.dcm"))
    random.Random(1).shuffle(paths)
    series = ordered(header for path in paths for header in read_headers(path))
    assert [h.instance_number for h in series.headers] == list(range(1, 29))
    assert [h.thickness for h in series.headers] == [4.0] * 14 + [7.0] * 14
    assert codes(series) == [Code.SPACING_CHANGES, Code.TILTED]
    assert "13 x 4.00, 1 x 1.08, 13 x 7.00" in series.entries[0].detail
    assert "18.5 degrees" in series.entries[1].detail
    reason = "plain, 4.0 mm, 28 slices, 144 mm, 1 spacing-changes; the only series"
    assert reason_for(series, [series]) == reason
    assert average_groups(series) == [(i,) for i in range(28)]
