"""What lies inside bone, by hand on drawn cells; heads that must pass and other things that must not."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from ich_mil.phantoms.head import SITE_A, SITE_B
from ich_mil.phantoms.study import SeriesPlan, make_series
from ich_mil.study import anatomy
from ich_mil.study.anatomy import brain_area, head_cut_off, head_refusal
from ich_mil.study.files.header import read_headers
from ich_mil.study.pixels.read import read_slice

AIR, FAT, MUSCLE, BRAIN, BONE = -1000, -100, 55, 35, 900
RNG_SEED = 0


class Drawing:
    """A picture of `size` pixels and `fov` mm with ellipses laid over each other, centred, y downwards."""

    def __init__(self, *, fov: float, size: int = 512) -> None:
        self.pixel = fov / size
        self.y, self.x = (np.mgrid[:size, :size] + 0.5) * self.pixel - fov / 2
        self.hu = np.full((size, size), AIR, np.float32)

    def ellipse(self, hu, x, y, a, b, *, turn=0.0):
        t = math.radians(turn)
        u = (self.x - x) * math.cos(t) + (self.y - y) * math.sin(t)
        v = (self.y - y) * math.cos(t) - (self.x - x) * math.sin(t)
        self.hu[(u / a) ** 2 + (v / b) ** 2 < 1] = hu

    def series(self, *, noise=0.0, n=5):
        rng = np.random.default_rng(RNG_SEED)
        hu = self.hu + noise * rng.standard_normal((n, *self.hu.shape))
        return np.clip(np.rint(hu), -1024, 3095).astype(np.int16), (self.pixel, self.pixel)


def spine(drawing, y):
    drawing.ellipse(300, 0, y, 20, 15)
    drawing.ellipse(500, 0, y + 24, 15, 13)
    drawing.ellipse(30, 0, y + 22, 10, 8)
    for side in (-1, 1):
        drawing.ellipse(400, side * 24, y + 24, 12, 4)


def ribs(drawing, a, b, count):
    for angle in np.linspace(25, 160, count):
        for side in (-1, 1):
            x, y = side * a * math.sin(math.radians(angle)), b * math.cos(math.radians(angle))
            turn = math.degrees(math.atan2(-y / b * b, 1e-9 + x / a * a)) + 90
            drawing.ellipse(500, x, y, 14, 6, turn=turn)


def head(scale=1.0, size=512, fov=250.0):
    """Skull 6 mm thick at full size; 64 x 78 mm half axes of the brain: 157 cm²."""
    drawing = Drawing(fov=fov, size=size)
    drawing.ellipse(20, 0, 0, 75 * scale, 89 * scale)
    drawing.ellipse(BONE, 0, 0, 70 * scale, 84 * scale)
    drawing.ellipse(BRAIN, 0, 0, 64 * scale, 78 * scale)
    drawing.ellipse(8, -12 * scale, 0, 6 * scale, 25 * scale)
    drawing.ellipse(8, 12 * scale, 0, 6 * scale, 25 * scale)
    return drawing


def infant():
    """0.6 of the size, skull 1.5 mm thick and soft."""
    drawing = Drawing(fov=180)
    drawing.ellipse(20, 0, 0, 44, 52)
    drawing.ellipse(350, 0, 0, 40, 48.5)
    drawing.ellipse(24, 0, 0, 38.5, 47)
    return drawing


def without_bone(drawing, degrees, start):
    angle = np.degrees(np.arctan2(drawing.y, drawing.x)) - start
    drawing.hu[(angle % 360 < degrees) & (drawing.hu > 100)] = MUSCLE
    return drawing


def bled():
    drawing = head()
    drawing.hu[(drawing.x > 0) & (drawing.hu == BRAIN)] = 78
    return drawing


def cut_off():
    """The outer 15 % of the width are outside the field of view."""
    drawing = head()
    drawing.hu[:, drawing.x[0] > 49] = -1024
    return drawing


def chest(*, contrast=False):
    drawing = Drawing(fov=400)
    drawing.ellipse(FAT, 0, 0, 175, 115)
    drawing.ellipse(MUSCLE, 0, 0, 155, 98)
    for side in (-1, 1):
        drawing.ellipse(-850, side * 78, -5, 62, 78)
    drawing.ellipse(180 if contrast else 45, 15, -25, 58, 50)
    drawing.ellipse(300, 0, -85, 20, 6)
    spine(drawing, 55)
    ribs(drawing, 152, 95, 7)
    return drawing


def neck():
    drawing = Drawing(fov=250)
    drawing.ellipse(FAT, 0, 0, 62, 62)
    drawing.ellipse(MUSCLE, 0, 0, 57, 57)
    drawing.ellipse(AIR, 0, -25, 9, 10)
    for side in (-1, 1):
        drawing.ellipse(350, side * 30, -8, 5, 5)
    spine(drawing, 0)
    ring = np.hypot(drawing.x, drawing.y)
    drawing.hu[(ring > 95) & (ring < 99) & (drawing.y > -20)] = 400
    return drawing


def cylinder(inside, wall, wall_hu):
    drawing = Drawing(fov=250)
    drawing.ellipse(wall_hu, 0, 0, 100, 100)
    drawing.ellipse(inside, 0, 0, 100 - wall, 100 - wall)
    return drawing


def framed(*, brain=BRAIN, bone=BONE, pixel=4.0, repeat=1):
    """10 x 10 cells of brain in a frame of bone one cell wide, in the middle of air."""
    hu = np.full((1, 40, 40), AIR, np.int16)
    hu[0, 14:26, 14:26] = bone
    hu[0, 15:25, 15:25] = brain
    return hu.repeat(repeat, axis=1).repeat(repeat, axis=2), (pixel / repeat, pixel / repeat)


def test_area_by_hand():
    # A square of 10 x 10 cells loses 3 at each corner to the disc of radius 2; a cell is 0.16 cm².
    area = pytest.approx([88 * 0.16], rel=1e-12)
    assert brain_area(*framed()) == area
    hu, spacing = framed(repeat=8, brain=60)  # pixels of another size
    assert brain_area(hu, spacing) == area
    for k in (4, 8):  # rows farther apart than columns
        assert brain_area(hu[:, ::k], (k * spacing[0], spacing[1])) == area
    with pytest.raises(ValueError, match="non-empty"):
        brain_area(np.zeros((0, 4, 4), np.int16), (1.0, 1.0))
    with pytest.raises(ValueError, match="two positive numbers"):
        brain_area(np.zeros((1, 4, 4), np.int16), (1.0, math.nan))


@pytest.mark.parametrize(
    ("changes", "cm2"),
    [
        *(({"brain": hu}, cm2) for hu, cm2 in ((4, 0), (5, 14.08), (95, 14.08), (96, 0))),
        *(({"bone": hu}, cm2) for hu, cm2 in ((149, 0), (150, 14.08))),
    ],
)
def test_ranges_of_brain_and_bone(changes, cm2):
    assert brain_area(*framed(**changes)) == pytest.approx([cm2], rel=1e-12)


def test_a_skull_thinner_than_a_cell_is_bone():
    # 1 mm of 300 HU around 35 HU: 167 HU in the mean of a part of 2 mm, only 101 in that of a cell.
    drawing = Drawing(fov=256, size=256)
    drawing.hu[64:192, 64:192] = BRAIN
    for edge in (64, 191):
        drawing.hu[64:192, edge] = drawing.hu[edge, 64:192] = 300
    area = brain_area(*drawing.series(n=1))[0]
    assert area == pytest.approx((30 * 30 - 12) * 0.16, rel=1e-12)


def test_directions_by_a_walk_over_cells():
    rng = np.random.default_rng(RNG_SEED)
    bone, soft = rng.random((2, 23, 37)) < 0.06, rng.random((2, 23, 37)) < 0.9
    expected = np.zeros(bone.shape, int)
    for steps in anatomy.STEPS:
        walk = [
            tuple(sum(step[axis] for bit, step in enumerate(steps) if k >> bit & 1) for axis in (0, 1))
            for k in range(32)
        ]
        for n, row, column in np.ndindex(*bone.shape):
            for down, across in walk:
                y, x = row + down, column + across
                if not (0 <= y < 23 and 0 <= x < 37):
                    break
                if bone[n, y, x]:
                    expected[n, row, column] += 1
                    break
                if not soft[n, y, x]:
                    break
    np.testing.assert_array_equal(anatomy._directions_to_bone(bone, soft), expected)


HEADS = {
    "whole": (head, 0),
    "noise of thin slices": (head, 20),
    "noise of a bone kernel": (head, 60),
    "64 pixels": (lambda: head(size=64), 4),
    "child": (lambda: head(0.75), 4),
    "infant": (infant, 8),
    "large bleed": (bled, 4),
    "cut off": (cut_off, 4),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_pass(name):
    draw, noise = HEADS[name]
    hu, spacing = draw().series(noise=noise, n=1)
    assert head_refusal(hu, spacing=spacing) is None
    area = brain_area(hu, spacing)[0]
    assert area > 2 * anatomy.MIN_AREA
    for other in (hu[:, ::-1], hu[:, :, ::-1], hu.transpose(0, 2, 1)):  # mirrored and turned
        assert brain_area(other, spacing)[0] == pytest.approx(area, rel=0.1)


@pytest.mark.parametrize("start", range(0, 360, 120))
def test_head_without_a_quarter_of_skull(start):
    hu, spacing = without_bone(head(), 90, start).series(noise=4)
    assert brain_area(hu[:1], spacing)[0] > 2 * anatomy.MIN_AREA


@pytest.mark.parametrize(("site", "size"), [(SITE_A, 64), (SITE_B, 128)], ids=["a", "b"])
def test_phantoms_pass(site, size):
    plans = [SeriesPlan(n_slices=5), SeriesPlan(n_slices=5, contrast=True), SeriesPlan(n_slices=5, bone=True)]
    made = make_series(np.random.default_rng(3), plans, bleeds=[], site=site, size=size)
    for phantom in made:
        spacing = (phantom.pixel, phantom.pixel)
        assert head_refusal(phantom.hu, spacing=spacing) is None
        assert brain_area(phantom.hu, spacing).max() > 3 * anatomy.MIN_AREA


OTHERS = {
    "chest": (chest, 12),
    "chest with contrast": (lambda: chest(contrast=True), 12),
    "neck in a head holder": (neck, 12),
    "water in acrylic": (lambda: cylinder(0, 6, 120), 4),
    "brain-like liquid in acrylic": (lambda: cylinder(35, 6, 120), 4),
    "water in bone": (lambda: cylinder(0, 6, 900), 4),
    "air": (lambda: Drawing(fov=250), 10),
    "noise": (lambda: Drawing(fov=250), 1000),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_head_is_refused(name):
    draw, noise = OTHERS[name]
    hu, spacing = draw().series(noise=noise, n=2)
    assert head_refusal(hu.repeat(3, axis=0), spacing=spacing) is not None
    assert head_refusal(hu[:1], spacing=spacing) is not None


def test_few_slices_need_less_area():
    hu, spacing = framed()
    series = np.full((7, *hu.shape[1:]), AIR, np.int16)
    series[2:4] = hu
    reason = head_refusal(series, spacing=spacing)
    assert all(word in reason for word in ("best of 7", " 14.1 cm²", "needs 20 cm²"))
    assert "needs 3 cm²" in head_refusal(np.full_like(hu, AIR), spacing=spacing)
    for n in (1, 4):
        assert head_refusal(hu.repeat(n, axis=0), spacing=spacing) is None
    assert head_refusal(hu.repeat(5, axis=0), spacing=spacing) is not None


@pytest.mark.parametrize(("n", "first", "last"), [(5, 0, 0), (40, 36, 39), (300, 200, 299)])
def test_part_of_a_head_passes(n, first, last):
    picture, spacing = head(size=128).series(noise=4, n=1)
    hu = np.full((n, 128, 128), AIR, np.int16)
    hu[first : last + 1] = picture
    assert head_refusal(hu, spacing=spacing) is None


def test_a_head_that_continues_beyond_the_ends():
    scales = [0.4, 0.6, 0.8, 1, 1, 1, 0.9, 0.7, 0.5]
    hu = np.concatenate([head(scale, size=128).series(n=1)[0] for scale in scales])
    spacing = (250 / 128, 250 / 128)
    for part, ends in [
        (hu, None),
        (hu[:-2], ("highest slice has 121 of the 151 cm²",)),
        (hu[3:6].repeat(2, axis=0), ("lowest slice has 151", "highest slice has 151")),
        (hu[2:], ("lowest slice has 95 of",)),
        (hu[3:6], None),  # too few to say
    ]:
        reason = head_cut_off(part, spacing=spacing)
        assert reason is None if ends is None else all(end in reason for end in ends)
    hu, spacing = chest().series(n=9)
    assert head_cut_off(hu, spacing=spacing) is None


def read(path):
    """One real slice as (1, H, W) HU, and its spacing."""
    (header,) = read_headers(path)
    return read_slice(header)[0][None], header.spacing


# air; the vertex, bone only (three); the face at the height of the first vertebra
RSNA_WITHOUT_BRAIN = {"ID_0000950d7", "ID_0001dcc25", "ID_000259ccf", "ID_000ada5fc", "ID_000b53a57"}


@pytest.mark.realdata
def test_single_rsna_slices_pass_where_they_show_brain(shared_data):
    refused = set()
    for path in sorted((shared_data / "rsna_slices").glob("*.dcm")):
        hu, spacing = read(path)
        if head_refusal(hu, spacing=spacing) is not None:
            refused.add(path.stem)
    assert refused == RSNA_WITHOUT_BRAIN


@pytest.mark.realdata
def test_real_heads_pass(shared_data):
    slices = [read(path) for path in sorted((shared_data / "ge_head_ct").glob("*.dcm"))]
    hu, spacing = np.concatenate([hu for hu, _ in slices]), slices[0][1]
    assert len(hu) == 28
    assert head_refusal(hu, spacing=spacing) is None
    assert 160 < brain_area(hu, spacing).max() < 190
    hu, spacing = read(shared_data / "compressed_head_ct" / "CT2_RLE")
    assert 150 < brain_area(hu, spacing)[0] < 180


def _ctich_to_hu(tools: Path):
    spec = importlib.util.spec_from_file_location("ctich_to_dicom", tools / "ctich_to_dicom.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.to_hu


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the tool sets filters of its own when it is imported
def test_all_of_ctich_passes(shared_data):
    hu_of = _ctich_to_hu(shared_data.parent / "tools")
    areas = {}
    for folder in sorted(path for path in (shared_data / "ctich").iterdir() if path.is_dir()):
        pictures = sorted(folder.glob("*.jpg"))
        middle = pictures[len(pictures) // 4 :: max(1, len(pictures) // 6)][:5]
        hu = np.stack([hu_of(path) for path in middle])
        if head_refusal(hu, spacing=(0.488281, 0.488281)) is None:
            areas[folder.name] = brain_area(hu, (0.488281, 0.488281)).max()
    assert len(areas) == 55
    assert min(areas.values()) > 100
