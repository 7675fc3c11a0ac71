"""A folder of DICOM files as a source of studies."""

import csv
import os
import shutil
from pathlib import Path

import pytest
from pydicom import dcmread

from ich_mil.dicom_results.identity import MANUFACTURER as OURS
from ich_mil.errors import DataError
from ich_mil.ledger import Code, incomplete
from ich_mil.serve import folder as folder_module
from ich_mil.serve.folder import MANUFACTURER, FolderSource
from ich_mil.sets.preparation.read import read_study
from tests.serve.fakes import ct_slice, key, result, uid, write


def files_of(source, study, out):
    """SOP instance UIDs of the files that a source fetches."""
    out.mkdir()
    source.study(key(study)).fetch(out)
    return sorted(dcmread(path).SOPInstanceUID for path in out.rglob("*") if path.is_file())


def test_files_are_grouped_by_study(tmp_path):
    root = tmp_path / "in"
    write(ct_slice(uid(1), 0), root / "a" / "x")
    write(ct_slice(uid(2), 0), root / "a" / "y.dcm")
    write(ct_slice(uid(1), 1), root / "b" / "z.dcm")
    odd = write(ct_slice(uid(1), 2), root / "b" / "odd.dcm")
    odd.write_bytes(odd.read_bytes().replace(rb"0\0\2", rb"x\0\2"))  # a position that is no number
    source = FolderSource(root, tmp_path / "out", 0)
    assert set(source.waiting()) == {key(uid(1)), key(uid(2))}
    assert files_of(source, uid(1), tmp_path / "work") == sorted(uid(uid(1), k) for k in range(3))


def test_study_is_complete_after_silence(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(folder_module.time, "monotonic", lambda: now[0])
    path = write(ct_slice(uid(1), 0), tmp_path / "0.dcm")
    source = FolderSource(tmp_path, tmp_path.parent / "out", 30)

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
    out = tmp_path.parent / f"{tmp_path.name}-out"
    assert FolderSource(tmp_path, out, 0).waiting() == []
    assert "notes.txt" not in (out / "ledger.csv").read_text()


def cut(path):
    """A file that ends within its StudyInstanceUID."""
    content = write(ct_slice(uid("cut"), 0), path).read_bytes()
    path.write_bytes(content[: content.index(uid("cut").encode()) + 30])


def lost_of(tmp_path, *studies):
    """Files that count for each study without being of it, and the files of the ledger."""
    source = FolderSource(tmp_path / "in", tmp_path / "out", 0)
    assert {*source.waiting()} == {key(uid(study)) for study in studies}
    lost = []
    for study in studies:
        folder = tmp_path / f"work{study}"
        folder.mkdir()
        source.study(key(uid(study))).fetch(folder)
        lost.append({str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink()})
    with (tmp_path / "out" / "ledger.csv").open(newline="") as file:
        return *lost, {row["file"]: row["code"] for row in csv.DictReader(file)}


def test_file_without_a_study_counts_for_the_studies_of_its_folder(tmp_path):
    root = tmp_path / "in"
    for study in (1, 2):
        write(ct_slice(uid(study), 0), root / "a" / f"IM000{study}")
    write(ct_slice(uid(3), 0), root / "b" / "c" / "IM0001")
    for empty in ("a/IM0003", "a/readme", "b/c/IM0002", "b/d/IM0003", "e/IM0004", "IM0005"):
        (root / empty).parent.mkdir(exist_ok=True)
        (root / empty).touch()
    cut(root / "a" / "cut")
    write(ct_slice("", 0), root / "e" / "no-uid")
    (root / "e" / "export.zip").write_bytes(b"PK" * 100)
    (root / "a" / "dangling1").symlink_to(root / "absent")
    (root / "a" / "IM0006").symlink_to(root / "absent")
    both = {"a/IM0003", "a/cut", "a/IM0006"}
    one, two, three, strays = lost_of(tmp_path, 1, 2, 3)
    assert (one, two, three) == (both, both, {"b/c/IM0002", "b/d/IM0003"})
    damaged = {"e/IM0004": "unreadable", "IM0005": "unreadable"}
    assert strays == damaged | {"e/no-uid": "no-uid", "e/export.zip": "not-opened"}


def test_damaged_files_of_a_study_are_in_its_ledger(tmp_path):
    root = tmp_path / "in"
    root.mkdir()
    head = Path(__file__).parents[2] / "data" / "sample" / "head_ct"
    names = sorted(path.name for path in head.iterdir() if path.suffix == ".dcm")
    for number, name in enumerate(names):
        (root / name).write_bytes(
            b"" if number == 3 else (head / name).read_bytes()[: 400 if number == 4 else None]
        )
    source = FolderSource(tmp_path / "in", tmp_path / "out", 0)
    (study,) = source.waiting()
    (tmp_path / "work").mkdir()
    source.study(study).fetch(tmp_path / "work")
    ledger = read_study(tmp_path / "work").ledger
    assert {line.file for line in ledger if line.code == Code.UNREADABLE} == {*names[3:5]}
    assert incomplete(ledger)


def test_lost_file_counts_once_it_is_silent(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(folder_module.time, "monotonic", lambda: now[0])
    root = tmp_path / "in"
    write(ct_slice(uid(1), 0), root / "IM1")
    source = FolderSource(root, tmp_path / "out", 30)

    def waiting_at(second):
        now[0] = float(second)
        return source.waiting()

    assert waiting_at(0) == []
    assert waiting_at(30) == [key(uid(1))]
    signature = source.study(key(uid(1))).signature
    source.settle(key(uid(1)))
    (root / "IM2").touch()
    assert waiting_at(40) == []
    write(ct_slice(uid(2), 0), root / "IM2")  # it was being written
    assert waiting_at(41) == []
    assert waiting_at(71) == [key(uid(2))]
    source.settle(key(uid(2)))
    cut(root / "IM3")
    assert waiting_at(80) == waiting_at(109) == []
    assert {*waiting_at(110)} == {key(uid(1)), key(uid(2))}
    assert source.study(key(uid(1))).signature != signature
    for name in (uid(1), uid(2)):
        source.settle(key(name))
    (root / "IM3").unlink()
    assert {*waiting_at(111)} == {key(uid(1)), key(uid(2))}
    assert source.study(key(uid(1))).signature == signature
    for study in (1, 2):
        source.settle(key(uid(study)))
    assert waiting_at(200) == []


def test_file_of_no_study_is_logged_once(tmp_path, caplog):
    (tmp_path / "in").mkdir()
    cut(tmp_path / "in" / "Secret^Name")
    source = FolderSource(tmp_path / "in", tmp_path / "out", 0)
    for _ in range(3):
        source.waiting()
    assert caplog.messages == ["files of no study: 1, see ledger.csv"]
    (tmp_path / "in" / "Secret^Name").unlink()
    source.waiting()
    assert len(caplog.messages) == 1
    assert "Secret" not in (tmp_path / "out" / "ledger.csv").read_text()


def test_links_are_read(tmp_path):
    write(ct_slice(uid(1), 0), tmp_path / "elsewhere" / "0.dcm")
    target = write(ct_slice(uid(2), 0), tmp_path / "1.dcm")
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "a" / "file").symlink_to(target)
    (tmp_path / "in" / "a" / "above").symlink_to(tmp_path / "in")
    source = FolderSource(tmp_path / "in", tmp_path / "out", 0)
    assert {*source.waiting()} == {key(uid(1)), key(uid(2))}
    assert files_of(source, uid(1), tmp_path / "work") == [uid(uid(1), 0)]
    os.utime(target, ns=(0, 0))
    source.settle(key(uid(1)))
    source.settle(key(uid(2)))
    target.write_bytes(target.read_bytes() + b"\0")
    assert source.waiting() == [key(uid(2))]


def test_file_keeps_its_path(tmp_path):
    for folder in "ab":
        write(ct_slice(uid(1), ord(folder)), tmp_path / "in" / folder / "IM1")
    source = FolderSource(tmp_path / "in", tmp_path / "out", 0)
    source.waiting()
    (tmp_path / "work").mkdir()
    source.study(key(uid(1))).fetch(tmp_path / "work")
    assert {str(path.relative_to(tmp_path / "work")) for path in (tmp_path / "work").rglob("IM1")} == {
        "a/IM1",
        "b/IM1",
    }


def test_file_that_becomes_readable_is_read(tmp_path):
    whole = write(ct_slice(uid(1), 0), tmp_path / "whole.dcm")
    source = FolderSource(tmp_path / "in", tmp_path / "out", 0)
    with pytest.raises(DataError, match=r"in: .*No such file"):  # the folder is away
        source.waiting()
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
    source = FolderSource(root, tmp_path / "out", 0)
    source.waiting()
    (tmp_path / "work").mkdir()
    source.study(key(uid(1))).fetch(tmp_path / "work")
    images = [dcmread(path) for path in sorted((tmp_path / "work").iterdir())]
    assert [(image.InstanceNumber, image.ImagePositionPatient[2]) for image in images] == [(1, 0), (0, 9)]


def test_deleted_study_is_no_longer_waiting(tmp_path):
    write(ct_slice(uid(1), 0), tmp_path / "in" / "a" / "0.dcm")
    source = FolderSource(tmp_path / "in", tmp_path / "out", 0)
    assert source.waiting()
    shutil.rmtree(tmp_path / "in" / "a")
    assert source.waiting() == []
