"""A DICOMDIR whose images are there, or are not."""

import shutil
from pathlib import Path

import pytest
from pydicom import dcmread
from pydicom.data import get_testdata_file

from ich_mil.dicom.header import read_headers
from ich_mil.errors import DicomError
from ich_mil.ledger import Code

STUDY = "77654033/CT2"
"""Five CT slices of one series on pydicom's medium."""


@pytest.fixture
def medium(tmp_path):
    """A copy of pydicom's medium."""
    source = get_testdata_file("DICOMDIR")
    assert source is not None
    return Path(shutil.copytree(Path(source).parent, tmp_path / "cd"))


def refused(path):
    with pytest.raises(DicomError) as caught:
        read_headers(path)
    return caught.value


def test_a_medium_that_is_whole_or_without_a_series(medium):
    assert refused(medium / "DICOMDIR").code == Code.NOT_AN_IMAGE
    shutil.rmtree(medium / STUDY)
    assert refused(medium / "DICOMDIR").code == Code.NOT_AN_IMAGE


def test_an_image_that_was_lost_is_told_with_its_study(medium):
    first, *others = sorted((medium / STUDY).iterdir())
    study = dcmread(first).StudyInstanceUID
    first.unlink()
    error = refused(medium / "DICOMDIR")
    assert (error.code, error.study_uid) == (Code.NOT_OPENED, study)
    assert f"1 of the images it names are not there, such as {STUDY}/{first.name}" in str(error)
    for path in (medium / STUDY).iterdir():
        path.rename(path.with_name(path.name.lower()))  # as some systems show a CD
    assert "1 of the images" in str(refused(medium / "DICOMDIR"))
    others[0].with_name(others[0].name.lower()).unlink()
    assert "2 of the images" in str(refused(medium / "DICOMDIR"))
