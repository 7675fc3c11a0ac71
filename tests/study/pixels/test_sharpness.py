"""Sharp and soft reconstructions by the noise of brain."""

import numpy as np
import pytest

from ich_mil.study.pixels.sharpness import sharpness

SPACING = (0.49, 0.49)


def scan(noise_hu: float, cut: float, *, n: int = 7, side: int = 256, seed: int = 0) -> np.ndarray:
    """Discs of brain in a ring of bone, with noise of filtered back-projection cut off at `cut` per pixel."""
    rng = np.random.default_rng(seed)
    y, x = np.ogrid[:side, :side]
    radius = np.hypot(y - side / 2, x - side / 2) / side
    head = np.select([radius < 0.4, radius < 0.45], [32.0, 1000.0], -1000.0)
    frequency = np.hypot(*np.meshgrid(*[np.fft.fftfreq(side)] * 2, indexing="ij"))
    spectrum = np.sqrt(frequency) * np.clip(1 - (frequency / cut) ** 2, 0, None)
    noise = np.fft.ifft2(np.fft.fft2(rng.normal(size=(n, side, side))) * spectrum).real
    return np.rint(head + noise_hu * noise / noise.std()).astype(np.int16)


@pytest.mark.parametrize(
    ("noise_hu", "cut", "sharp"),
    [
        (25, 0.5, True),
        (12, 0.45, True),
        (60, 0.7, True),
        (4, 0.25, False),
        (15, 0.25, False),  # a thin slice
        (30, 0.2, False),  # a thin slice of low dose
        (5, 0.5, False),
    ],
)
def test_noise_of_kernels(noise_hu, cut, sharp):
    reason = sharpness(scan(noise_hu, cut), spacing=SPACING)
    assert bool(reason) == sharp
    if sharp:
        measured = float(reason.removeprefix("sharp: noise of ").split(" HU")[0])
        assert measured == pytest.approx(noise_hu, rel=0.1)


def test_small_pixels_are_compared_at_the_same_distance():
    assert sharpness(scan(25, 0.25, side=512), spacing=(0.245, 0.245))
    assert not sharpness(scan(15, 0.125, side=512), spacing=(0.245, 0.245))


@pytest.mark.parametrize("spacing", [(0.98, 0.98), (0.0, 0.0)])
def test_large_or_unknown_pixels_are_not_judged(spacing):
    assert sharpness(scan(25, 0.5), spacing=spacing) == ""


def test_slices_without_brain_are_not_judged():
    assert sharpness(np.full((5, 256, 256), -1000, np.int16), spacing=SPACING) == ""
    assert sharpness(scan(25, 0.5)[:1], spacing=SPACING) != ""
