"""Synthetic bleeds: nothing else changes, blood is blood, grey is tissue, both have the same shapes."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.ndimage import distance_transform_edt

from ich_mil.dicom.anatomy import BONE_FROM
from ich_mil.synthetic import bleeds
from ich_mil.synthetic.bleeds import BLOOD, CROSS_SECTION, EDGE, GREY, OEDEMA, Insertion, insert, inside_skull
from ich_mil.window_presets import PRESETS
from ich_mil.windows import apply_windows
from tests.training.heads import head

HEIGHTS = np.arange(8) * 5.0
TURNS = np.linspace(0, np.pi, 37)


@pytest.fixture(scope="module")
def hu():
    return head()


@pytest.fixture(scope="module")
def inside(hu):
    return inside_skull(hu)


@pytest.fixture(scope="module")
def pairs(hu, inside):
    """Bleeds and controls of the same 24 states of the generator."""
    return [tuple(drawn(hu, inside, seed, blood=blood) for blood in (True, False)) for seed in range(24)]


def drawn(hu, inside, seed, *, blood=True) -> Insertion:
    got = insert(hu, HEIGHTS, inside, np.random.default_rng(seed), blood=blood)
    assert got is not None
    return got


def test_inside_the_skull_is_what_bone_encloses(hu, inside):
    assert np.array_equal(inside, (hu > -1000) & (hu < 1000))
    sutured = hu.copy()
    sutured[:, :20, 63:66] = np.where(hu[:, :20, 63:66] == 1000, 30, hu[:, :20, 63:66])
    assert (inside_skull(sutured).sum(axis=(1, 2)) >= inside.sum(axis=(1, 2))).all()
    thick = np.full((1, 128, 128), -1000, np.int16)
    thick[:, 4:-4, 4:-4] = BONE_FROM
    thick[:, 40:88, 40:88] = 35
    within = inside_skull(thick)
    assert within[:, 43:85, 43:85].all()
    assert not within[thick != 35].any()
    thin = np.full((1, 512, 512), 35, np.int16)  # walls thinner than a cell
    thin[:, [101, 400], 101:401] = thin[:, 101:401, [101, 400]] = 1000
    within = inside_skull(thin)[0]
    assert [np.flatnonzero(within.any(axis))[[0, -1]].tolist() for axis in (0, 1)] == [[51, 199]] * 2


def test_an_open_skull_and_what_is_not_brain_enclose_nothing(hu):
    opened = hu.copy()
    opened[:, :64, 50:78] = -1000  # a gap of 28 pixels, up to the border
    assert not inside_skull(opened).any()
    for side in range(4):  # a skull that leaves the image
        assert not inside_skull(np.rot90(hu[:, 40:], side, (1, 2))).any()
    for value, columns in ((-900, 128), (120, 128), (-900, 64)):
        other = hu.copy()
        other[(hu > -1000) & (hu < 1000) & (np.arange(128) < columns)] = value
        assert not inside_skull(other).any()
    air = np.full_like(hu, -1000)
    assert insert(air, HEIGHTS, inside_skull(air), np.random.default_rng(0), blood=True) is None


def test_outside_the_shape_every_value_is_unchanged_in_every_window(hu, inside, pairs):
    mm = np.sqrt(CROSS_SECTION / inside.sum(axis=(1, 2)).max())
    assert np.array_equal(hu, head())  # the scan itself is not modified
    for one, other in pairs[:12]:
        old = hu[one.slices].astype(int)
        much = np.maximum(abs(one.hu - old), abs(other.hu - old)) >= 8
        for got in (one, other):
            changed = got.hu != old
            assert changed.any()
            assert not (changed & ~inside[got.slices]).any()  # bone, scalp, air
            # beyond the soft border and a rim of up to 6 mm nothing changes
            for few, most, shown in zip(changed, much, got.shown, strict=True):
                if shown:
                    assert (distance_transform_edt(~most)[few] <= (EDGE + 6) / mm + 2).all()
            both = (torch.from_numpy(part) for part in (hu[got.slices], got.hu))
            pictures = [apply_windows(part, PRESETS["papers"]) for part in both]
            same = torch.from_numpy(~changed)[:, None].expand_as(pictures[0])
            assert torch.equal(pictures[0][same], pictures[1][same])


def test_blood_and_control_have_the_same_shapes_and_differ_in_their_fill(pairs):
    bright, grey = [], []
    for one, other in pairs:
        assert np.array_equal(one.slices, other.slices)
        assert np.array_equal(one.shown, other.shown)
        # in the core of the shape the two differ by fill against fill alone
        gap = one.hu.astype(int) - other.hu
        core = gap > 0.9 * gap.max()
        bright.append(one.hu[core].mean())
        grey.append(other.hu[core].mean())
    for found, fill in ((bright, BLOOD), (grey, GREY)):
        assert fill[0] - 4 < min(found) < max(found) < fill[1] + 8  # slow variation of 3 HU and noise
        assert np.mean(found) == pytest.approx(np.mean(fill), abs=5)


def test_the_noise_within_a_bleed_is_that_of_the_scan(hu, pairs):
    roughness = []
    for got, _ in pairs:
        old, new = hu[got.slices].astype(float), got.hu.astype(float)
        core = new - old > 25
        core[:, :, 1:] &= core[:, :, :-1]
        steps = [np.diff(part, axis=2, prepend=0.0)[core].std() for part in (old, new)]
        if core.sum() > 200:
            roughness.append(steps[1] / steps[0])
    assert len(roughness) > 5
    assert np.mean(roughness) == pytest.approx(1.0, abs=0.1)


def test_slices_of_small_section_are_ignored(hu, inside):
    base = inside.copy()
    base[:3, :54] = base[:3, 74:] = False  # less than a third is left
    for seed in range(4):
        got = drawn(hu, base, seed)
        above = insert(hu[3:], HEIGHTS[3:], base[3:], np.random.default_rng(seed), blood=True)
        assert np.array_equal(got.slices, above.slices + 3)
        assert np.array_equal(got.hu, above.hu)


def test_place_rim_and_ends(hu, inside, pairs):
    """Some lie under the skull, some have a dark rim; all shrink towards their ends."""
    depth = np.stack([distance_transform_edt(one) for one in inside])
    nearest, dark, rims, ends, above = [], [], [], [], 0
    for got, _ in pairs:
        rise = got.hu - hu[got.slices]
        nearest.append(depth[got.slices][rise > 25].min())
        rim, bright = rise < -8, rise > 8
        above += (rim.any(axis=(1, 2)) & ~bright.any(axis=(1, 2))).sum()
        dark.append(rim.sum() > 50)
        rims.extend(got.hu[rim] if dark[-1] else [])
        area = (rise > 25).sum(axis=(1, 2))
        ends += [area[0] / area.max()] if got.slices[0] > 0 else []
    assert 0.3 < np.mean(np.array(nearest) < 2) < 0.9
    assert 0.05 < np.mean(dark) < 0.4
    assert above > 2, "no rim above or below"
    assert OEDEMA[0] - 2 < np.mean(rims) < OEDEMA[1] + 2
    assert len(ends) > 6
    assert np.mean(ends) < 0.3


class Shape(NamedTuple):
    """A bleed in brain of 35 HU without noise, where blood less control is the shape alone.

    Attributes:
        share: (k, H, W) fraction of each pixel inside the shape.
        depth: (k, H, W) depth of each pixel under the skull [mm].
        pixel: side of a pixel [mm].
    """

    got: Insertion
    share: np.ndarray
    depth: np.ndarray
    pixel: float

    @property
    def thickness(self):
        return self.depth[self.share > 0.5].max()

    @property
    def length(self):
        """Largest extent on the slice that has most of the shape."""
        ends = np.argwhere(max(self.share > 0.5, key=np.sum)) @ [np.sin(TURNS), np.cos(TURNS)]
        return (ends.max(0) - ends.min(0)).max() * self.pixel


@lru_cache(maxsize=1)
def quiet(size, slices):
    """A head without noise, and the inside of its skull."""
    hu = head(slices, size)
    hu[abs(hu) < 1000] = 35
    return hu, inside_skull(hu)


def shape(seed, *, size=128, heights=HEIGHTS):
    hu, within = quiet(size, len(heights))
    one, other = (insert(hu, heights, within, np.random.default_rng(seed), blood=b) for b in (True, False))
    gap = one.hu.astype(float) - other.hu
    pixel = np.sqrt(CROSS_SECTION / within.sum(axis=(1, 2)).max()) / (hu.shape[1] // within.shape[1])
    depth = [distance_transform_edt(abs(slice_) < 1000) * pixel for slice_ in hu[one.slices]]
    return Shape(one, gap / np.median(gap[gap > 0.9 * gap.max()]), np.stack(depth), pixel)


@pytest.fixture(scope="module")
def shapes():
    return [shape(seed) for seed in range(30)]


@pytest.fixture(scope="module")
def flat(shapes):
    """Shapes that lie against the skull."""
    return [one for one in shapes if one.depth[one.share > 0.5].min() < 2 * one.pixel and one.thickness < 16]


def test_a_slice_is_shown_if_the_shape_covers_40_mm2_of_it(shapes):
    thin = [shape(seed, heights=np.arange(20) * 2.0) for seed in range(4)]
    shown = np.concatenate([one.got.shown for one in shapes + thin])
    area = np.concatenate([(one.share > 0.5).sum(axis=(1, 2)) * one.pixel**2 for one in shapes + thin])
    assert shown[area > 45].all()
    assert not shown[area < 35].any()
    assert 0.5 < shown.mean() < 1


def test_the_fill_varies_slowly_also_next_to_bone(shapes):
    deviations, steps = [], []
    for one in shapes:
        core = one.share > 0.97
        values = one.got.hu[core].astype(float)
        assert BLOOD[0] - 2 < values.mean() < BLOOD[1] + 2
        assert abs(values - values.mean()).max() < 15  # 5 deviations
        deviations.append(values.std())
        steps.append(np.diff(one.got.hu, axis=2)[core[..., 1:] & core[..., :-1]].std())
    assert np.mean(deviations) == pytest.approx(3, rel=0.15)
    assert np.mean(steps) < 0.7 * np.mean(deviations)


def test_under_the_skull_there_are_lenses_and_longer_thinner_crescents(flat):
    assert 0.45 < len(flat) / 30 < 0.75
    length, thickness = (np.array([getattr(one, name) for one in flat]) for name in ("length", "thickness"))
    # a lens has 4-14 mm by 30-70 mm, a crescent 3-9 mm by 60-130 mm; the ends are thinner than a pixel
    assert 3 < thickness.min() < 5
    assert 10 < thickness.max() < 14 + 1.6
    assert 20 < length.min() < 40
    assert 80 < length.max() < 130
    assert 40 < np.median(length) < 60
    assert (thickness[length > 72] < 9 + 1.6).all()
    for one in flat:
        slices = zip(one.share, one.depth, one.got.shown, strict=True)
        nearest = [depth[share > 0.5].min() for share, depth, shown in slices if shown]
        assert max(nearest) < 2.1 * one.pixel, "it does not follow the skull"
        thinner = one.length * one.thickness > (one.share > 0.5).sum(axis=(1, 2)).max() * one.pixel**2
        assert thinner, "it is as thick at its ends"


@pytest.mark.parametrize("seed", range(6))
def test_under_the_skull_depths_are_those_of_the_whole_slice(inside, seed):
    """Thickness and depth, together squared, are T² - T² ρ²: of second degree in the place, everywhere."""
    mm = np.sqrt(CROSS_SECTION / inside.sum(axis=(1, 2)).max())
    near, field, rim = bleeds._under_skull(inside, HEIGHTS, 4, mm, np.random.default_rng(seed))
    assert rim == 0
    depth = np.stack([distance_transform_edt(one) for one in inside[near]]) * mm
    up, y, x = np.broadcast_arrays(HEIGHTS[near, None, None], *np.ogrid[:128, :128])
    terms = np.stack([np.ones(field.shape), x, y, x**2 + y**2, up, up**2], axis=-1)
    drawn = inside[near] & (field > -EDGE - mm)
    square = (field + depth)[drawn] ** 2
    found, *_ = np.linalg.lstsq(terms[drawn], square)
    assert terms[drawn] @ found == pytest.approx(square, abs=1e-6)
    left_out = inside[near] & ~drawn & (terms @ found > 1e-6)
    assert (np.sqrt((terms @ found)[left_out]) - depth[left_out] <= -EDGE - mm + 1e-6).all()


def test_a_slice_without_skull_nearby_has_no_shape_under_it():
    away = np.hypot(*(np.mgrid[:256, :256] - 128.0))
    inside = away < np.array([15.0, 100.0])[:, None, None]  # the second is far wider
    for seed in range(20):
        near, field, _ = bleeds._under_skull(
            inside, np.array([0.0, 5.0]), 0, 0.8, np.random.default_rng(seed)
        )
        assert near.tolist() == [0, 1]
        assert (field[0] > 0).any()
        assert (field[1] < -EDGE).all()


def test_in_the_brain_there_are_ragged_ellipsoids_of_any_orientation(shapes, flat):
    overlaps, tilts, free = [], [], []
    for one in (one for one in shapes if not any(one is other for other in flat)):
        most = max(one.share > 0.5, key=np.sum)
        away = np.argwhere(np.ones_like(most)) - np.argwhere(most).mean(0)
        axes = np.cov(away[most.ravel()].T)
        ellipse = (away @ np.linalg.inv(axes) * away).sum(1).reshape(most.shape) < 4
        overlaps.append((ellipse & most).sum() / (ellipse | most).sum())
        tilts.append(axes[0, 1] / np.sqrt(axes[0, 0] * axes[1, 1]))
        free.append(one.depth[one.share > 0.5].min() > 5)
        assert 10 < one.length < 45  # axes of 10 to 36 mm, and ragged
        assert 5 * one.got.shown.sum() <= 1.2 * one.length + 5, "higher than it is long"
    assert 0.8 < np.mean(overlaps) < 0.9
    assert np.std(tilts) > 0.25
    assert np.mean(free) > 0.7


def test_lengths_and_heights_are_in_mm(shapes):
    for seed in (0, 2, 9):
        coarse, fine = shape(seed, size=100), shape(seed, size=200)
        assert fine.thickness == pytest.approx(coarse.thickness, abs=coarse.pixel)
        assert fine.length == pytest.approx(coarse.length, abs=3 * coarse.pixel)
    far = [shape(seed, heights=2 * HEIGHTS) for seed in range(20)]
    near, apart = ([int(one.got.shown.sum()) for one in some] for some in (shapes[:20], far))
    assert sum(apart) == pytest.approx(0.6 * sum(near), rel=0.15)


@pytest.mark.parametrize("size", [500, 520])
def test_the_border_is_1_5_mm_wide_and_smooth(size):
    """Cells of one pixel and of two."""
    steps, outer, slow = [], [], []
    for seed in (0, 4, 5):
        one = shape(seed, size=size, heights=HEIGHTS[:2])
        for share, depth, hu in zip(one.share, one.depth, one.got.hu.astype(float), strict=True):
            border = (share > 0.1) & (share < 0.9) & (depth > 3 * one.pixel)
            step = np.hypot(np.diff(share, axis=0, append=0), np.diff(share, axis=1, append=0))
            steps.extend(step[border] / one.pixel)
            outer.extend(share[border] < 0.5)
            assert np.ptp(np.argwhere(share > 0.1), axis=0).max() * one.pixel < one.length + 5
            core, apart = share > 0.97, round(2 / one.pixel)
            both = core[:, apart:] & core[:, :-apart]
            slow.extend((hu[:, apart:] - hu[:, :-apart])[both] / 3)
    assert 1 / np.median(steps) == pytest.approx(1.5, rel=0.2)
    assert np.mean(np.array(steps) < 0.1) < 0.12
    assert np.mean(outer) == pytest.approx(0.5, abs=0.1)
    # texture of Gaussian weights of 2 mm: places 2 mm apart correlate by exp(-1/4)
    assert np.var(slow) == pytest.approx(2 - 2 * np.exp(-0.25), rel=0.3)


def test_narrow_room_distant_slices_and_the_generator(hu, inside, pairs):
    thin = inside & (np.arange(128) % 6 < 4)  # nowhere deep
    assert any(insert(hu, HEIGHTS, thin, np.random.default_rng(seed), blood=True) for seed in range(10))
    for seed in range(10):  # of slices 200 mm apart only one can change
        got = insert(hu, HEIGHTS * 40, inside, np.random.default_rng(seed), blood=True)
        assert got is None or len(got.slices) == 1
    assert np.array_equal(drawn(hu, inside, 3).hu, pairs[3][0].hu)
    assert not np.array_equal(drawn(hu, inside, 3).hu, pairs[4][0].hu)


def test_cells_of_several_pixels_keep_to_the_skull():
    large = head(slices=3, size=520).astype(np.int16)  # two pixels a cell, an odd margin is left over
    within = inside_skull(large)
    assert within.shape == (3, 260, 260)
    for seed in range(4):
        got = insert(large, np.arange(3) * 5.0, within, np.random.default_rng(seed), blood=True)
        values = large[got.slices][got.hu != large[got.slices]]
        assert -1000 < values.min() <= values.max() < 150
