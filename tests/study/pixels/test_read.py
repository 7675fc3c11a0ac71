"""Pixels as HU, files that are refused by them, and real files."""

import math

import numpy as np
import pydicom
import pytest
from pydicom.config import disable_value_validation
from pydicom.pixels import apply_rescale, pixel_array

from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from ich_mil.study.files.header import read_headers
from tests.study.small_files import STORED, read, refused, write

TWELVE_BITS = {"BitsStored": 12, "HighBit": 11, "PixelRepresentation": 0}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"PixelData": np.full(16, 1064, np.int16).tobytes()}, Code.FLAT),
        ({"PixelData": np.array([-2000] * 15 + [-1990], np.int16).tobytes()}, Code.FLAT),
        # Air at 24, brain at 1064 and an intercept of 0: the offset is lost, every value would be bone.
        ({"RescaleIntercept": 0}, Code.NO_HU_SCALE),
        ({"RescaleIntercept": 0} | TWELVE_BITS, Code.NO_HU_SCALE),
    ],
)
def test_refused_by_the_pixels(tmp_path, changes, code):
    path = write(tmp_path, **changes)
    read_headers(path)
    assert refused(read, path) == code


@pytest.mark.parametrize(
    "changes",
    [
        {"PhotometricInterpretation": "MONOCHROME1"},
        {"RescaleType": "UNSPECIFIED"},
        {"RescaleType": "US"},
        {"Modality": "ct"},
        {"SamplesPerPixel": None},
        {"ImageOrientationPatient": [1, 0, 0, 0, 0.948, -0.317]},  # three digits of a tilt
        {"EncapsulatedDocument": bytes(100_000)},  # the pixels begin far behind
    ],
)
def test_what_leaves_hu_as_they_are(tmp_path, changes):
    hu, notes = read(write(tmp_path, **changes))
    np.testing.assert_array_equal(hu, STORED - 1024)
    assert notes == ()


def test_bits_stored_default_to_bits_allocated(tmp_path):
    stored = np.arange(100, 116, dtype=np.uint8)
    eight = {"BitsAllocated": 8, "BitsStored": None, "HighBit": None, "PixelRepresentation": 0}
    path = write(tmp_path, **eight, RescaleSlope=8, PixelData=stored.tobytes())
    assert read(path)[0].ravel().tolist() == [8 * value - 1024 for value in range(100, 116)]


def test_more_pixel_data_than_needed_is_read(tmp_path):
    path = write(tmp_path, PixelData=STORED.tobytes() + bytes(32))  # a whole frame
    np.testing.assert_array_equal(read(path)[0], STORED - 1024)


def test_noise_in_the_lower_rows_is_refused(tmp_path):
    """As RSNA's ID_b79eed528: random values from row 333 on."""
    y, x = np.mgrid[-1:1:512j, -1:1:512j]
    stored = np.where(np.hypot(x, y) < 0.7, 1060, 24).astype(np.int16)
    picture = {"Rows": 512, "Columns": 512}
    hu, _ = read(write(tmp_path, PixelData=stored.tobytes(), **picture))
    np.testing.assert_array_equal(hu, stored - 1024)
    stored[333:] = np.random.default_rng(0).integers(-(2**15), 2**15, stored[333:].shape)
    path = write(tmp_path, PixelData=stored.tobytes(), **picture)
    with pytest.raises(DicomError, match="179 rows from 333 to 511") as caught:
        read(path)
    assert caught.value.code == Code.NOISE


def zero_below(picture: np.ndarray, kept: float) -> np.ndarray:
    """Zeros from the given share of the pixels on, as a copy that failed leaves them."""
    cut = picture.copy()
    cut.reshape(-1)[round(kept * picture.size) :] = 0
    return cut


@pytest.mark.parametrize(("kept", "filled"), [(0.507, 64), (0.93, 36)])
def test_zeros_from_some_row_on_are_unreadable(tmp_path, kept, filled):
    picture = np.random.default_rng(0).integers(1, 2000, (64, 64)).astype(np.int16)
    picture[:, filled:] = 0
    pixels = zero_below(picture, kept)
    path = write(tmp_path, Rows=64, Columns=64, PixelData=pixels.tobytes())
    with pytest.raises(DicomError, match=f"zeros from row {math.ceil(64 * kept)} on,") as caught:
        read(path)
    assert caught.value.code == Code.UNREADABLE


def test_zeros_around_a_picture_are_no_damage(tmp_path):
    """A round field of view, a narrow head whose air is 0, a padded picture, and three rows of zeros."""
    picture = np.random.default_rng(0).integers(1, 2000, (64, 64)).astype(np.int16)
    down, across = np.mgrid[:64, :64]
    round_view = np.where(np.hypot(down - 20, across - 32) < 24, picture, 0)
    round_view[0] = picture[0]
    narrow = np.where((np.abs(across - 32) < 13) & (down < 50), picture, 0)  # 25 of 64 columns
    padded = picture.copy()
    padded[:5] = padded[-5:] = 0
    for pixels in (round_view, narrow, padded, zero_below(picture, 61 / 64)):
        path = write(tmp_path, Rows=64, Columns=64, PixelData=pixels.astype(np.int16).tobytes())
        read(path)


@pytest.mark.realdata
def test_rsna_slices(shared_data):
    paths = sorted((shared_data / "rsna_slices").glob("*.dcm"))
    assert len(paths) == 31
    unchanged = n_heads = 0
    for path in paths:
        (header,) = read_headers(path)
        hu, notes = read(path)
        assert header.sop_uid == path.stem[:12]
        assert hu.shape == (header.rows, header.columns)
        assert -1024 <= hu.min() <= -1000
        assert 200 < hu.max() <= 3095
        soft = hu[(hu > 0) & (hu < 100)]
        n_heads += soft.size > 10_000
        assert soft.size < 10_000 or 20 <= np.median(soft) <= 60
        with disable_value_validation():
            ds = pydicom.dcmread(path)
            rescaled = apply_rescale(pixel_array(ds), ds)
        inside = np.ones(hu.shape, bool) if not notes else rescaled > -1024
        unchanged += not notes
        np.testing.assert_array_equal(hu[inside], rescaled[inside])
        assert (hu[~inside] == -1024).all()
    assert unchanged == 14
    assert n_heads == 27  # the other four lie at the vertex or below the brain


@pytest.mark.realdata
def test_ge_head_is_hu_already(shared_data):
    for path in sorted((shared_data / "ge_head_ct").glob("*.dcm")):
        hu, notes = read(path)
        stored = pydicom.dcmread(path).pixel_array
        assert [code for code, _ in notes] == [Code.PADDING, Code.ALREADY_HU]
        assert notes[0][1].startswith("62180 pixels of stored value -1500 (PixelPaddingValue)")
        np.testing.assert_array_equal(hu, np.where(stored == -1500, -1024, stored))


@pytest.mark.realdata
def test_lossless_syntaxes_decode_to_equal_slices(shared_data):
    folder = shared_data / "compressed_head_ct"
    slices = [read(folder / f"CT2_{name}")[0] for name in ("RLE", "JPLL", "J2KR", "JLSL")]
    for other in slices[1:]:
        np.testing.assert_array_equal(other, slices[0])
    near = read(folder / "CT2_JLSN")[0].astype(int)
    assert 0 < np.abs(near - slices[0]).max() <= 4
    read(folder / "CT2_J2KI")
