"""A DICOMDIR whose images are there, or are not."""

import shutil
from pathlib import Path

import pytest
from pydicom import Dataset, dcmread
from pydicom.data import get_testdata_file

from ich_mil.dicom.files.dicomdir import lost_images
from ich_mil.dicom.files.header import read_headers
from ich_mil.errors import DicomError
from ich_mil.ledger import Code

STUDY = "77654033/CT2"
"""Five CT slices of one series on pydicom's medium."""

OTHER_SERIES = "98892003/MR700"
"""Others of its study are there."""


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
    shutil.rmtree(medium / OTHER_SERIES)
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


def test_only_images_that_a_record_names_are_looked_for(tmp_path):
    """The files lie beside the DICOMDIR; records of reports, and an image's without a file, are passed."""

    def record(kind, *file_id):
        item = Dataset()
        item.StudyInstanceUID, item.SeriesInstanceUID, item.DirectoryRecordType = "1.2", "1.2.3", kind
        if file_id:
            (item.ReferencedFileID,) = file_id
        return item

    records = [("IMAGE", "IM1"), ("IMAGE", "IM2"), ("SR DOCUMENT", "SR1"), ("IMAGE",), ("IMAGE", None)]
    directory = Dataset()
    directory.DirectoryRecordSequence = [record(*one) for one in records]
    (tmp_path / "IM1").touch()
    assert lost_images(tmp_path / "DICOMDIR", directory) == [("1.2", "IM2")]
