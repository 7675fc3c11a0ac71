"""Texts of DICOM files: as they are written, in any character set, and only where the files still are."""

import pytest
from pydicom import dcmread
from pydicom.config import disable_value_validation

from ich_mil.data.preparation.identifying_texts import source_files, study_texts
from ich_mil.data.preparation.prepare import prepare
from ich_mil.errors import DataError
from tests import phantoms


@pytest.fixture
def prepared(tmp_path):
    root = phantoms.cq500(tmp_path / "site", studies=1)
    for path in root.rglob("*.dcm"):
        image = dcmread(path)
        image.SpecificCharacterSet = "ISO_IR 192"
        image.PatientName = "Ångström^Åsa"
        with disable_value_validation():
            image.StudyDescription = "<script>alert(1)</script>"
        image.save_as(path)
    return prepare("unlabelled", root, tmp_path / "set", jobs=1, thickness_mm=5.0)


def test_texts_are_those_of_the_files(prepared):
    (scan,) = prepared.scans.index
    texts = study_texts(prepared, scan)
    assert texts["PatientName"] == "Ångström^Åsa"
    assert texts["StudyDescription"] == "<script>alert(1)</script>"
    assert texts["PatientID"] == "CQ500-CT-0"
    assert "InstitutionName" not in texts


def test_japanese_of_seven_bits_is_decoded(tmp_path):
    """ISO 2022 IR 87 switches to kanji by an escape sequence, and all its bytes are ASCII."""
    root = phantoms.cq500(tmp_path / "site", studies=1)
    for path in root.rglob("*.dcm"):
        image = dcmread(path)
        image.SpecificCharacterSet = ["", "ISO 2022 IR 87"]
        image.PatientName = "Yamada^Tarou=山田^太郎"
        image.StudyDescription = "頭部\\縦"
        image.save_as(path)
    prepared = prepare("unlabelled", root, tmp_path / "set", jobs=1, thickness_mm=5.0)
    texts = study_texts(prepared, prepared.scans.index[0])
    assert texts["PatientName"] == "Yamada^Tarou=山田^太郎"
    assert texts["StudyDescription"] == "頭部\\縦"


def test_source_files_are_those_of_the_slices_from_below(prepared):
    (scan,) = prepared.scans.index
    files = source_files(prepared, scan)
    table = prepared.slices(scan)
    assert [str(dcmread(path).SOPInstanceUID) for path in files] == table.sop.tolist()
    heights = [float(dcmread(path).ImagePositionPatient[2]) for path in files]
    assert heights == sorted(heights)


def test_files_that_are_gone_are_told(prepared):
    (scan,) = prepared.scans.index
    path = source_files(prepared, scan)[0]
    path.unlink()
    with pytest.raises(DataError, match="without names") as caught:
        study_texts(prepared, scan)
    assert str(path) in str(caught.value)
