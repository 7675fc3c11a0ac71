"""What archives do to a run: files that come and go, odd names, packages that come later, damaged results."""

import csv
import json
import os
import shutil
import socket
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pydicom import dcmread
from pydicom.config import disable_value_validation
from pydicom.uid import JPEGLSLossless

from ich_mil.data.preparation.prepare import prepare
from ich_mil.data.splits import patient_key
from ich_mil.data.store import scan_file
from ich_mil.dicom.files import codec
from ich_mil.dicom.files.header import read_headers
from ich_mil.errors import DataError
from ich_mil.ledger import Code
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


def test_a_positive_slice_that_cannot_be_read_still_labels_its_scan(rsna, tmp_path):
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


def test_the_patient_of_a_series_that_was_not_chosen_is_told_and_does_not_stand_for_the_scan(study, tmp_path):
    for path in study[:3]:
        phantoms.rewrite(path, PatientID="aaa", SeriesInstanceUID="1.2.9", SeriesDescription="TIMING")
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert (prepared.ledger.code == Code.SERIES_NOT_CHOSEN).sum() == 1
    (left,) = {header.patient_id for path in study[3:] for header in read_headers(path)}
    assert set(prepared.table.patient) == {patient_key(left)}
    (detail,) = prepared.ledger.detail[prepared.ledger.code == Code.SEVERAL_PATIENTS]
    assert f"2 patients: {patient_key(left)}, {patient_key('aaa')};" in detail


def test_a_chosen_series_that_names_no_patient_is_of_the_patient_of_the_others(study, tmp_path):
    for path in study[:3]:
        phantoms.rewrite(path, PatientID="aaa", SeriesInstanceUID="1.2.9", SeriesDescription="TIMING")
    for path in study[3:]:
        phantoms.rewrite(path, PatientID="")
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert set(prepared.table.patient) == {patient_key("aaa")}
    assert not prepared.ledger.code.isin([Code.PATIENT_MISSING, Code.SEVERAL_PATIENTS]).any()


def test_every_file_of_a_series_without_a_head_is_told(study, tmp_path, monkeypatch):
    for path in study:
        shutil.copy(path, tmp_path / "set" / f"copy-{path.name}")
    monkeypatch.setattr("ich_mil.data.preparation.scan.head_refusal", lambda hu, *, spacing: "it is a foot")
    with pytest.raises(DataError, match="no scan has a usable slice"):
        prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    codes = pd.read_csv(tmp_path / "out" / "ledger.csv").code.tolist()
    assert codes.count(Code.DUPLICATE) == len(study)
    assert codes.count(Code.NO_HEAD) == 1


def test_a_package_that_is_installed_later_is_used(study, tmp_path, monkeypatch):
    with disable_value_validation():
        image = dcmread(study[4])
        image.compress(JPEGLSLossless)
        image.save_as(study[4])
    monkeypatch.setattr(codec, "find_spec", lambda name: None if name == "jpeg_ls" else find_spec(name))
    first = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert len(first.table) == len(study) - 1
    assert first.ledger.set_index("file").code[study[4].name] == Code.NO_DECODER
    monkeypatch.undo()
    second = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert len(second.table) == len(study)
    assert Code.NO_DECODER not in set(second.ledger.code)


def test_a_file_that_could_not_be_opened_is_tried_again(study, tmp_path):
    hidden = study[2].rename(tmp_path / "elsewhere.dcm")
    study[2].symlink_to(tmp_path / "nowhere")
    first = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert first.ledger.set_index("file").code[study[2].name] == Code.NOT_OPENED
    (tmp_path / "nowhere").symlink_to(hidden)
    assert len(prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1).table) == len(study)


@pytest.mark.parametrize("text", ["null", '{"format": "ich_mil.prepared.3"}', "{"])
def test_damaged_results_are_made_again(study, tmp_path, text):
    first = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    path = scan_file(tmp_path / "out", first.table.scan[0])
    want = path.read_bytes(), path.with_suffix(".json").read_bytes()
    path.with_suffix(".json").write_text(text)
    prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert (path.read_bytes(), path.with_suffix(".json").read_bytes()) == want
    path.write_bytes(want[0][: len(want[0]) // 2])
    prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert (path.read_bytes(), path.with_suffix(".json").read_bytes()) == want
    (tmp_path / "out" / "prepared.json").write_text(text)
    if text in ("{", "null"):
        with pytest.raises(DataError, match=r"prepared\.json: is damaged"):
            prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    else:
        again = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
        assert again.fingerprint == first.fingerprint


def test_scans_whose_files_are_gone_leave_nothing(rsna, tmp_path):
    first = prepare("unlabelled", rsna / "stage_2_train", tmp_path / "out", jobs=1)
    gone, *rest = first.scans.index
    for source in first.slices(gone).source:
        (rsna / "stage_2_train" / source).unlink()
    second = prepare("unlabelled", rsna / "stage_2_train", tmp_path / "out", jobs=1)
    assert list(second.scans.index) == rest
    stems = {path.stem for path in (tmp_path / "out" / "scans").iterdir()}
    assert stems == {scan_file(tmp_path, scan).stem for scan in rest}


@pytest.mark.timeout(60)
def test_pipes_and_sockets_are_no_files_to_wait_for(study, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "set" / "pipe")
    monkeypatch.chdir(tmp_path / "set")  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("agent.sock")
        prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    codes = prepared.ledger.set_index("file").code
    assert codes["pipe"] == codes["agent.sock"] == Code.NOT_DICOM


def test_another_layout_after_a_run_that_failed(rsna, tmp_path):
    (rsna / "labels.csv").write_text("scan,label\nnobody,1\n")
    with pytest.raises(DataError, match=r"labels\.csv: .* nobody \(line 2\)"):
        prepare("folder", rsna, tmp_path / "out", jobs=1)
    prepared = prepare("rsna", rsna, tmp_path / "out", jobs=1)
    assert prepared.table.source.str.startswith("stage_2_train/").all()
    assert len(prepared.scans) == 4


def test_a_result_inside_the_folder_that_is_read(study, tmp_path):
    """It is no part of the collection, and nothing is written among the DICOM files."""
    out = tmp_path / "set" / "result"
    first = prepare("unlabelled", tmp_path / "set", out, jobs=1)
    second = prepare("unlabelled", tmp_path / "set", out, jobs=1)
    assert second.ledger.equals(first.ledger)
    assert not second.ledger.file.str.startswith("result").any()
    for root in (tmp_path / "set", tmp_path / "set" / "a"):
        with pytest.raises(DataError, match=rf"set: is or holds the folder to read \({root}\); choose"):
            prepare("unlabelled", root, tmp_path / "set", jobs=1)


def test_names_that_would_break_a_line(study, tmp_path):
    (tmp_path / "set" / "bad\rname,\n.txt").write_text("no picture")
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert prepared.ledger.file.tolist().count("bad\rname,\n.txt") == 1
    with (tmp_path / "out" / "ledger.csv").open(newline="") as file:
        assert {len(row) for row in csv.reader(file)} == {4}


def test_a_relative_root_and_the_archive_folder_of_rsna(rsna_root, tmp_path, monkeypatch):
    shutil.copytree(rsna_root, tmp_path / "rsna-intracranial-hemorrhage-detection")
    monkeypatch.chdir(tmp_path)
    prepared = prepare("rsna", Path(), tmp_path / "out", jobs=2)
    assert prepared.table.source.str.startswith("rsna-intracranial-hemorrhage-detection/stage_2_train/").all()
    about = json.loads((tmp_path / "out" / "prepared.json").read_text())
    assert about["root"] == str(tmp_path)
    assert np.isfinite(prepared.hu(prepared.scans.index[0]).mean())
