"""Images from HU against float64 arithmetic pixel by pixel."""

import numpy as np
import pytest
import torch
from pydicom import dcmread
from scipy import ndimage

from ich_mil.network.pictures import EDGE, Variation, pictures_of, vary
from ich_mil.network.training.augment import draw_variation
from ich_mil.network.windows import resize
from ich_mil.study.pixels.hounsfield import to_hu
from ich_mil.study.window_presets import PRESETS

PAPERS = PRESETS["papers"]
FIVE = (*PAPERS, (40.0, 380.0), (600.0, 2800.0))
STILL = Variation(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), brighter=0.0, noise=0.0, seed=1)


def vary_one(pictures, **changes):
    return vary([pictures], [STILL._replace(**changes)], PAPERS)


def test_bone_stays_bone_where_an_image_is_turned(device):
    turn = torch.tensor([[0.96, -0.28, 0.01], [0.28, 0.96, 0.02]])  # 16 degrees
    bone = torch.ones(1, 3, 64, 64, device=device)
    inside = vary_one(bone, matrix=turn)[..., 16:48, 16:48]
    assert float((inside - 1).abs().max()) < 1e-6
    assert torch.equal(vary_one(bone, matrix=turn, brighter=-3.0, noise=3.0)[..., 16:48, 16:48], inside)


def test_noise_is_in_hu_and_equal_in_windows(device):
    grey = torch.full((2, 3, 64, 64), 0.5, device=device)
    hu = vary_one(grey, noise=2.0) - 0.5
    hu *= torch.tensor([width for _, width in PAPERS], device=device)[:, None, None]
    # 8,192 draws: the deviation is good to 0.8 %
    assert float(hu[:, 0].std()) == pytest.approx(2.0, rel=0.04)
    for channel in (1, 2):
        torch.testing.assert_close(hu[:, channel], hu[:, 0], rtol=1e-4, atol=1e-4)
    assert not torch.equal(hu[0], hu[1])
    assert torch.equal(vary_one(grey, noise=2.0), vary_one(grey, noise=2.0))
    assert not torch.equal(vary_one(grey, noise=2.0), vary_one(grey, noise=2.0, seed=2))


def slices(shapes):
    """Scans of smooth HU with noise, air and bone: all sides of every window."""
    rng, scans = np.random.default_rng(0), []
    for shape in shapes:
        hu = (
            40
            + 200 * ndimage.gaussian_filter(rng.standard_normal(shape), (0, 2, 2))
            + rng.normal(0, 5, shape)
        )
        hu[:, :1], hu[:, -1:] = -1024, 1500
        scans.append(torch.from_numpy(hu.round().astype(np.int16)))
    return scans


def variations(count, noise):
    """Random augmentation; noise differs between GPU and CPU."""
    rng = np.random.default_rng(0)
    return [draw_variation(rng)._replace(noise=noise) for _ in range(count)]


def sharp(hu, windows, size, variation=None):
    """The equations of the module in float64, and the distance of a pixel from the limits of noise."""
    level, width = torch.tensor(windows, dtype=torch.float64).mT[..., None, None]
    shown = ((hu[:, None].double() - level) / width + 0.5).clamp(0, 1)
    picture = resize(shown, size).numpy()
    if variation is None:
        return picture, np.ones_like(picture)
    centre = (2 * np.arange(size) + 1) / size - 1
    v, u = np.meshgrid(centre, centre, indexing="ij")
    across, down = variation.matrix.double().numpy() @ np.stack([u, v, np.ones_like(u)]).reshape(3, -1)
    at = [((place.reshape(size, size) + 1) * size - 1) / 2 for place in (down, across)]
    flat = picture.reshape(-1, size, size)
    moved = [ndimage.map_coordinates(one, at, order=1, mode="grid-constant", cval=0.0) for one in flat]
    moved = np.stack(moved).reshape(picture.shape)
    noise = torch.randn((len(hu), 1, size, size), generator=torch.Generator().manual_seed(variation.seed))
    change = (noise.double() * variation.noise + variation.brighter) / width
    within = (moved > EDGE) & (moved < 1 - EDGE)
    near = np.minimum(abs(moved - EDGE), abs(moved - 1 + EDGE))
    return np.where(within, moved + change.numpy(), moved).clip(0, 1), near


def errors(got, scans, windows, size, ways):
    """Largest difference from `sharp`, without pixels whose side of an edge depends on rounding."""
    pairs = [
        sharp(hu, windows, size, way) for hu, way in zip(scans, ways or [None] * len(scans), strict=True)
    ]
    expected, near = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    assert (near > 1e-6).mean() > 0.99
    return float(abs(got.cpu().double().numpy() - expected)[near > 1e-6].max())


@pytest.mark.parametrize("varied", [False, True], ids=["as stored", "varied"])
@pytest.mark.parametrize(
    ("shapes", "size", "windows"),  # as stored, smaller, larger, a small multiple of neither
    [
        ([(2, 20, 20)], 20, PAPERS),
        ([(1, 30, 30), (2, 18, 30)], 13, FIVE),
        ([(2, 17, 10)], 18, PAPERS),
        ([(1, 36, 36)], 7, PAPERS[:1]),
    ],
)
def test_images_are_those_of_the_equations(shapes, size, windows, varied, device):
    scans = slices(shapes)
    ways = variations(len(scans), 0.0 if device.type == "cuda" else 2.0) if varied else []
    got = pictures_of([hu.to(device) for hu in scans], windows, size, ways)
    assert (got.shape[1:], got.dtype) == ((len(windows), size, size), torch.float32)
    assert errors(got, scans, windows, size, ways) < 1e-5  # positions among 40 pixels are rounded by 2e-6


def test_other_scans_of_a_batch_change_no_bit(device):
    scans = [hu.to(device) for hu in slices([(2, 8, 8), (1, 9, 6)])]
    ways = variations(2, 1.0)
    whole = pictures_of(scans, PAPERS, 6, ways).split([2, 1])
    for hu, way, part in zip(scans, ways, whole, strict=True):
        assert torch.equal(pictures_of([hu], PAPERS, 6, [way]), part)


def test_no_slices_and_other_types():
    assert pictures_of([torch.zeros(0, 8, 8, dtype=torch.int16)], PAPERS, 6).shape == (0, 3, 6, 6)
    with pytest.raises(TypeError, match="int16"):
        pictures_of([torch.zeros(1, 8, 8)], PAPERS, 8)


@pytest.mark.realdata
def test_real_slices(shared_data):
    paths = sorted((shared_data / "rsna_slices").glob("*.dcm"))[:3]
    if not paths:
        pytest.skip(f"no slices at {shared_data / 'rsna_slices'}")
    scans = []
    for file in map(dcmread, paths):
        scale = {
            "slope": float(file.RescaleSlope),
            "intercept": float(file.RescaleIntercept),
            "padding": None,
        }
        hu, _ = to_hu(file.pixel_array, bits_stored=file.BitsStored, signed=True, **scale)
        scans.append(torch.from_numpy(hu[None]))
    for ways in ([], variations(3, 2.0)):
        assert errors(pictures_of(scans, PAPERS, 96, ways), scans, PAPERS, 96, ways) < 2e-5
