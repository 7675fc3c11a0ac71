"""The header index: what is kept, what is read again, what a broken one says."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from ich_mil.errors import DataError
from ich_mil.ledger import INCOMPLETE, Code
from ich_mil.sets.layouts.collection import Source
from ich_mil.sets.layouts.folder import FolderCollection
from ich_mil.sets.preparation import file_headers
from ich_mil.sets.preparation import index as module
from ich_mil.sets.preparation.file_headers import may_be_slice, shape_of
from ich_mil.sets.preparation.index import HeaderIndex
from ich_mil.sets.splits import patient_key
from ich_mil.study.files.header import read_headers

pytestmark = pytest.mark.filterwarnings("ignore:Invalid value for VR UI")


@pytest.fixture
def root(rsna_root, tmp_path):
    """Four studies in one folder, and a file that is none."""
    folder = Path(shutil.copytree(rsna_root / "stage_2_train", tmp_path / "set"))
    (folder / "notes.txt").write_text("no picture")
    return folder


def opened(root, path, *, layout="unlabelled", leave_out=None):
    collection = FolderCollection(root, labelled=False)
    return HeaderIndex(path, collection, layout=layout, leave_out=leave_out or path.parent / "out")


def count_reads(monkeypatch):
    """The files whose headers are read from now on."""
    asked = []
    read = file_headers.read_headers
    monkeypatch.setattr(file_headers, "read_headers", lambda path: asked.append(path.name) or read(path))
    return asked


def updated(root, path, **changes):
    """Fingerprint of each scan after an update of the index."""
    with opened(root, path, **changes) as index:
        index.update(jobs=1)
        return {scan.scan: scan.fingerprint for scan in index.scans()}


def test_headers_come_back_as_they_were_read(root, tmp_path):
    with opened(root, tmp_path / "index.sqlite") as index:
        assert index.update(jobs=1) == len(list(root.iterdir()))
        scans = list(index.scans())
        assert [scan.scan for scan in scans] == sorted(scan.scan for scan in scans)
        kept = [header for scan in scans for header in index.headers(scan.scan)]
    assert len(kept) == len(list(root.iterdir())) - 1
    for header in kept:
        (fresh,) = read_headers(root / header.path)
        assert header.patient_id == patient_key(fresh.patient_id) != fresh.patient_id
        assert vars(header) | {"path": "", "patient_id": ""} == vars(fresh) | {"path": "", "patient_id": ""}


def test_refused_file_has_scan_and_path(root, tmp_path):
    path = sorted(root.glob("*.dcm"))[0]
    (header,) = read_headers(path)
    study = header.study_uid
    path.write_bytes(path.read_bytes()[:-100])
    with opened(root, tmp_path / "index.sqlite") as index:
        index.update(jobs=1)
        refused = {entry.file: (entry.scan, entry.code) for entry in index.refused()}
        assert index.refused_sources() == {study: [Source(path.name, header.sop_uid)]}
        assert all(entry.detail.startswith(f"{entry.file}: ") for entry in index.refused())
    assert refused == {path.name: (study, Code.UNREADABLE), "notes.txt": ("", Code.NOT_DICOM)}


@pytest.mark.parametrize(
    ("place", "owner"), [("a/x.dcm", "a"), ("a/empty/x.dcm", "a"), ("x.dcm", ""), ("other/x.dcm", "")]
)
def test_file_without_a_study_belongs_to_its_neighbours(root, tmp_path, place, owner):
    """Three studies in folders of their own; `a-b` is sorted before `a/`. The file has no bytes."""
    studies = {}
    for path in sorted(root.glob("*.dcm")):
        studies.setdefault(read_headers(path)[0].study_uid, []).append(path)
    base = tmp_path / "three"
    for folder, paths in zip(("a", "a0", "a-b"), studies.values(), strict=False):
        (base / folder).mkdir(parents=True)
        for path in paths:
            shutil.copy(path, base / folder)
    (base / place).parent.mkdir(exist_ok=True)
    (base / place).touch()
    (base / "a" / "notes.txt").write_text("no picture")
    with opened(base, tmp_path / "index.sqlite") as index:
        index.update(jobs=1)
        told = {entry.file: (entry.scan, entry.code) for entry in index.refused()}
    want = next(iter(studies)) if owner else ""
    assert told == {place: (want, Code.UNREADABLE), "a/notes.txt": ("", Code.NOT_DICOM)}


@pytest.mark.parametrize(
    ("name", "content", "lost"),
    [
        ("IM0999.DCM", b"version https://git-lfs.github.com/spec/v1\n", True),
        (".gitkeep", b"", False),
        ("notes.txt", b"text", False),
    ],
)
def test_file_named_like_a_slice(root, tmp_path, name, content, lost):
    study = read_headers(sorted(root.glob("*.dcm"))[0])[0].study_uid
    for path in root.iterdir():
        if path.suffix != ".dcm" or read_headers(path)[0].study_uid != study:
            path.unlink()
    (root / name).write_bytes(content)
    with opened(root, tmp_path / "index.sqlite") as index:
        index.update(jobs=1)
        (entry,) = index.refused()
    assert (entry.code in INCOMPLETE, entry.scan) == ((True, study) if lost else (False, ""))
    assert entry.file == name


@pytest.mark.parametrize(
    ("slices", "name", "expected"),
    [
        (["1.2.840.113.1", "1.2.840.113.2"], "1.2.840.113.77.3", True),
        (["I10", "I20"], "I30", True),
        (["image.0001"], "image.0002", True),
        (["image.0001"], "image.log", False),
        (["a.IMA"], "b.ima", True),
        (["IM1.dcm"], "._IM2.dcm", False),
        (["IM1.dcm"], "IM2", True),
        (["IM1.dcm"], "IM2.dcm.gz", True),
        (["IM1.dcm"], "meta.json.gz", False),
        ([], "VERSION", True),
    ],
)
def test_names_of_slices(slices, name, expected):
    assert may_be_slice(name, {shape_of(other) for other in slices}) is expected


def test_scan_of_refused_files(root, tmp_path):
    studies = {}
    for path in sorted(root.glob("*.dcm")):
        studies.setdefault(read_headers(path)[0].study_uid, []).append(path)
    lost, paths = studies.popitem()
    for path in paths:
        path.write_bytes(path.read_bytes()[:-100])
    with opened(root, tmp_path / "index.sqlite") as index:
        index.update(jobs=1)
        assert {scan.scan for scan in index.scans()} == set(studies)
        (entry,) = index.empty_scans()
    assert (entry.scan, entry.code) == (lost, Code.SCAN_EMPTY)
    assert entry.detail.startswith(f"none of its {len(paths)} files is a usable slice; one of them: ")


def test_only_new_and_changed_files_are_read_again(root, tmp_path, monkeypatch):
    before = updated(root, tmp_path / "index.sqlite")
    asked = count_reads(monkeypatch)
    files = sorted(root.glob("*.dcm"))
    assert updated(root, tmp_path / "index.sqlite") == before
    assert asked == []
    os.utime(files[0], ns=(1, 1))
    files[1].unlink()
    studies = {read_headers(files[0])[0].study_uid}
    after = updated(root, tmp_path / "index.sqlite")
    assert asked == [files[0].name]
    assert studies <= {scan for scan in before if before[scan] != after[scan]}
    assert any(before[scan] == after[scan] for scan in before)


def test_file_of_another_size(root, tmp_path, monkeypatch):
    """As a copy that keeps times leaves it."""
    first = min(root.glob("*.dcm"))
    time = first.stat().st_mtime_ns
    before = updated(root, tmp_path / "index.sqlite")
    asked = count_reads(monkeypatch)
    first.write_bytes(first.read_bytes() + bytes(2))
    os.utime(first, ns=(time, time))
    longer = updated(root, tmp_path / "index.sqlite")
    assert asked == [first.name]
    assert {scan for scan in before if before[scan] != longer[scan]} == {read_headers(first)[0].study_uid}


def test_stopped_run_keeps_its_headers(root, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 8)
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.0)
    n_files = len(list(root.iterdir()))
    seen = []

    def stop_at_30(path):
        seen.append(path)
        if len(seen) == 30:
            raise KeyboardInterrupt
        return read_headers(path)

    monkeypatch.setattr(file_headers, "read_headers", stop_at_30)
    with opened(root, tmp_path / "index.sqlite") as index, pytest.raises(KeyboardInterrupt):
        index.update(jobs=1)
    asked = count_reads(monkeypatch)
    with opened(root, tmp_path / "index.sqlite") as index:
        index.update(jobs=1)
        assert sum(len(scan.sources) for scan in index.scans()) == n_files - 1
    assert n_files - 30 < len(asked) <= n_files - 16


def test_damaged_database(root, tmp_path):
    path = tmp_path / "index.sqlite"
    path.write_text("no database, but long enough to be one" * 50)
    with pytest.raises(DataError, match=r"index\.sqlite: cannot be used .*; delete it"):
        opened(root, path)


@pytest.mark.parametrize("other", ["version", "layout"])
def test_index_of_another_version_or_layout(root, tmp_path, monkeypatch, other):
    updated(root, tmp_path / "index.sqlite", layout="folder" if other == "layout" else "unlabelled")
    if other == "version":
        with sqlite3.connect(tmp_path / "index.sqlite") as database:
            database.execute("UPDATE about SET format = 'ich_mil.index.0'")
        database.close()
    asked = count_reads(monkeypatch)
    assert len(updated(root, tmp_path / "index.sqlite")) == 4
    assert len(asked) == len(list(root.iterdir()))
