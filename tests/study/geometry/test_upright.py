"""Turn of stored pictures to rows that run to the left and columns to the back, and back."""

import numpy as np
import pytest

from ich_mil.study.geometry.upright import Upright
from tests.study.headers import AXIAL, header

STANDARD = np.arange(12, dtype=np.int16).reshape(3, 4)
"""A picture whose rows run to the patient's left and whose columns run to the back."""
STORED = {
    "supine": (AXIAL, STANDARD),
    "prone": ((-1.0, 0.0, 0.0, 0.0, -1.0, 0.0), STANDARD[::-1, ::-1]),
    "feet first": ((-1.0, 0.0, 0.0, 0.0, 1.0, 0.0), STANDARD[:, ::-1]),
    "feet first, prone": ((1.0, 0.0, 0.0, 0.0, -1.0, 0.0), STANDARD[::-1]),
    "left side down": ((0.0, -1.0, 0.0, 1.0, 0.0, 0.0), STANDARD[::-1].T),
    "right side down": ((0.0, 1.0, 0.0, -1.0, 0.0, 0.0), STANDARD[:, ::-1].T),
    "transposed": ((0.0, 1.0, 0.0, 1.0, 0.0, 0.0), STANDARD.T),
    "transposed, both reversed": ((0.0, -1.0, 0.0, -1.0, 0.0, 0.0), STANDARD[::-1, ::-1].T),
}


@pytest.mark.parametrize("name", STORED)
def test_every_axial_orientation_becomes_the_standard(name):
    orientation, stored = STORED[name]
    rows, columns = stored.shape
    upright = Upright.of(header(0, orientation=orientation, rows=rows, columns=columns))
    np.testing.assert_array_equal(upright.picture(stored), STANDARD)
    assert upright.orientation(orientation) == AXIAL
    np.testing.assert_array_equal(upright.as_stored(STANDARD[None]), stored[None])


def test_tilted_head_turned_in_plane_keeps_its_angles():
    orientation = (-0.96, 0.28, 0.0, 0.2632, 0.9024, -0.3412)
    upright = Upright.of(header(0, orientation=orientation))
    assert upright.orientation(orientation) == (0.96, -0.28, 0.0, *orientation[3:])


@pytest.mark.parametrize(
    "orientation", [(0.0, -1.0, 0.0, 0.0, 0.0, -1.0), (-1.0, 0.0, 0.0, 0.0, 0.0, 1.0), ()]
)
def test_other_planes_are_not_turned(orientation):
    upright = Upright.of(header(0, orientation=orientation, rows=3, columns=4))
    np.testing.assert_array_equal(upright.picture(STANDARD), STANDARD)


@pytest.mark.parametrize(("spacing", "shape"), [((0.5, 1.0), (32, 63)), ((0.9, 0.6), (64, 42))])
def test_pixels_become_square(spacing, shape):
    """A ramp in mm along each axis keeps its values at the centres of the new pixels."""
    rows, columns = 64, 63
    y, x = (np.arange(n) + 0.5 for n in (rows, columns))
    stored = np.add.outer(y * spacing[0], x * spacing[1]) * 10
    upright = Upright.of(header(0, spacing=spacing, rows=rows, columns=columns))
    coarse = max(spacing)
    assert (upright.shape, upright.spacing) == (shape, (coarse, coarse))
    y, x = (np.arange(n) + 0.5 for n in shape)
    wanted = np.add.outer(y * coarse, x * coarse) * 10
    turned = upright.picture(np.rint(stored).astype(np.int16))
    np.testing.assert_allclose(turned[2:-2, 2:-2], wanted[2:-2, 2:-2], atol=1.01)
    back = upright.as_stored(turned[None].astype(np.float32))[0]
    np.testing.assert_allclose(back[2:-2, 2:-2], stored[2:-2, 2:-2], atol=1.5)


def test_doubled_pixels_become_single():
    """Rows or columns that were repeated are averaged again to what they were."""
    picture = np.random.default_rng(0).integers(-100, 100, (64, 64)).astype(np.int16)
    upright = Upright.of(header(0, spacing=(1.0, 0.5), rows=64, columns=128))
    turned = upright.picture(picture.repeat(2, axis=1))
    assert np.abs(turned - picture)[:, 2:-2].mean() < 6  # a tenth of a standard deviation


def test_extreme_spacing_has_a_pixel():
    assert Upright.of(header(0, spacing=(0.001, 100.0))).shape == (1, 512)
