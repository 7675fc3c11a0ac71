"""Grey levels become HU by the window's formula; what is no 8-bit grey picture is refused by name."""

import numpy as np
import pytest
from PIL import Image

from ich_mil.errors import DataError, DicomError
from ich_mil.sets.layouts.slice_pictures import (
    AIR,
    BONE,
    hu_of_grey,
    is_picture,
    parse_window,
    picture_headers,
    read_picture,
)

BRAIN = (40.0, 80.0)
HEAD = np.array(
    [[0, 0, 3, 0, 2], [0, 255, 254, 255, 0], [1, 255, 0, 128, 253], [0, 255, 51, 255, 0], [0, 0, 0, 4, 0]],
    dtype=np.uint8,
)
"""A skull open on the right, with a black pixel inside."""
HU = np.array(
    [
        [AIR, AIR, AIR, AIR, AIR],
        [AIR, BONE, BONE, BONE, AIR],
        [AIR, BONE, 0, 40, 79],
        [AIR, BONE, 16, BONE, AIR],
        [AIR, AIR, AIR, 1, AIR],
    ]
)


def save(path, pixels, mode=None):
    Image.fromarray(pixels).convert(mode or "L").save(path)
    return path


def test_grey_to_hu_with_bone_and_air():
    assert hu_of_grey(HEAD, window=BRAIN).tolist() == HU.tolist()
    assert hu_of_grey(HEAD, window=(40, 120))[2].tolist() == [AIR, BONE, -20, 40, 99]
    hu = hu_of_grey(HEAD, window=(600.0, 4000.0))  # beyond bone and air
    assert (hu.max(), hu.min()) == (2600, -1400)


@pytest.mark.parametrize(("window", "layout"), [([40], "slices"), ([40, 0], "slices"), ([40, 80], "rsna")])
def test_windows_that_cannot_be_used(window, layout):
    assert parse_window([40, 80], layout="slices") == BRAIN
    with pytest.raises(ValueError, match="window"):
        parse_window(window, layout=layout)


@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_grey_may_be_stored_in_three_equal_colours(tmp_path, mode):
    path = save(tmp_path / "a.PNG", HEAD, mode)
    assert is_picture(str(path))
    assert read_picture(path, window=BRAIN).tolist() == HU.tolist()
    (header,) = picture_headers(path)
    assert (header.sop_uid, header.rows, header.columns) == ("a", 5, 5)


def test_lossy_picture_has_air_and_bone(tmp_path):
    grey = np.zeros((64, 64), np.uint8)
    grey[8:56, 8:56], grey[16:48, 16:48] = 255, 110
    path = tmp_path / "a.jpg"
    Image.fromarray(grey).save(path, quality=95)
    hu = read_picture(path, window=BRAIN)
    assert (hu[0] == AIR).all()
    assert (hu[11, 11:53] == BONE).all()
    assert abs(int(hu[32, 32]) - 35) <= 1  # 110 * 80 / 255


@pytest.mark.parametrize("name", ["coloured.png", "deep.png", "damaged.png", "tiff.png"])
def test_other_pictures_are_refused_by_name(tmp_path, name):
    path = tmp_path / name
    match path.stem:
        case "coloured":
            Image.fromarray(np.stack([HEAD, HEAD, HEAD.T], -1)).save(path)
        case "deep":
            Image.fromarray(HEAD.astype(np.uint16) * 257).save(path)
        case "damaged":
            save(path, np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8))
            path.write_bytes(path.read_bytes()[:2000])
        case "tiff":
            Image.fromarray(HEAD).save(path, format="TIFF")
    with pytest.raises(DataError, match=name):
        read_picture(path, window=BRAIN)


def drawn_head(*, rim: bool) -> np.ndarray:
    """A skull around a brain; with `rim`, black outside of a circular field of view in any polarity."""
    y, x = np.ogrid[:128, :128]
    radius = np.hypot(y - 63.5, x - 63.5)
    grey = np.select([radius < 40, radius < 46], [110, 255], 0).astype(np.uint8)
    return np.where(radius > 63, 0, 255 - grey).astype(np.uint8) if rim else grey


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_inverted_pictures_are_refused(tmp_path, suffix):
    plain = save(tmp_path / f"plain.{suffix}", drawn_head(rim=False))
    assert (read_picture(plain, window=BRAIN)[0] == AIR).all()
    for name, grey in (("negative", 255 - drawn_head(rim=False)), ("in a rim", drawn_head(rim=True))):
        path = save(tmp_path / f"{name}.{suffix}", grey)
        with pytest.raises(DataError, match=rf"{name}\.{suffix}: its background is white"):
            read_picture(path, window=BRAIN)


def test_flat_picture_is_refused(tmp_path):
    with pytest.raises(DicomError, match=r"flat\.png") as told:
        read_picture(save(tmp_path / "flat.png", np.zeros((5, 5), np.uint8)), window=BRAIN)
    assert told.value.code == "flat"
