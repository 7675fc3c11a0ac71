"""Studies in ZIP files and single files: as those of a folder; no file is left in the temporary folder."""

import shutil
import tempfile

import numpy as np
import pandas as pd
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MediaStorageDirectoryStorage

import ich_mil
from ich_mil.errors import DataError
from ich_mil.ledger import Code, incomplete, ledger_entries, problems
from ich_mil.sets.preparation.identifying_texts import study_texts
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.preparation.record import prepared_study

VIEWER = {
    "autorun.inf": b"[autorun]\r\nopen=VIEWER\\viewer.exe",
    "VIEWER/viewer.exe": b"MZ" + bytes(range(256)),
    "VIEWER/lib/view.jar": b"PK\x03\x04",
    "INDEX.HTM": b"<html></html>",
    "README.TXT": b"Start the viewer",
}


@pytest.fixture(scope="module")
def site(cq500_root, tmp_path_factory):
    """Two studies, and beside `site` a ZIP of them."""
    root = tmp_path_factory.mktemp("zip") / "site"
    for folder in sorted(cq500_root.glob("CQ500CT*"))[:2]:
        shutil.copytree(folder, root / folder.name)
    shutil.make_archive(str(root), "zip", root)
    return root


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


def test_a_zip_is_prepared_as_its_folder(site, tmp_path, capsys):
    packed = site.with_suffix(".zip")
    whole = prepare("unlabelled", site, tmp_path / "a", jobs=1)
    prepared = prepare("unlabelled", packed, tmp_path / "b", jobs=1)
    pd.testing.assert_frame_equal(prepared.table, whole.table)
    pd.testing.assert_frame_equal(prepared.ledger, whole.ledger)
    assert prepared.folders == whole.folders
    assert len(prepared.scans) == 2
    for scan in prepared.scans.index:
        texts = study_texts(prepared_study(prepared, scan))
        assert texts == study_texts(prepared_study(whole, scan))
        with prepared_study(prepared, scan).on_disk() as study:
            sops = [str(dcmread(path).SOPInstanceUID) for path in study.files]
        assert sops == prepared.slices(scan).sop.tolist()

    capsys.readouterr()
    prepare("unlabelled", packed, tmp_path / "b", jobs=1)
    assert "0 scans prepared now" in capsys.readouterr().out
    with pytest.raises(DataError, match="was prepared with root"):
        prepare("unlabelled", site, tmp_path / "b", jobs=1)


def test_a_study_of_a_zip_in_memory(site, tmp_path):
    with pytest.raises(DataError, match=r"site\.zip: holds 2 studies"):
        ich_mil.read_study(site.with_suffix(".zip"))
    first = min(site.iterdir())
    packed = shutil.make_archive(str(tmp_path / "first"), "zip", first)
    study, whole = ich_mil.read_study(packed), ich_mil.read_study(first)
    np.testing.assert_array_equal(study.hu, whole.hu)
    assert (study.id, study.folder, study.ledger) == (whole.id, whole.folder, whole.ledger)
    assert study_texts(study) == study_texts(whole) != {}
    (tmp_path / "first.zip").unlink()
    with pytest.raises(DataError, match="put the DICOM files back"):
        study_texts(study)


def test_a_single_file(site, tmp_path):
    path = sorted(site.rglob("*.dcm"))[3]
    study = ich_mil.read_study(path, thickness_mm=0)
    assert (len(study.hu), study.files) == (1, [path])
    (tmp_path / "note.txt").write_text("no picture")
    with pytest.raises(DataError, match=r"note\.txt: none of its 1 files is a CT slice.*not a DICOM file"):
        ich_mil.read_study(tmp_path / "note.txt")


def test_directory_and_viewer_of_an_export_are_no_problem(site, tmp_path):
    export = tmp_path / "export"
    shutil.copytree(min(site.iterdir()), export / "DICOM")
    index = Dataset()
    index.FileSetID, index.DirectoryRecordSequence = "EXPORT", []
    index.file_meta = FileMetaDataset()
    index.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    index.file_meta.MediaStorageSOPClassUID = MediaStorageDirectoryStorage
    index.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    index.save_as(export / "DICOMDIR", enforce_file_format=True)
    for name, content in VIEWER.items():
        (export / name).parent.mkdir(parents=True, exist_ok=True)
        (export / name).write_bytes(content)
    plain = prepare("unlabelled", min(site.iterdir()), tmp_path / "plain", jobs=1)
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", export)
    prepared = prepare("unlabelled", export.parent / packed, tmp_path / "set", jobs=1)
    ledger, wanted = (ledger_entries(one.ledger.to_dict("records")) for one in (prepared, plain))
    assert (problems(ledger), incomplete(ledger)) == (problems(wanted), incomplete(wanted))
    codes = {line.file: line.code for line in ledger}
    assert codes["DICOMDIR"] == Code.NOT_AN_IMAGE
    assert {codes[name] for name in VIEWER} == {Code.NOT_DICOM}


def test_a_zip_in_a_zip_is_told_and_not_opened(site, tmp_path):
    export = shutil.copytree(min(site.iterdir()), tmp_path / "export")
    shutil.copy(site.with_suffix(".zip"), export / "more.zip")
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", export)
    study = ich_mil.read_study(packed)
    (line,) = [line for line in study.ledger if line.file == "more.zip"]
    assert line.code == Code.NOT_OPENED
    assert Code.NOT_OPENED in incomplete(study.ledger)
