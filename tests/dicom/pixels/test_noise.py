"""Noise is found where it is, and nothing that a scanner makes is taken for it."""

import zlib

import numpy as np
import pydicom
import pytest

from ich_mil.dicom.pixels.hounsfield import NoHounsfieldError, to_hu
from ich_mil.dicom.pixels.noise import noise_rows
from ich_mil.synthetic.data_sets import SITE_A, SITE_B, make_phantom

SCALE = {"slope": 1.0, "intercept": -1024.0, "padding": None}


@pytest.fixture(scope="module")
def head() -> np.ndarray:
    """HU (256, 256) of a phantom's middle slice."""
    return make_phantom(np.random.default_rng(3), bleeds=(), site=SITE_A, size=256, n_slices=24).hu[12]


def steps(size, step):
    """Rows that go up and down by `step` HU: root mean square step `step`."""
    return np.tile(np.array([0, step], dtype=np.int16), (size, size // 2))


def test_hand_computed_limit():
    assert noise_rows(steps(256, 500)).tolist() == []
    assert noise_rows(steps(256, 501)).tolist() == list(range(256))


def test_narrow_pictures_are_not_judged():
    assert noise_rows(steps(254, 4000)).tolist() == []
    assert noise_rows(np.array([[3095, -1024], [-1024, 3095]], dtype=np.int16)).tolist() == []


def test_a_sixteenth_of_the_rows_is_needed():
    hu = np.zeros((512, 512), dtype=np.int16)
    hu[100:125] = steps(512, 2000)[:25]  # the looked-at rows 104, 112, 120
    assert noise_rows(hu).tolist() == []
    hu[125:129] = steps(512, 2000)[:4]  # and 128
    assert noise_rows(hu).tolist() == list(range(100, 129))


KINDS = {
    "16-bit signed": (-32768, 32768, np.int16, 16),
    "16-bit unsigned": (0, 65536, np.uint16, 16),
    "12-bit": (0, 4096, np.uint16, 12),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", [0, 160, 225])
def test_random_values_from_some_row_on(head, kind, start):
    lowest, end, dtype, bits_stored = KINDS[kind]
    stored = (head.astype(int) + 1024).astype(dtype)
    stored[start:] = np.random.default_rng(0).integers(lowest, end, stored[start:].shape)
    hu, _ = to_hu(stored, bits_stored=bits_stored, signed=dtype == np.int16, **SCALE)
    rows = noise_rows(hu)
    assert rows[0] in range(start, start + 3)
    assert len(rows) > 0.9 * (256 - start)  # of unsigned 16 bits 94 % are clipped to one value


def test_compressed_bytes_read_as_values(head):
    compressed = zlib.compress(head.tobytes())
    stored = np.resize(np.frombuffer(compressed[: len(compressed) // 2 * 2], np.int16), head.shape)
    hu, _ = to_hu(stored, bits_stored=16, signed=True, **SCALE)
    assert len(noise_rows(hu)) > 250


@pytest.mark.parametrize("site", [SITE_A, SITE_B], ids=lambda site: site.name)
def test_phantoms_are_pictures(site):
    study = make_phantom(np.random.default_rng(1), bleeds=("subdural",), site=site, size=256, n_slices=24)
    assert [len(noise_rows(hu)) for hu in study.hu] == [0] * 24


def test_strong_noise_of_a_scanner_is_no_damage(head):
    noise = np.random.default_rng(0).normal(0, 150, head.shape)
    assert noise_rows(np.clip(head + noise, -1024, 3095).astype(np.int16)).tolist() == []


def test_metal_with_streaks_is_no_damage(head):
    row, column = np.indices(head.shape) - 127.5
    hu = head.astype(float)
    for at in ((20, -40), (30, 40), (50, 0)):
        distance = np.hypot(row - at[0], column - at[1])
        angle = np.arctan2(row - at[0], column - at[1])
        hu += 600 * np.sin(16 * angle) * np.exp(-distance / 60) * (distance > 6)
        hu[distance < 6] = 3095
    assert noise_rows(np.clip(hu, -1024, 3095).astype(np.int16)).tolist() == []


def real_slices(shared_data):
    """Stored values and header of each real head slice."""
    folders = ("rsna_slices/*.dcm", "ge_head_ct/*.dcm", "compressed_head_ct/CT2_RLE")
    for path in sorted(path for folder in folders for path in shared_data.glob(folder)):
        ds = pydicom.dcmread(path)
        header = {
            "slope": float(ds.RescaleSlope),
            "intercept": float(ds.RescaleIntercept),
            "bits_stored": ds.BitsStored,
            "signed": ds.PixelRepresentation == 1,
            "padding": None,
        }
        yield path.name, ds.pixel_array, header


@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore:Invalid value for VR UI:UserWarning")
def test_real_slices_are_pictures_and_their_bytes_shifted_by_one_are_not(shared_data):
    rng = np.random.default_rng(0)
    fired, missed = [], []
    for name, stored, header in real_slices(shared_data):
        hu, _ = to_hu(stored, **header)
        noisy = np.clip(hu + rng.normal(0, 60, hu.shape), -1024, 3095).astype(np.int16)
        fired += [name for picture in (hu, noisy) if len(noise_rows(picture))]
        content = stored.tobytes()
        shifted = np.frombuffer(content[1:] + content[:1], stored.dtype).reshape(stored.shape)
        try:
            hu, _ = to_hu(shifted, **header)
        except NoHounsfieldError:  # bits above BitsStored hold the noise
            continue
        missed += [name] if not len(noise_rows(hu)) else []
    assert fired == []
    assert missed == []
