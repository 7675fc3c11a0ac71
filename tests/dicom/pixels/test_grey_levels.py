"""Slices whose grey values are not those of a scanner any more."""

from dataclasses import replace

import numpy as np
import pytest
from pydicom.uid import JPEG2000, JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless

from ich_mil.dicom.pixels.grey_levels import grey_notes
from ich_mil.ledger import Code
from tests.dicom.headers import PIXELS


def head() -> np.ndarray:
    """Air, fat, brain with noise and bone, HU (128, 128)."""
    noise = np.random.default_rng(0).normal(0, 5, (128, 128))
    hu = (
        np.repeat([-1000.0, -80.0, 35.0, 1000.0], 32)[:, None] + noise * np.repeat([2, 2, 1, 20], 32)[:, None]
    )
    return hu.clip(-1024, 3071)


def codes(hu: np.ndarray, **changes: object) -> list[Code]:
    return [code for code, _ in grey_notes(np.rint(hu).astype(np.int16), replace(PIXELS, **changes))]


def test_a_slice_of_a_scanner_needs_no_note():
    assert codes(head()) == []
    assert codes(head(), syntax=JPEG2000) == []
    assert codes(2 * np.rint(head() / 2)) == []  # a slope of 2


@pytest.mark.parametrize("step", [4, 8, 16, 32])
def test_wide_steps_leave_blood_and_brain_alike(step):
    found = grey_notes((step * np.rint(head() / step)).astype(np.int16), PIXELS)
    assert found[0] == (Code.COARSE, f"its grey values are {step} HU apart: blood and brain may look alike")


def test_a_picture_of_8_bits_in_a_brain_window():
    grey = np.rint((head().clip(-20, 100) + 20) * 255 / 120)
    assert codes(grey * 120 / 255 - 20) == [Code.LOSSY]
    assert codes(np.full((128, 128), -1000.0)) == []  # air alone has few values


@pytest.mark.parametrize(
    "changes",
    [
        {"bits_stored": 8},
        {"lossy": True},
        {"syntax": JPEGBaseline8Bit},
        {"syntax": JPEGExtended12Bit},
        {"syntax": JPEGLSNearLossless},
        {"syntax": JPEG2000, "lossy": True},
    ],
)
def test_what_the_file_says_of_loss(changes):
    assert codes(head(), **changes) == [Code.LOSSY]
