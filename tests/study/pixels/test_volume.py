"""Values of NIfTI files as HU: slope, values that are not numbers, volumes that are not HU, padding."""

import nibabel
import numpy as np
import pytest

from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from ich_mil.study.files.nifti import nifti_headers
from ich_mil.study.pixels.read import read_slice
from ich_mil.study.pixels.volume import read_volume
from tests.nifti import head, image_of


def save(path, slices, *, slope=None, intercept=None):
    image = image_of(slices)
    image.set_data_dtype(slices.dtype)
    if slope is not None:
        image.header.set_slope_inter(slope, intercept)
    nibabel.save(image, path)
    return path


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.float32, np.float64])
def test_hu_of_every_type(kind, tmp_path):
    hu = head()
    volume, notes = read_volume(save(tmp_path / "scan.nii.gz", hu.astype(kind)))
    np.testing.assert_array_equal(volume, hu)
    assert notes == ()


@pytest.mark.parametrize(("slope", "kind"), [(1.0, np.uint16), (0.5, np.int16)])
def test_slope_and_intercept(slope, kind, tmp_path):
    stored = ((head().astype(np.int32) + 1024) / slope).astype(kind)
    path = tmp_path / "scan.nii"
    save(path, stored)
    with path.open("r+b") as file:  # nibabel would divide the values when it saves them
        file.seek(112)
        file.write(np.array([slope, -1024], "<f4").tobytes())
    np.testing.assert_array_equal(read_volume(path)[0], head())


def test_values_that_are_not_numbers_become_air(tmp_path):
    hu = head().astype(np.float32)
    hu[:, :2] = np.nan
    volume, notes = read_volume(save(tmp_path / "scan.nii", hu))
    assert (volume[:, :2] == -1024).all()
    assert [code for code, _ in notes] == [Code.PADDING]
    assert f"{24 * 2 * 64} voxels" in notes[0][1]


@pytest.mark.parametrize(
    "change",
    [
        lambda hu: hu + 1024,
        lambda hu: ((hu.clip(0, 80)) * (255 / 80)).astype(np.uint8),
        lambda hu: ((hu + 1024.0) / 4095).astype(np.float32),
        lambda hu: (hu > 300).astype(np.uint8),
        lambda hu: ((hu - hu.mean()) / hu.std()).astype(np.float32),
        lambda hu: np.where(hu < -200, -1024, hu + 1024).astype(np.int16),  # padding, but no air
    ],
    ids=["offset", "window", "0 to 1", "mask", "standardised", "padded offset"],
)
def test_volumes_that_are_not_hu(change, tmp_path):
    with pytest.raises(DicomError) as refused:
        read_volume(save(tmp_path / "scan.nii", change(head())))
    assert refused.value.code == Code.NO_HU_SCALE


def test_a_head_without_its_air_is_named(tmp_path):
    path = save(tmp_path / "scan.nii", np.where(head() < -100, -1024, head()).astype(np.int16))
    with pytest.raises(DicomError, match="its background is -1024 throughout: air and scalp were removed"):
        read_volume(path)


def test_rim_of_zero_around_a_resampled_head_is_air(tmp_path):
    hu = np.pad(head(), ((0, 0), (6, 6), (6, 6)))
    path = save(tmp_path / "scan.nii", hu)
    header = nifti_headers(path, "scan")[12]
    got, notes = read_slice(header, volumes={str(path): read_volume(path)[0]})
    np.testing.assert_array_equal(got[6:-6, 6:-6], head()[12])
    assert (got[:6] == -1024).all()
    assert [code for code, _ in notes] == [Code.PADDING]
