"""The header index: what is kept, what is read again, what a broken one says."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from pydicom import dcmread
from pydicom.uid import CTImageStorage

from ich_mil.data.layouts.collection import Source
from ich_mil.data.layouts.folder import FolderCollection
from ich_mil.data.preparation import file_headers
from ich_mil.data.preparation import index as module
from ich_mil.data.preparation.index import HeaderIndex
from ich_mil.data.preparation.neighbours import Neighbours
from ich_mil.data.splits import patient_key
from ich_mil.dicom.files.header import read_headers
from ich_mil.errors import DataError
from ich_mil.ledger import INCOMPLETE, Code
from tests import phantoms

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


def test_notes_and_padding_of_a_header_come_back(root, tmp_path):
    path = sorted(root.glob("*.dcm"))[0]
    image = dcmread(path)
    image.Modality, image.SOPClassUID = "", CTImageStorage
    for tag, value in ((0x00280103, 1), (0x00280120, -2000), (0x00280121, -1900)):
        image.add_new(tag, "US" if value == 1 else "SS", value)
    image.save_as(path)
    with opened(root, tmp_path / "index.sqlite") as index:
        index.update(jobs=1)
        every = [header for scan in index.scans() for header in index.headers(scan.scan)]
    (kept,) = (header for header in every if header.path == path.name)
    assert kept.notes == ((Code.MODALITY_MISSING, "Modality is absent; SOP class is CT Image Storage"),)
    assert kept.pixels.padding == (-2000, -1900)


def test_a_refused_file_has_its_scan_and_its_place_below_the_root(root, tmp_path):
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
def test_a_file_that_names_no_study_counts_to_the_only_one_beside_it(root, tmp_path, place, owner):
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
        ("ID_0a1b2c3d4.dcm", b"", True),
        (".gitkeep", b"", False),
        ("notes.txt", b"text", False),
    ],
)
def test_what_shows_no_dicom_is_a_lost_slice_if_it_has_the_name_of_one(root, tmp_path, name, content, lost):
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
    ("slices", "name", "may_be"),
    [
        (["1.2.840.113.1", "1.2.840.113.2"], "1.2.840.113.77.3", True),
        (["1.2.840.113.1"], "checksums", False),
        (["I10", "I20"], "I30", True),
        (["I10", "I20"], "I30.txt", False),
        (["image.0001"], "image.0002", True),
        (["image.0001"], "image.log", False),
        (["a.IMA"], "b.ima", True),
        (["IM1"], "VERSION", False),
        ([".IM1.dcm"], ".IM2.dcm", True),
        (["IM1.dcm"], "._IM2.dcm", False),
        (["IM1.dcm"], "IM2", True),
        (["IMAGE"], "image", False),
        (["IM1.dcm"], "IM2.dcm.gz", True),
        (["IM1.dcm"], "series2.zip", True),
        (["IM1.dcm"], ".nfs00000000012a4f", False),
        (["IM1.dcm"], "meta.json.gz", False),
        ([], "VERSION", True),
    ],
)
def test_names_of_slices(slices, name, may_be):
    assert Neighbours(slices).may_be_slice(name) is may_be


def test_work_of_the_ledger_does_not_grow_with_the_square_of_the_files(root, tmp_path, monkeypatch):
    """Localizers parallel to slices, and files that name no study, counted in steps of the database."""
    connect, steps = sqlite3.connect, []

    def counting(*arguments, **options):
        made = connect(*arguments, **options)
        made.set_progress_handler(lambda: steps.append(1), 100)
        return made

    monkeypatch.setattr(sqlite3, "connect", counting)
    kept = min(root.glob("*.dcm"))
    phantoms.rewrite(
        kept, tmp_path / "localizer", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"], SeriesInstanceUID="1"
    )
    contents = [kept.read_bytes(), (tmp_path / "localizer").read_bytes(), kept.read_bytes()[:300]]
    work = []
    for n in (60, 120):
        (tmp_path / str(n)).mkdir()
        for number in range(n):
            for kind, content in enumerate(contents):
                (tmp_path / str(n) / f"{number}-{kind}.dcm").write_bytes(content)
        with opened(tmp_path / str(n), tmp_path / f"{n}.sqlite") as index:
            index.update(jobs=1)
            steps.clear()
            told = [*index.refused(), *index.lost_slices()]
            work.append(len(steps))
        assert sum(entry.code == Code.LOCALIZER for entry in told) == n
        assert len({entry.scan for entry in told}) == 1
    assert work[1] < 3 * work[0]


def test_a_scan_of_refused_files_only_is_told(root, tmp_path):
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


def test_a_file_of_another_size_or_name_is_another_file(root, tmp_path, monkeypatch):
    """As a copy that keeps times leaves it."""
    first, second, *_ = sorted(root.glob("*.dcm"))
    time = first.stat().st_mtime_ns
    os.utime(second, ns=(time, time))
    before = updated(root, tmp_path / "index.sqlite")
    asked = count_reads(monkeypatch)
    first.write_bytes(first.read_bytes() + bytes(2))
    os.utime(first, ns=(time, time))
    longer = updated(root, tmp_path / "index.sqlite")
    assert asked == [first.name]
    assert {scan for scan in before if before[scan] != longer[scan]} == {read_headers(first)[0].study_uid}
    other = second.rename(second.with_name("renamed.dcm"))
    renamed = updated(root, tmp_path / "index.sqlite")
    assert {scan for scan in before if longer[scan] != renamed[scan]} == {read_headers(other)[0].study_uid}


def test_only_the_folder_of_the_result_is_left_out(root, tmp_path):
    files = sorted(root.glob("*.dcm"))
    for path, folder in zip(files, ("out", "outer"), strict=False):
        (root / folder).mkdir()
        path.rename(root / folder / path.name)
    with opened(root, tmp_path / "index.sqlite", leave_out=root / "out") as index:
        index.update(jobs=1)
        paths = {source.path for scan in index.scans() for source in scan.sources}
    assert paths == {f"outer/{files[1].name}", *(path.name for path in files[2:])}


def test_a_run_that_is_stopped_keeps_what_it_has_read(root, tmp_path, monkeypatch):
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


def test_names_that_are_no_unicode(root, tmp_path):
    odd = root / os.fsdecode(b"caf\xe9.dcm")
    sorted(root.glob("*.dcm"))[0].rename(odd)
    odd.with_suffix(".txt").write_text("no picture")
    with opened(root, tmp_path / "index.sqlite") as index:
        index.update(jobs=1)
        paths = {source.path for scan in index.scans() for source in scan.sources}
        refused = {entry.file: entry.detail for entry in index.refused()}
    assert odd.name in paths
    assert refused[odd.with_suffix(".txt").name].startswith(r"caf\udce9.txt: ")


def test_a_database_that_is_none(root, tmp_path):
    path = tmp_path / "index.sqlite"
    path.write_text("no database, but long enough to be one" * 50)
    with pytest.raises(DataError, match=r"index\.sqlite: cannot be used .*; delete it"):
        opened(root, path)


def test_a_full_disk_is_told_as_such(root, tmp_path):
    index = opened(root, tmp_path / "index.sqlite")
    pages = index._database.execute("PRAGMA page_count").fetchone()[0]
    index._database.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(DataError, match=r"index\.sqlite: the disk is full"), index:
        index.update(jobs=1)


@pytest.mark.parametrize("other", ["version", "layout"])
def test_the_index_of_another_version_or_layout_is_made_again(root, tmp_path, monkeypatch, other):
    updated(root, tmp_path / "index.sqlite", layout="folder" if other == "layout" else "unlabelled")
    if other == "version":
        with sqlite3.connect(tmp_path / "index.sqlite") as database:
            database.execute("UPDATE about SET format = 'ich_mil.index.0'")
        database.close()
    asked = count_reads(monkeypatch)
    assert len(updated(root, tmp_path / "index.sqlite")) == 4
    assert len(asked) == len(list(root.iterdir()))
