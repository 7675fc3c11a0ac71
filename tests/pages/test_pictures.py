import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from ich_mil.model.maps import ScanMaps
from ich_mil.pages import pictures
from ich_mil.study.head_box import HeadBox
from ich_mil.study.window_presets import PRESETS


def opened(uri):
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1])))


def test_each_window_shows_its_hounsfield_units():
    hu = np.full((1, 64, 64), 40, np.int16)
    for value, expected in (
        (40, (127.5, 76.5, 127.5, 76.5)),
        (80, (255, 127.5, 154.3, 80.1)),
        (-1000, (0, 0, 0, 0)),
        (2000, (255, 255, 255, 255)),
    ):
        shown = pictures.slice_pictures(hu - 40 + value)
        assert list(shown) == ["brain", "blood", "soft tissue", "bone"]
        for (picture,), grey in zip(shown.values(), expected, strict=True):
            np.testing.assert_allclose(np.asarray(opened(picture)), grey, atol=1.5)  # 8 bits, and JPEG's own
    assert tuple(pictures.WINDOWS.values()) == (*PRESETS["winners"], (600, 2800))


@pytest.mark.parametrize(
    ("shape", "size"), [((1024, 512), (256, 512)), ((513, 512), (511, 512)), ((8, 9), (9, 8))]
)
def test_large_slices_are_reduced_and_keep_their_shape(shape, size):
    (picture,) = pictures.slice_pictures(np.full((1, *shape), 20, np.int16))["brain"]
    assert opened(picture).size == size
    np.testing.assert_allclose(np.asarray(opened(picture)), 63.75, atol=1.5)


def test_more_slices_get_smaller_pictures(monkeypatch):
    noise = np.random.default_rng(0).integers(0, 80, (4, 512, 512)).astype(np.int16)
    sizes = []
    for budget in (3_000_000, 300_000, 1):
        monkeypatch.setattr(pictures, "BUDGET", budget)
        shown = pictures.slice_pictures(noise)
        assert [len(one) for one in shown.values()] == [4, 4, 4, 4]
        files = [base64.b64decode(uri.split(",")[1]) for one in shown.values() for uri in one]
        sizes.append(opened(shown["brain"][0]).size[0])
        assert budget == 1 or sum(map(len, files)) <= budget
    assert sizes[0] == 512 > sizes[1] > sizes[2] == pictures.SIDES[-1]


def test_overviews_are_middle_sections_of_the_head():
    hu = np.full((10, 60, 80), 20, np.int16)
    box = HeadBox(top=10, left=20, bottom=50, right=70)
    hu[8:, 30] = 80  # high up, in the middle row
    hu[:5, :, 45] = 60  # down below, in the middle column
    hu[:, :4] = hu[:, :, :4] = 80  # outside of the head
    shown = {name: opened(uri) for name, uri in pictures.overview(hu, box, (5.0, 1.0, 2.0)).items()}
    assert {name: one.size for name, one in shown.items()} == {"coronal": (50, 25), "sagittal": (40, 50)}
    coronal, sagittal = (np.asarray(one).astype(int) for one in shown.values())
    brain, blood, calcified = 64, 191, 255  # 20, 60 and 80 HU in the brain window
    for picture, at, expected in (
        (coronal, (1, 10), calcified),
        (coronal, (12, 10), brain),
        (coronal, (20, 10), brain),
        (coronal, (20, 25), blood),
        (sagittal, (4, 5), brain),
        (sagittal, (4, 20), calcified),
        (sagittal, (40, 5), blood),
        (sagittal, (40, 34), blood),
    ):
        assert picture[at] == pytest.approx(expected, abs=30)


def maps(mean, std=None):
    mean = np.asarray(mean, np.float32)
    return ScanMaps(np.arange(4, 4 + len(mean)), mean, np.ones_like(mean) if std is None else std)


def test_opacity_of_overlays():
    flat = np.ones((4, 4))
    located = [flat, 0.5 * flat, 0.25 * flat, 0.09 * flat, 0 * flat, -3 * flat, np.nan * flat]
    shown = pictures.overlay(maps(located), "mean", (64, 64))
    assert shown.shades.top == 1
    assert shown.clear == [7, 8, 9, 10]  # no place reaches 0.1
    assert list(shown.pictures) == list(range(4, 11))
    pixels = [np.asarray(opened(one).convert("RGBA"))[5, 5] for one in shown.pictures.values()]
    assert [int(one[3]) for one in pixels] == pytest.approx([255, 255, 255 / 2, 0, 0, 0, 0], abs=2)
    np.testing.assert_array_equal(pixels[0][:3], pictures.LOCATION.colours(1.0, bytes=True)[:3])
    np.testing.assert_array_equal(pixels[1][:3], pictures.LOCATION.colours(128 / 255, bytes=True)[:3])


def test_position_and_shape_of_overlays():
    mean = np.zeros((1, 4, 4))
    mean[0, 1, 3] = 1
    alpha = np.asarray(opened(pictures.overlay(maps(mean), "mean", (256, 512)).pictures[4]).convert("RGBA"))[
        ..., 3
    ]
    assert alpha.shape == (64, 128)
    y, x = np.unravel_index(alpha.argmax(), alpha.shape)
    assert 0 <= y < 32  # a cell of the square is 32 wide, and one row of cells is cut off above
    assert 96 <= x < 128
    other = pictures.overlay(maps(mean, np.float32(mean * 0.3)), "std", (256, 512))
    assert other.shades.top == 0.5
    assert other.clear == []
    key = np.asarray(opened(other.key).convert("RGBA"))
    np.testing.assert_array_equal(key[0, :, 3], np.arange(256))


def test_overlays_of_a_box():
    part = replace(maps(np.ones((1, 4, 4))), box=np.array([128, 256, 384, 512]))
    shown = pictures.overlay(part, "mean", (512, 512)).pictures[4]
    alpha = np.asarray(opened(shown).convert("RGBA"))[..., 3]
    assert alpha.shape == (128, 128)
    assert (alpha[32:96, 64:128] == 255).all()
    assert alpha.astype(int).sum() == 64 * 64 * 255
