"""Noise rows and notes on grey levels, and slices of scanners that have neither."""

from dataclasses import replace

import numpy as np
import pydicom
import pytest
from pydicom.uid import JPEG2000, JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless

from ich_mil.ledger import Code
from ich_mil.phantoms.data_sets import SITE_A, make_phantom
from ich_mil.study.pixels.hounsfield import NoHounsfieldError, to_hu
from ich_mil.study.pixels.quality import grey_notes, noise_rows
from tests.study.headers import PIXELS

SCALE = {"slope": 1.0, "intercept": -1024.0, "padding": None}


@pytest.fixture(scope="module")
def head() -> np.ndarray:
    """HU (256, 256) of a phantom's middle slice."""
    return make_phantom(np.random.default_rng(3), bleeds=(), site=SITE_A, size=256, n_slices=24).hu[12]


def steps(size, step):
    """Rows that go up and down by `step` HU: root mean square step `step`."""
    return np.tile(np.array([0, step], dtype=np.int16), (size, size // 2))


def test_limits_of_noise_by_hand():
    assert noise_rows(steps(256, 500)).tolist() == []
    assert noise_rows(steps(256, 501)).tolist() == list(range(256))
    assert noise_rows(steps(254, 4000)).tolist() == []  # narrow pictures are not judged
    hu = np.zeros((512, 512), dtype=np.int16)
    hu[100:129] = steps(512, 2000)[:29]  # a sixteenth of the rows examined first
    assert noise_rows(hu).tolist() == list(range(100, 129))
    hu[125:129] = 0
    assert noise_rows(hu).tolist() == []


@pytest.mark.parametrize(
    ("lowest", "end", "dtype", "bits_stored"),
    [(-32768, 32768, np.int16, 16), (0, 65536, np.uint16, 16), (0, 4096, np.uint16, 12)],
)
@pytest.mark.parametrize("start", [0, 225])
def test_random_values_from_some_row_on(head, lowest, end, dtype, bits_stored, start):
    stored = (head.astype(int) + 1024).astype(dtype)
    stored[start:] = np.random.default_rng(0).integers(lowest, end, stored[start:].shape)
    rows = noise_rows(to_hu(stored, bits_stored=bits_stored, signed=dtype == np.int16, **SCALE)[0])
    assert rows[0] in range(start, start + 3)
    assert len(rows) > 0.9 * (256 - start)  # of unsigned 16 bits 94 % are clipped to one value


@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore:Invalid value for VR UI:UserWarning")
def test_real_slices_and_their_bytes_shifted(shared_data):
    rng = np.random.default_rng(0)
    folders = ("rsna_slices/*.dcm", "ge_head_ct/*.dcm", "compressed_head_ct/CT2_RLE")
    for path in sorted(path for folder in folders for path in shared_data.glob(folder)):
        ds = pydicom.dcmread(path)
        scale = {"slope": float(ds.RescaleSlope), "intercept": float(ds.RescaleIntercept), "padding": None}
        scale |= {"bits_stored": ds.BitsStored, "signed": ds.PixelRepresentation == 1}
        hu, _ = to_hu(ds.pixel_array, **scale)
        noisy = np.clip(hu + rng.normal(0, 60, hu.shape), -1024, 3095).astype(np.int16)
        assert not len(noise_rows(hu)), path
        assert not len(noise_rows(noisy)), path
        content = ds.pixel_array.tobytes()
        shifted = np.frombuffer(content[1:] + content[:1], ds.pixel_array.dtype).reshape(hu.shape)
        try:
            hu, _ = to_hu(shifted, **scale)
        except NoHounsfieldError:  # bits above BitsStored hold the noise
            continue
        assert len(noise_rows(hu)), path


def tissues() -> np.ndarray:
    """Air, fat, brain with noise and bone, HU (128, 128)."""
    noise = np.random.default_rng(0).normal(0, 5, (128, 128))
    mean, spread = np.repeat([-1000.0, -80.0, 35.0, 1000.0], 32), np.repeat([2, 2, 1, 20], 32)
    return (mean[:, None] + noise * spread[:, None]).clip(-1024, 3071)


def codes(hu: np.ndarray, **changes: object) -> list[Code]:
    return [code for code, _ in grey_notes(np.rint(hu).astype(np.int16), replace(PIXELS, **changes))]


def test_grey_levels():
    assert codes(tissues()) == codes(tissues(), syntax=JPEG2000) == []
    assert codes(2 * np.rint(tissues() / 2)) == []  # a slope of 2
    for step in (4, 8, 16, 32):
        assert codes(step * np.rint(tissues() / step))[0] == Code.COARSE
    window = np.rint((tissues().clip(-20, 100) + 20) * 255 / 120)
    assert codes(window * 120 / 255 - 20) == [Code.LOSSY]  # an 8-bit picture in a brain window
    assert codes(np.full((128, 128), -1000.0)) == []  # air alone has few values


@pytest.mark.parametrize(
    "changes",
    [
        *({"bits_stored": 8}, {"lossy": True}, {"syntax": JPEG2000, "lossy": True}),
        *({"syntax": syntax} for syntax in (JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless)),
    ],
)
def test_loss_according_to_the_file(changes):
    assert codes(tissues(), **changes) == [Code.LOSSY]
