"""The rectangle around the head, on drawn heads and on a real one."""

import numpy as np
import pydicom
import pytest

from ich_mil.study.head_box import LEAST, MARGIN, HeadBox, head_box

AIR, BRAIN, BONE = -1000, 35, 1000


def a_head(*, rows=256, columns=256, top=60, left=40, height=150, width=120, couch=None):
    """(1, rows, columns) an ellipse of brain in a ring of bone, and a couch below."""
    y, x = np.mgrid[:rows, :columns]
    away = np.hypot((y - top - height / 2 + 0.5) / (height / 2), (x - left - width / 2 + 0.5) / (width / 2))
    hu = np.where(away <= 1, np.where(away <= 0.9, BRAIN, BONE), AIR)
    if couch is not None:
        hu[couch : couch + 4, 10:-10] = 150
    return hu[None].astype(np.int16)


def test_box_is_a_square_without_the_couch():
    box = head_box(a_head(couch=240))
    side = 150 * (1 + 2 * MARGIN)
    assert box.bottom - box.top == pytest.approx(side, abs=10)
    assert box.right - box.left == pytest.approx(side, abs=10)
    assert (box.top + box.bottom) / 2 == pytest.approx(60 + 75, abs=4)
    assert (box.left + box.right) / 2 == pytest.approx(40 + 60, abs=4)


def test_all_slices_of_a_scan_share_one_box():
    low, high = a_head(top=80, height=90, width=90), a_head(top=40)
    box = head_box(np.concatenate([low, high]))
    assert box.top <= 40
    assert box.bottom >= 80 + 90
    assert box.crop(np.concatenate([low, high])).shape == (2, box.bottom - box.top, box.right - box.left)


def test_box_has_a_least_size_and_stays_inside():
    box = head_box(a_head(height=60, width=50, top=20, left=100))
    assert box.right - box.left == pytest.approx(LEAST * 256, abs=2)
    assert box.top == 0
    assert head_box(np.full((2, 90, 120), AIR, np.int16)) == HeadBox(0, 0, 90, 120)  # no head


@pytest.mark.realdata
def test_a_real_head_fits_into_its_box(shared_data):
    files = [pydicom.dcmread(path) for path in sorted((shared_data / "ge_head_ct").glob("*.dcm"))]
    hu = np.stack([file.pixel_array for file in files]).astype(np.int16)  # stored in HU
    box = head_box(hu)
    rows, columns = hu.shape[1:]
    outside = np.ones((rows, columns), bool)
    outside[box.top : box.bottom, box.left : box.right] = False
    bone = hu > 300
    assert bone[:, outside].sum() < 0.01 * bone.sum()
    assert (box.bottom - box.top) * (box.right - box.left) < 0.8 * rows * columns
