"""Texts of DICOM files: as they are written, in any character set, and only where the files still are."""

import shutil

import pytest
from pydicom import dcmread

from ich_mil.errors import DataError
from ich_mil.sets.preparation.identifying_texts import study_texts
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.preparation.record import prepared_study
from tests import phantoms


@pytest.fixture(scope="module")
def site(cq500_root, tmp_path_factory):
    """A folder with one series."""
    source = sorted(cq500_root.glob("CQ500CT*/*/*"))[0]
    return shutil.copytree(source, tmp_path_factory.mktemp("site") / "dicom")


@pytest.fixture(scope="module")
def prepared(site):
    for path in site.iterdir():
        text = {"StudyDescription": "<script>alert(1)</script>", "PatientName": "Ångström^Åsa"}
        phantoms.rewrite(path, SpecificCharacterSet="ISO_IR 192", **text)
    return prepare("unlabelled", site, site.parent / "set", jobs=1)


def test_texts_of_the_files(prepared):
    (scan,) = prepared.scans.index
    texts = study_texts(prepared_study(prepared, scan))
    assert texts["PatientName"] == "Ångström^Åsa"
    assert texts["StudyDescription"] == "<script>alert(1)</script>"
    assert texts["PatientID"].startswith("CQ500-CT-")
    assert "InstitutionName" not in texts


def test_source_files_from_below(prepared):
    (scan,) = prepared.scans.index
    files = prepared_study(prepared, scan).files
    table = prepared.slices(scan)
    assert [str(dcmread(path).SOPInstanceUID) for path in files] == table.sop.tolist()
    heights = [float(dcmread(path).ImagePositionPatient[2]) for path in files]
    assert heights == sorted(heights)


def test_files_that_are_gone(prepared):
    (scan,) = prepared.scans.index
    path = prepared_study(prepared, scan).files[0]
    path.unlink()
    with pytest.raises(DataError, match="cannot be read") as caught:
        study_texts(prepared_study(prepared, scan))
    assert str(path) in str(caught.value)
