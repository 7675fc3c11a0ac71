"""A folder of DICOM files as a source of studies."""

import os
import shutil

from pydicom import dcmread

from ich_mil.dicom_results.identity import MANUFACTURER as OURS
from ich_mil.serve import folder as folder_module
from ich_mil.serve.folder import MANUFACTURER, FolderSource
from tests.serve.fakes import ct_slice, key, result, uid, write


def files_of(source, study, out):
    """SOP instance UIDs of the files that a source fetches."""
    out.mkdir()
    source.study(key(study)).fetch(out)
    return sorted(dcmread(path).SOPInstanceUID for path in out.iterdir())


def test_files_are_grouped_by_study(tmp_path):
    root = tmp_path / "in"
    write(ct_slice(uid(1), 0), root / "a" / "x")
    write(ct_slice(uid(2), 0), root / "a" / "y.dcm")
    write(ct_slice(uid(1), 1), root / "b" / "z.dcm")
    odd = write(ct_slice(uid(1), 2), root / "b" / "odd.dcm")
    odd.write_bytes(odd.read_bytes().replace(rb"0\0\2", rb"x\0\2"))  # a position that is no number
    source = FolderSource(root, 0)
    assert set(source.waiting()) == {key(uid(1)), key(uid(2))}
    assert files_of(source, uid(1), tmp_path / "out") == sorted(uid(uid(1), k) for k in range(3))


def test_study_is_complete_after_silence(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(folder_module.time, "monotonic", lambda: now[0])
    path = write(ct_slice(uid(1), 0), tmp_path / "0.dcm")
    source = FolderSource(tmp_path, 30)

    def waiting_at(second):
        now[0] = float(second)
        return source.waiting()

    assert waiting_at(0) == waiting_at(29) == []
    assert waiting_at(30) == [key(uid(1))]
    signature = source.study(key(uid(1))).signature
    write(ct_slice(uid(1), 1), tmp_path / "1.dcm")  # a new file
    assert waiting_at(31) == waiting_at(60) == []
    assert waiting_at(61) == [key(uid(1))]
    assert source.study(key(uid(1))).signature != signature
    os.utime(path, ns=(0, 0))  # a changed file
    assert waiting_at(62) == waiting_at(91) == []
    assert waiting_at(92) == [key(uid(1))]
    source.settle(key(uid(1)))
    assert waiting_at(200) == []


def test_files_that_are_no_input_are_ignored(tmp_path):
    assert MANUFACTURER == OURS
    write(result([uid(1)], uid(1)), tmp_path / "report-1.dcm")
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "empty").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    write(ct_slice("", 0), tmp_path / "no-uid.dcm")
    assert FolderSource(tmp_path, 0).waiting() == []


def test_file_that_becomes_readable_is_read(tmp_path):
    whole = write(ct_slice(uid(1), 0), tmp_path / "whole.dcm")
    source = FolderSource(tmp_path / "in", 0)
    assert source.waiting() == []  # the folder is away
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.dcm").write_bytes(whole.read_bytes()[:140])
    assert source.waiting() == []
    (tmp_path / "in" / "0.dcm").write_bytes(whole.read_bytes())
    assert source.waiting() == [key(uid(1))]


def test_newer_of_two_files_of_a_slice_is_used(tmp_path):
    root = tmp_path / "in"
    for number, name in enumerate(("b.dcm", "a.dcm")):
        path = write(ct_slice(uid(1), 0, InstanceNumber=number), root / name)
        os.utime(path, ns=(number, number))
    write(ct_slice(uid(1), 0, ImagePositionPatient=[0, 0, 9]), root / "another slice.dcm")
    source = FolderSource(root, 0)
    source.waiting()
    (tmp_path / "out").mkdir()
    source.study(key(uid(1))).fetch(tmp_path / "out")
    images = [dcmread(path) for path in sorted((tmp_path / "out").iterdir())]
    assert [(image.InstanceNumber, image.ImagePositionPatient[2]) for image in images] == [(1, 0), (0, 9)]


def test_deleted_study_is_no_longer_waiting(tmp_path):
    write(ct_slice(uid(1), 0), tmp_path / "in" / "0.dcm")
    source = FolderSource(tmp_path / "in", 0)
    assert source.waiting()
    shutil.rmtree(tmp_path / "in")
    assert source.waiting() == []
