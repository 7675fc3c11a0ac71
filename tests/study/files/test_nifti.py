"""Headers of NIfTI files: slices, positions and orientation from the affine, and refusals."""

import gzip

import nibabel
import numpy as np
import pytest

from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from ich_mil.study.files.header import read_headers
from ich_mil.study.files.nifti import nifti_headers
from ich_mil.study.geometry.planes import tilt_degrees
from ich_mil.study.pixels.volume import read_volume
from tests.nifti import image_of
from tests.study.headers import AXIAL

SLICES = np.arange(60, dtype=np.int16).reshape(5, 3, 4) - 1000
"""Five slices of 3 rows and 4 columns; all values differ."""


def save(path, image):
    nibabel.save(image, path)
    return path


def code_of(path) -> str:
    with pytest.raises(DicomError) as refused:
        nifti_headers(path, "scan")
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    return refused.value.code


@pytest.mark.parametrize(
    "codes", ["LPS", "RAS", "LAS", "RPI", "LPI", "SRA", "AIL", "PSL", "IAR", "ASR", "SPL", "RIP"]
)
def test_every_axis_order_gives_the_same_slices(codes, tmp_path):
    path = save(tmp_path / "scan.nii.gz", image_of(SLICES, codes=codes, mm=(0.5, 0.6, 5.0)))
    headers = nifti_headers(path, "sub-7/scan")
    volume, _ = read_volume(path)
    order = sorted(headers, key=lambda header: header.position[2])
    np.testing.assert_array_equal(volume[[header.frame for header in order]], SLICES)
    np.testing.assert_allclose(
        [header.position for header in order], [(-50, -60, 5 * k - 70) for k in range(5)]
    )
    for header in headers:
        np.testing.assert_allclose(header.orientation, AXIAL, atol=1e-12)
        np.testing.assert_allclose(header.spacing, (0.6, 0.5), rtol=1e-6)
        assert (header.rows, header.columns) == (3, 4)
        assert (header.sop_uid, header.patient_id) == (f"sub-7/scan#{header.frame}", "sub-7")
        assert header.notes == ()


@pytest.mark.parametrize(
    ("name", "description"), [("pat_007_M", "pat_007_"), ("head_C+", "head_C+"), ("kopf_o_KM", "kopf_o_KM")]
)
def test_the_sex_in_a_name_says_nothing_on_the_series(name, description, tmp_path):
    header, *_ = nifti_headers(save(tmp_path / "s.nii", image_of(SLICES)), name)
    assert header.description == description


def test_frame_is_the_index_in_the_file(tmp_path):
    path = save(tmp_path / "scan.nii", image_of(SLICES, codes="LPI"))
    heights = [header.position[2] for header in nifti_headers(path, "scan")]
    assert heights == [-50.0, -55.0, -60.0, -65.0, -70.0]


def test_oblique_and_tilted_volumes(tmp_path):
    turn = np.deg2rad(15)
    image = image_of(SLICES)
    oblique, tilted = np.eye(4), image.affine.copy()
    oblique[1:3, 1:3] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    tilted[:3, 1] = (0, -np.cos(turn), np.sin(turn))  # as a gantry: slices are not moved along their normal
    for affine in (oblique @ image.affine, tilted):
        path = save(tmp_path / "scan.nii", nibabel.Nifti1Image(image.dataobj, affine))
        headers = nifti_headers(path, "scan")
        assert tilt_degrees(headers[0]) == pytest.approx(15, abs=1e-4)
        step = np.subtract(headers[1].position, headers[0].position)
        np.testing.assert_allclose(step, affine[:3, 2] * [-1, -1, 1], atol=1e-5)


def test_thick_sagittal_slices_stay_sagittal(tmp_path):
    image = image_of(np.zeros((40, 40, 9), np.int16), codes="ASR", mm=(5.0, 0.5, 0.5))
    headers = nifti_headers(save(tmp_path / "scan.nii", image), "scan")
    assert len(headers) == 9
    np.testing.assert_allclose(headers[0].orientation, (0, 1, 0, 0, 0, -1), atol=1e-12)
    assert headers[1].position[0] - headers[0].position[0] == pytest.approx(-5)


def test_unknown_orientation_is_noted(tmp_path):
    image = image_of(SLICES)
    image.set_sform(None, 0)
    image.set_qform(None, 0)
    header, *_ = nifti_headers(save(tmp_path / "scan.nii", image), "scan")
    assert [code for code, _ in header.notes] == [Code.ORIENTATION_UNKNOWN]
    image.set_sform(np.diag([1, 1, 5, 1]), 1)
    image.set_qform(np.diag([-1, 1, 5, 1]), 1)
    header, *_ = nifti_headers(save(tmp_path / "scan.nii", image), "scan")
    assert [code for code, _ in header.notes] == [Code.ORIENTATION_UNKNOWN]


def test_contents_that_are_no_ct(tmp_path):
    path = tmp_path / "scan.nii"
    affine = np.eye(4)
    rgb = np.zeros((4, 4, 4), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    assert code_of(save(path, nibabel.Nifti1Image(rgb, affine))) == Code.NOT_CT
    assert code_of(save(path, nibabel.Nifti1Image(np.zeros((4, 4, 4), np.complex64), affine))) == Code.NOT_CT
    series = nibabel.Nifti1Image(np.zeros((4, 4, 4, 3), np.int16), affine)
    assert code_of(save(path, series)) == Code.MULTI_FRAME
    one = nibabel.Nifti1Image(np.zeros((4, 4, 4, 1), np.int16), affine)
    assert len(nifti_headers(save(path, one), "scan")) == 4


@pytest.mark.parametrize("corner", [1000.0, np.nan, np.inf, 1e-9])
def test_impossible_voxels(corner, tmp_path):
    path = save(tmp_path / "scan.nii", image_of(SLICES))
    with path.open("r+b") as file:
        file.seek(280)  # srow_x
        file.write(np.array([corner], "<f4").tobytes())
    assert code_of(path) == Code.NO_GEOMETRY


def test_axes_that_are_not_at_right_angles(tmp_path):
    affine = np.eye(4)
    affine[0, 1] = 0.2
    image = nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), affine)
    assert code_of(save(tmp_path / "scan.nii", image)) == Code.NO_GEOMETRY


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_damaged_files(suffix, tmp_path):
    noise = np.random.default_rng(0).integers(-1000, 1000, (9, 30, 30)).astype(np.int16)
    path = save(tmp_path / f"scan{suffix}", image_of(noise))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:100], b"", b"no NIfTI at all" * 99, b"\0" * 400):
        path.write_bytes(content)
        assert code_of(path) == Code.UNREADABLE


def test_gzip_in_several_members(tmp_path):
    path = save(tmp_path / "scan.nii", image_of(SLICES))
    content = path.read_bytes()
    packed = tmp_path / "scan.nii.gz"
    packed.write_bytes(gzip.compress(content[:400]) + gzip.compress(content[400:]) + gzip.compress(b""))
    assert len(nifti_headers(packed, "scan")) == 5
    packed.write_bytes(gzip.compress(content[:400]) + gzip.compress(content[400:-1]))
    assert code_of(packed) == Code.UNREADABLE


def test_second_version_of_the_format(tmp_path):
    image = image_of(SLICES)
    path = save(tmp_path / "scan.nii", nibabel.Nifti2Image(image.dataobj, image.affine))
    assert [header.position[2] for header in nifti_headers(path, "scan")] == [-70, -65, -60, -55, -50]


def test_pairs_are_refused_with_the_remedy(tmp_path):
    nibabel.save(nibabel.Nifti1Pair(SLICES, np.eye(4)), tmp_path / "scan.img")
    for name in ("scan.img", "scan.hdr"):
        with pytest.raises(DicomError, match=r"one \.nii file") as refused:
            read_headers(tmp_path / name)
        assert refused.value.code == Code.NOT_DICOM


def test_without_nibabel(tmp_path, monkeypatch):
    path = save(tmp_path / "scan.nii", image_of(SLICES))
    monkeypatch.setattr("ich_mil.errors.find_spec", lambda name: None)
    with pytest.raises(DicomError, match=r"pip install 'ich-mil\[nifti\]'") as refused:
        nifti_headers(path, "scan")
    assert refused.value.code == Code.NO_DECODER
