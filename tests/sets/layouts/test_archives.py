"""What archives do to a run: files that come and go, odd names, packages that come later, damaged results."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.config import disable_value_validation
from pydicom.uid import JPEGLSLossless

from ich_mil.errors import DataError
from ich_mil.ledger import Code
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.splits import patient_key
from ich_mil.sets.store import FORMAT, scan_file
from ich_mil.study.files import codec
from ich_mil.study.files.header import read_headers
from tests import phantoms

pytestmark = pytest.mark.filterwarnings("ignore:Invalid value for VR UI")


@pytest.fixture
def rsna(rsna_root, tmp_path):
    return shutil.copytree(rsna_root, tmp_path / "rsna")


@pytest.fixture
def study(rsna_root, tmp_path):
    """A folder `set` with one study, its files in order from below."""
    by_study = {}
    for path in sorted((rsna_root / "stage_2_train").iterdir()):
        header = read_headers(path)[0]
        by_study.setdefault(header.study_uid, []).append((header.position[2], path))
    (tmp_path / "set").mkdir()
    members = sorted(min(by_study.values(), key=len))
    return [shutil.copy(path, tmp_path / "set" / path.name) for _, path in members]


def test_unreadable_positive_slice_labels_its_scan(rsna, tmp_path):
    before = prepare("rsna", rsna, tmp_path / "before", jobs=1)
    scan = before.scans.index[before.scans.label == 1][0]
    positive = before.slices(scan)[before.slices(scan).slice_label == 1]
    for source in positive.source:
        path = rsna / source
        path.write_bytes(path.read_bytes()[:-3000])
    after = prepare("rsna", rsna, tmp_path / "after", jobs=1)
    assert len(after.slices(scan)) == len(before.slices(scan)) - len(positive)
    assert (after.slices(scan).slice_label == 0).all()
    assert after.scans.label[scan] == 1


def test_two_patients_in_one_study(study, tmp_path):
    for path in study[:3]:
        phantoms.rewrite(path, PatientID="aaa", SeriesInstanceUID="1.2.9", SeriesDescription="TIMING")
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert (prepared.ledger.code == Code.SERIES_NOT_CHOSEN).sum() == 1
    (left,) = {header.patient_id for path in study[3:] for header in read_headers(path)}
    assert set(prepared.table.patient) == {patient_key(left)}
    (detail,) = prepared.ledger.detail[prepared.ledger.code == Code.SEVERAL_PATIENTS]
    assert f"2 patients: {patient_key(left)}, {patient_key('aaa')};" in detail


def test_decoder_installed_later(study, tmp_path, monkeypatch):
    with disable_value_validation():
        image = dcmread(study[4])
        image.compress(JPEGLSLossless)
        image.save_as(study[4])
    monkeypatch.setattr(codec, "find_spec", lambda name: None if name == "gdcm" else find_spec(name))
    first = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert len(first.table) == len(study) - 1
    assert first.ledger.set_index("file").code[study[4].name] == Code.NO_DECODER
    monkeypatch.undo()
    second = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert len(second.table) == len(study)
    assert Code.NO_DECODER not in set(second.ledger.code)


def test_file_that_could_not_be_opened(study, tmp_path):
    hidden = study[2].rename(tmp_path / "elsewhere.dcm")
    study[2].symlink_to(tmp_path / "nowhere")
    first = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert first.ledger.set_index("file").code[study[2].name] == Code.NOT_OPENED
    (tmp_path / "nowhere").symlink_to(hidden)
    assert len(prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1).table) == len(study)


def test_damaged_results_are_prepared_again(study, tmp_path):
    first = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    path = scan_file(tmp_path / "out", first.table.scan[0])
    want = path.read_bytes(), path.with_suffix(".json").read_bytes()
    record, older = path.with_suffix(".json"), want[1].replace(FORMAT.encode(), b"ich_mil.prepared.2")
    for damaged, content in ((record, b"{"), (record, older), (path, want[0][: len(want[0]) // 2])):
        damaged.write_bytes(content)
        prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
        assert (path.read_bytes(), path.with_suffix(".json").read_bytes()) == want
    (tmp_path / "out" / "prepared.json").write_text("{")
    with pytest.raises(DataError, match=r"prepared\.json: is damaged"):
        prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)


def test_result_inside_the_input_folder(study, tmp_path):
    """It is no part of the collection, and nothing is written among the DICOM files."""
    out = tmp_path / "set" / "result"
    first = prepare("unlabelled", tmp_path / "set", out, jobs=1)
    second = prepare("unlabelled", tmp_path / "set", out, jobs=1)
    assert second.ledger.equals(first.ledger)
    assert not second.ledger.file.str.startswith("result").any()
    for root in (tmp_path / "set", tmp_path / "set" / "a"):
        with pytest.raises(DataError, match=rf"set: is or holds the folder to read \({root}\); choose"):
            prepare("unlabelled", root, tmp_path / "set", jobs=1)


def test_relative_root_and_archive_folder(rsna_root, tmp_path, monkeypatch):
    shutil.copytree(rsna_root, tmp_path / "rsna-intracranial-hemorrhage-detection")
    monkeypatch.chdir(tmp_path)
    prepared = prepare("rsna", Path(), tmp_path / "out", jobs=2)
    assert prepared.table.source.str.startswith("rsna-intracranial-hemorrhage-detection/stage_2_train/").all()
    about = json.loads((tmp_path / "out" / "prepared.json").read_text())
    assert about["root"] == str(tmp_path)
    assert np.isfinite(prepared.hu(prepared.scans.index[0]).mean())
