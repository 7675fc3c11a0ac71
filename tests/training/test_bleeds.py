"""Synthetic bleeds: nothing else changes, blood is blood, grey is tissue, both have the same shapes."""

import numpy as np
import pytest
import torch
from scipy.ndimage import distance_transform_edt

from ich_mil.training.bleeds import (
    BLOOD,
    CROSS_SECTION,
    EDGE,
    GREY,
    LEAST_AREA,
    OEDEMA,
    Insertion,
    insert,
    inside_skull,
)
from ich_mil.windows import PRESETS, apply_windows
from tests.training.heads import head

HEIGHTS = np.arange(8) * 5.0


@pytest.fixture(scope="module")
def hu():
    return head()


@pytest.fixture(scope="module")
def inside(hu):
    return inside_skull(hu)


def drawn(hu, inside, seed, *, blood=True) -> Insertion:
    got = insert(hu, HEIGHTS, inside, np.random.default_rng(seed), blood=blood)
    assert got is not None
    return got


def test_inside_the_skull_is_what_bone_encloses(hu, inside):
    assert np.array_equal(inside, (hu > -1000) & (hu < 1000))


def test_bone_that_is_open_encloses_nothing(hu):
    open_one = hu.copy()
    open_one[:, :64, 50:78] = -1000  # a gap of 28 pixels, up to the border
    assert not inside_skull(open_one).any()


def test_a_suture_does_not_open_the_skull(hu):
    sutured = hu.copy()
    sutured[:, :20, 63:66] = np.where(hu[:, :20, 63:66] == 1000, 30, hu[:, :20, 63:66])
    assert (inside_skull(sutured).sum(axis=(1, 2)) >= inside_skull(hu).sum(axis=(1, 2))).all()


@pytest.mark.parametrize("side", range(4))
def test_a_skull_that_leaves_the_picture_encloses_nothing(hu, side):
    assert not inside_skull(np.rot90(hu[:, 40:], side, (1, 2))).any()


@pytest.mark.parametrize(("value", "columns"), [(-900, 128), (120, 128), (-900, 64)])
def test_what_is_mostly_air_or_too_bright_is_no_brain(hu, value, columns):
    other = hu.copy()
    brain = (hu > -1000) & (hu < 1000) & (np.arange(128) < columns)
    other[brain] = value
    assert not inside_skull(other).any()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("blood", [True, False])
def test_outside_the_shape_every_value_is_as_it_was_in_every_window(hu, inside, seed, blood):
    before = hu.copy()
    got = drawn(hu, inside, seed, blood=blood)
    assert np.array_equal(hu, before)  # the scan itself is not changed
    changed = got.hu != hu[got.slices]
    assert changed.any()
    assert not (changed & ~inside[got.slices]).any()  # bone, scalp, air
    # what changes much, as blood or as grey, is the shape; beyond its soft border and a rim of up to 6 mm
    # nothing changes at all
    other = drawn(hu, inside, seed, blood=not blood)
    much = np.maximum(*(np.abs(part.hu.astype(int) - hu[got.slices]) for part in (got, other))) >= 8
    mm = np.sqrt(CROSS_SECTION / inside.sum(axis=(1, 2)).max())
    for few, most, shown in zip(changed, much, got.shown, strict=True):
        if shown:
            assert (distance_transform_edt(~most)[few] <= (EDGE + 6) / mm + 2).all()
    windows = PRESETS["papers"]
    old, new = (apply_windows(torch.from_numpy(part), windows) for part in (hu[got.slices], got.hu))
    same = torch.from_numpy(~changed)[:, None].expand_as(old)
    assert torch.equal(old[same], new[same])


def test_blood_and_control_have_the_same_shapes_and_differ_in_their_fill(hu, inside):
    bright, grey = [], []
    for seed in range(20):
        one, other = (drawn(hu, inside, seed, blood=blood) for blood in (True, False))
        assert np.array_equal(one.slices, other.slices)
        assert np.array_equal(one.shown, other.shown)
        # in the core of the shape the two differ by fill against fill alone
        gap = one.hu.astype(int) - other.hu
        core = gap > 0.9 * gap.max()
        bright.append(one.hu[core].mean())
        grey.append(other.hu[core].mean())
    # slow differences of 3 HU and noise of few pixels
    assert BLOOD[0] - 4 < min(bright) < max(bright) < BLOOD[1] + 8
    assert GREY[0] - 4 < min(grey) < max(grey) < GREY[1] + 8
    assert np.mean(bright) == pytest.approx(np.mean(BLOOD), abs=5)
    assert np.mean(grey) == pytest.approx(np.mean(GREY), abs=5)


def test_the_noise_within_a_bleed_is_that_of_the_scan(hu, inside):
    roughness = []
    for seed in range(20):
        got = drawn(hu, inside, seed)
        old, new = hu[got.slices].astype(float), got.hu.astype(float)
        core = new - old > 25
        core[:, :, 1:] &= core[:, :, :-1]
        steps = [np.diff(part, axis=2, prepend=0.0)[core].std() for part in (old, new)]
        if core.sum() > 200:
            roughness.append(steps[1] / steps[0])
    assert len(roughness) > 5
    assert np.mean(roughness) == pytest.approx(1.0, abs=0.1)


def test_a_slice_shows_what_covers_enough_of_it(hu, inside):
    mm2 = CROSS_SECTION / inside.sum(axis=(1, 2)).max()
    shares = []
    for seed in range(20):
        got = drawn(hu, inside, seed)
        area = (got.hu - hu[got.slices] > 8).sum(axis=(1, 2)) * mm2
        assert got.shown.any()
        assert (area[got.shown] > LEAST_AREA / 3).all()
        shares.append(got.shown.mean())
    assert 0.5 < np.mean(shares) < 1.0


def test_slices_of_small_section_stay_as_they_are(hu, inside):
    base = inside.copy()
    base[5:, :54] = base[5:, 74:] = False  # less than a third is left
    for seed in range(12):
        assert drawn(hu, base, seed).slices.max() < 5


def test_some_lie_under_the_skull_and_some_within_the_brain(hu, inside):
    depth = np.stack([distance_transform_edt(one) for one in inside])
    nearest = []
    for seed in range(20):
        got = drawn(hu, inside, seed)
        nearest.append(depth[got.slices][got.hu - hu[got.slices] > 25].min())
    assert 0.3 < np.mean(np.array(nearest) < 2) < 0.9


def test_some_have_a_dark_rim(hu, inside):
    dark, rims = [], []
    for seed in range(30):
        got = drawn(hu, inside, seed)
        rim = got.hu - hu[got.slices] < -8
        dark.append(rim.sum() > 50)
        rims.extend(got.hu[rim] if dark[-1] else [])
    assert 0.05 < np.mean(dark) < 0.5
    assert OEDEMA[0] - 2 < np.mean(rims) < OEDEMA[1] + 2


def test_a_bleed_shrinks_towards_its_ends(hu, inside):
    ends = []
    for seed in range(40):
        got = drawn(hu, inside, seed)
        area = (got.hu - hu[got.slices] > 25).sum(axis=(1, 2))
        ends += [area[0] / area.max()] if got.slices[0] > 0 else []
    assert len(ends) > 10
    assert np.mean(ends) < 0.3


def test_the_generator_decides_alone(hu, inside):
    one, again, other = (drawn(hu, inside, seed) for seed in (3, 3, 4))
    assert np.array_equal(one.hu, again.hu)
    assert one.hu.shape != other.hu.shape or not np.array_equal(one.hu, other.hu)


def test_a_scan_without_brain_gets_none(hu):
    air = np.full_like(hu, -1000)
    rng = np.random.default_rng(0)
    assert insert(air, HEIGHTS, inside_skull(air), rng, blood=True) is None


def test_slices_far_from_the_middle_stay(hu, inside):
    """Heights count: with slices 200 mm apart one slice only can change."""
    for seed in range(10):
        got = insert(hu, HEIGHTS * 40, inside, np.random.default_rng(seed), blood=True)
        assert got is None or len(got.slices) == 1


def test_cells_of_several_pixels_keep_to_the_skull():
    large = head(slices=3, size=520).astype(np.int16)  # two pixels a cell, an odd margin is left over
    within = inside_skull(large)
    assert within.shape == (3, 260, 260)
    for seed in range(4):
        got = insert(large, np.arange(3) * 5.0, within, np.random.default_rng(seed), blood=True)
        assert got is not None
        changed = got.hu != large[got.slices]
        assert changed.any()
        assert (large[got.slices][changed] < 150).all()
        assert (large[got.slices][changed] > -1000).all()
