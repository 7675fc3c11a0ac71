"""Prepare: pixels and labels arrive rightly, a second run does only what is missing, bad input is told."""

import json
import os
import shutil
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from pydicom import dcmread
from pydicom.config import disable_value_validation

from ich_mil.errors import DataError
from ich_mil.ledger import INCOMPLETE, Code, LedgerEntry, incomplete
from ich_mil.sets.labels import UNKNOWN
from ich_mil.sets.preparation import scan as module
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.store import open_prepared, scan_file
from ich_mil.sets.stored_hu import clipped
from ich_mil.study.files.header import read_headers
from ich_mil.study.pixels.read import read_slice
from ich_mil.study.window_presets import LOWEST
from tests import phantoms

pytestmark = pytest.mark.filterwarnings("ignore:Invalid value for VR UI")


@pytest.fixture
def study(tmp_path, cq500_root):
    """A folder `set` with two unlabelled studies in folders `a` and `b`."""
    for name, scan in zip("ab", sorted(cq500_root.glob("CQ500CT*")), strict=False):
        shutil.copytree(next(iter(sorted((scan / "Unknown Study").iterdir()))), tmp_path / "set" / name)
    return tmp_path / "set"


def test_rsna_files_labels_and_order(prepared, rsna_root):
    table = prepared.table
    assert len(table) == len(list((rsna_root / "stage_2_train").iterdir()))
    labels = pd.read_csv(rsna_root / "stage_2_train.csv").drop_duplicates()
    any_rows = labels[labels.ID.str.endswith("_any")]
    truth = dict(zip(any_rows.ID.str.removesuffix("_any"), any_rows.Label, strict=True))
    assert table.slice_label.tolist() == [truth[sop] for sop in table.sop]
    for scan, rows in table.groupby("scan"):
        assert (rows.scan_label == rows.slice_label.max()).all()
        assert (rows.position_mm.diff().dropna() > 0).all()
        assert (rows.position.iloc[0], rows.position.iloc[-1]) == (0.0, 1.0)
        header = dcmread(rsna_root / rows.source.iloc[0], stop_before_pixels=True)
        assert header.StudyInstanceUID == scan


def test_cq500_labels_and_plain_series(cq500_root, tmp_path):
    prepared = prepare("cq500", cq500_root, tmp_path, jobs=1)
    reads = pd.read_csv(cq500_root / "reads.csv").set_index("name")
    gold = (reads[["R1:ICH", "R2:ICH", "R3:ICH"]].sum(axis=1) >= 2).astype(int)
    assert prepared.scans.label.to_dict() == {scan: gold[scan] for scan in prepared.scans.index}
    assert set(prepared.table.slice_label) == {UNKNOWN}
    assert not prepared.table.source.str.contains("(?i)bone|contrast").any()
    ledger = prepared.ledger
    several = {
        path.parent.parent.name for path in cq500_root.glob("*/*/*") if len(list(path.parent.iterdir())) > 1
    }
    assert len(several) == (ledger.code == Code.SERIES_CHOSEN).sum()


def test_an_unmounted_share_keeps_the_index(study, tmp_path, monkeypatch):
    """As a share that is not mounted."""
    prepare("unlabelled", study, tmp_path / "out", jobs=1)
    study.rename(tmp_path / "away")
    study.mkdir()
    with pytest.raises(DataError, match="holds no DICOM file"):
        prepare("unlabelled", study, tmp_path / "out", jobs=1)
    study.rmdir()
    (tmp_path / "away").rename(study)
    monkeypatch.setattr("ich_mil.sets.preparation.file_headers.read_headers", None)
    assert len(prepare("unlabelled", study, tmp_path / "out", jobs=1).scans) == 2


@pytest.fixture
def thin(cq500_root, tmp_path):
    """A folder with one scan of thin slices."""
    source = next(
        path for path in sorted(cq500_root.rglob("*")) if path.is_dir() and "thin" in path.name.lower()
    )
    shutil.copytree(source, tmp_path / "thin" / "scan")
    return tmp_path / "thin"


def test_thin_slices_are_averaged(thin, tmp_path):
    """A slice is the mean of its sources; 0 mm leaves all as they are; a set has one thickness."""
    prepared = prepare("unlabelled", thin, tmp_path / "out", jobs=1)
    row = prepared.table.iloc[5]
    sources = row.source.split("|")
    assert len(sources) > 1
    assert Code.AVERAGED in row.corrections.split("|")
    headers = [read_headers(thin / source)[0] for source in sources]
    whole = [read_slice(header)[0].astype(float) for header in headers]
    np.testing.assert_array_equal(prepared.hu(row.scan)[5], clipped(np.rint(np.mean(whole, axis=0))))
    assert row.position_mm == pytest.approx(np.mean([header.position[2] for header in headers]), abs=1e-3)
    assert row.sop == headers[len(headers) // 2].sop_uid
    with pytest.raises(DataError, match=r"out: .*thickness 5\.0, not 0\.0"):
        prepare("unlabelled", thin, tmp_path / "out", jobs=1, thickness_mm=0)
    as_is = prepare("unlabelled", thin, tmp_path / "whole", jobs=1, thickness_mm=0)
    assert len(as_is.table) == len(list((thin / "scan").iterdir()))
    assert not as_is.table.corrections.str.contains(Code.AVERAGED).any()


def test_label_of_an_averaged_slice(rsna_root, tmp_path):
    root = Path(shutil.copytree(rsna_root, tmp_path / "set"))
    table = prepare("rsna", root, tmp_path / "out", jobs=1, thickness_mm=12).table
    averaged = table[table.source.str.contains("|", regex=False)].iloc[3]
    first = Path(averaged.source.split("|")[0]).stem
    assert first != averaged.sop
    labels = pd.read_csv(root / "stage_2_train.csv")
    labels["Label"] = labels.ID.eq(f"{first}_any").astype(int)
    labels.to_csv(root / "stage_2_train.csv", index=False)
    table = prepare("rsna", root, tmp_path / "out", jobs=1, thickness_mm=12).table
    assert table.sop[table.slice_label == 1].tolist() == [averaged.sop]
    assert set(table.scan[table.scan_label == 1]) == {averaged.scan}


def test_a_second_run_prepares_what_is_missing(rsna_root, tmp_path, monkeypatch):
    first = prepare("rsna", rsna_root, tmp_path, jobs=1)
    content = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    lost = scan_file(tmp_path, first.scans.index[1])

    asked = []

    def reads(header, **options):
        asked.append(header.path)
        return read_slice(header, **options)

    monkeypatch.setattr("ich_mil.sets.preparation.stack.read_slice", reads)
    prepare("rsna", rsna_root, tmp_path, jobs=1)
    assert asked == []
    lost.unlink()
    prepare("rsna", rsna_root, tmp_path, jobs=1)
    assert len(asked) == first.scans.slices.iloc[1]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == content


def test_no_patient_identifier_is_written(prepared, rsna_root):
    patient = dcmread(rsna_root / prepared.table.source[0], stop_before_pixels=True).PatientID
    for path in prepared.folder.rglob("*"):
        assert path.is_dir() or patient.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("left", [0.1, 1.0])
def test_truncated_highest_slice_is_incomplete(study, tmp_path, left):
    """No gap tells of it: only that the file says it is CT and holds no pixels."""
    paths = sorted((study / "a").iterdir(), key=lambda path: dcmread(path).ImagePositionPatient[2])
    content = paths[-1].read_bytes()
    begin = content.index(b"\x28\x00\x10\x00")  # Rows
    end = content.index(b"\xe0\x7f\x10\x00")  # Pixel Data
    paths[-1].write_bytes(content[: begin + round(left * (end - begin))])
    prepared = prepare("unlabelled", study, tmp_path / "out", jobs=1)
    scan = read_headers(paths[0])[0].study_uid
    own = [LedgerEntry(**line) for line in prepared.ledger_by_scan[scan]]
    assert incomplete(own) == [Code.UNREADABLE]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"Modality": "CU"}, Code.NOT_CT),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}, Code.LOCALIZER),
        ({"PhotometricInterpretation": "RGB"}, Code.NOT_CT),
    ],
)
def test_mislabelled_highest_slice_is_incomplete(study, tmp_path, changes, code):
    """The highest one: no gap tells of it. A true localizer, and a picture of another series, do not."""
    paths = sorted((study / "a").iterdir(), key=lambda path: dcmread(path).ImagePositionPatient[2])
    phantoms.rewrite(paths[-1], paths[-1], **changes)
    coronal = {"ImageOrientationPatient": [1, 0, 0, 0, 0, -1]}
    phantoms.rewrite(paths[-1], study / "a" / "coronal.dcm", **changes, **coronal)
    phantoms.rewrite(paths[-1], study / "a" / "other.dcm", **changes, SeriesInstanceUID="1.2.3")
    prepared = prepare("unlabelled", study, tmp_path / "out", jobs=1)
    own = prepared.ledger_by_scan[read_headers(paths[0])[0].study_uid]
    assert sum(line["code"] == code for line in own) == 3
    (gap,) = (line for line in own if line["code"] in INCOMPLETE)
    assert (gap["code"], gap["file"]) == (Code.GAP, f"a/{paths[-1].name}")


def test_fingerprint_follows_the_pixels(study, tmp_path):
    """Features that were stored are made again by it."""
    path = sorted((study / "a").iterdir())[3]
    before = prepare("unlabelled", study, tmp_path / "out", jobs=1)
    assert prepare("unlabelled", study, tmp_path / "out", jobs=1).fingerprint == before.fingerprint
    phantoms.rewrite(path, RescaleIntercept=-1020)
    after = prepare("unlabelled", study, tmp_path / "out", jobs=1)
    assert after.table.equals(before.table)
    assert after.fingerprint != before.fingerprint


def test_file_that_changes_while_it_is_read(study, tmp_path, monkeypatch):
    path, other = sorted((study / "a").iterdir())[3:5]

    def swapped(tasks, out):
        path.write_bytes(other.read_bytes())
        os.utime(path, (1e9, 1e9))
        return module.prepare_scans(tasks, out)

    scan = read_headers(path)[0].study_uid
    with monkeypatch.context() as patch:
        patch.setattr("ich_mil.sets.preparation.prepare.prepare_scans", swapped)
        first = prepare("unlabelled", study, tmp_path / "out", jobs=1)
    assert scan not in first.scans.index
    assert [line["code"] for line in first.ledger_by_scan[scan]] == [Code.NOT_OPENED, Code.SCAN_EMPTY]
    again = prepare("unlabelled", study, tmp_path / "out", jobs=1)
    fresh = prepare("unlabelled", study, tmp_path / "fresh", jobs=1)
    assert again.table.equals(fresh.table)
    assert again.ledger.equals(fresh.ledger)


def test_position_of_a_single_slice(study, tmp_path):
    name = os.fsdecode(b"caf\xe9.dcm")
    (tmp_path / "one").mkdir()
    shutil.copy(sorted((study / "a").iterdir())[10], tmp_path / "one" / name)
    table = prepare("unlabelled", tmp_path / "one", tmp_path / "out", jobs=1).table
    assert table.position.tolist() == [0.5]
    assert table.source.tolist() == [r"caf\udce9.dcm"]


def test_links(study, tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "study").symlink_to(study / "a")
    (tmp_path / "links" / "round").symlink_to(tmp_path / "links")
    prepared = prepare("unlabelled", tmp_path / "links", tmp_path / "out", jobs=1)
    assert prepared.scans.slices.tolist() == [len(list((study / "a").iterdir()))]


def test_full_disk(rsna_root, prepared, tmp_path, monkeypatch):
    """The temporary file of the second scan links to /dev/full, where writes fail as on a full disk."""
    scans = prepared.scans.index
    target = scan_file(tmp_path / "set", scans[1])
    target.parent.mkdir(parents=True)
    target.with_name(f".{target.name}.{os.getpid()}.tmp").symlink_to("/dev/full")
    monkeypatch.setattr("ich_mil.sets.preparation.prepare.remove_leftovers", lambda *_: None)
    with pytest.raises(DataError, match=r"\.zip: the disk is full"):
        prepare("rsna", rsna_root, tmp_path / "set", jobs=1)
    left = {path.name for path in (tmp_path / "set").rglob("*") if not path.is_dir()}
    first = scan_file(tmp_path / "set", scans[0])
    record = first.with_suffix(".json").name
    assert left == {"index.sqlite", "prepared.json", first.name, record}
    monkeypatch.undo()
    assert len(prepare("rsna", rsna_root, tmp_path / "set", jobs=1).scans) == 4


def test_contrast_words_of_the_site(study, tmp_path):
    for path in (study / "a").iterdir():
        phantoms.rewrite(path, SeriesDescription="Qwert")
    words = tmp_path / "words.csv"
    words.write_text("phrase,meaning\nqwert,contrast\n", "utf-8")
    for path, kinds in ((words, {Code.SERIES_KIND}), (None, set())):
        prepared = prepare("unlabelled", study, tmp_path / "out", jobs=1, contrast_words=path)
        assert {*prepared.ledger.code} & {Code.SERIES_KIND, Code.CONTRAST_UNSURE} == kinds


def test_read_only_finished_set(study, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    before = prepare("unlabelled", study, out, jobs=1)
    next((study / "b").iterdir()).unlink()
    monkeypatch.setattr(os, "access", lambda path, *_, **__: path != out)  # root may write anywhere else
    content = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert prepare("unlabelled", study, out, jobs=1).table.equals(before.table)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == content
    assert "out: is read-only; used as it is" in capsys.readouterr().out
    with pytest.raises(DataError, match="was prepared with thickness"):
        prepare("unlabelled", study, out, jobs=1, thickness_mm=0)
    about = json.loads((out / "prepared.json").read_text())
    (out / "prepared.json").write_text(json.dumps(about | {"files": ""}))
    assert len(prepare("unlabelled", study, out, jobs=1).table) == len(before.table) - 1, "it was unfinished"


@pytest.mark.parametrize("uid", ["../../evil", "1." * 150], ids=["up", "long"])
def test_scan_ids_stay_in_the_folder(study, tmp_path, uid):
    """Study UIDs are what a file says, and a file can say anything."""
    shutil.rmtree(study / "b")
    with disable_value_validation():
        for path in (study / "a").iterdir():
            image = dcmread(path)
            image.StudyInstanceUID = uid
            image.save_as(path)
    before = set(tmp_path.rglob("*"))
    prepared = prepare("unlabelled", study, tmp_path / "out", jobs=1)
    written = set(tmp_path.rglob("*")) - before
    assert all(path.is_relative_to(tmp_path / "out") for path in written)
    (scan,) = prepared.scans.index
    assert scan_file(tmp_path / "out", scan).resolve().parent == tmp_path / "out" / "scans"


def test_labelled_folder(study, tmp_path):
    """A study without a row takes no part; labels may come later."""
    (study / "labels.csv").write_text("\ufeffscan,label\na,1\n")
    prepared = prepare("folder", study, tmp_path / "out", jobs=1)
    assert prepared.scans.label.tolist() == [1]
    (line,) = prepared.ledger[prepared.ledger.code == Code.NO_LABEL].to_dict("records")
    assert prepared.folders == {prepared.scans.index[0]: "a", line["scan"]: "b"}
    (study / "labels.csv").write_text("scan,label\na,\nb,0\n")
    again = prepare("folder", study, tmp_path / "out", jobs=1)
    assert again.scans.label.to_dict() == {line["scan"]: 0}
    assert again.table.source.str.startswith("b/").all()


@pytest.mark.parametrize("column", ["accession", "series"])
def test_labels_by_accession_number_or_series(study, tmp_path, column):
    names = {}
    for number, name in enumerate("ab"):
        for path in (study / name).iterdir():
            phantoms.rewrite(path, AccessionNumber=f"000{number}")
        names[name] = {"accession": number, "series": dcmread(path).SeriesInstanceUID}[column]
    (study / "labels.csv").write_text(f"{column},label\n{names['a']},yes\n{names['b']},no\n")
    prepared = prepare("folder", study, tmp_path / "out", jobs=1)
    assert {prepared.folders[scan]: label for scan, label in prepared.scans.label.items()} == {"a": 1, "b": 0}


def test_a_label_of_another_series_is_refused(study, tmp_path):
    whole = dcmread(next((study / "a").iterdir()))
    for path in (study / "b").iterdir():
        phantoms.rewrite(path, StudyInstanceUID=whole.StudyInstanceUID, SeriesDescription="BONE")
    series = dcmread(path).SeriesInstanceUID
    for name, is_used in (("a", True), ("b", False), (series, False), (whole.SeriesInstanceUID, True)):
        (study / "labels.csv").write_text(f"scan,label\n{name},1\n")
        if is_used:
            assert prepare("folder", study, tmp_path / "out", jobs=1).scans.label.tolist() == [1]
        else:
            with pytest.raises(DataError, match=rf"are not used: {name} \(used: a\)"):
                prepare("folder", study, tmp_path / "out", jobs=1)
            assert set(pd.read_csv(tmp_path / "out" / "slices.csv").scan_label) == {UNKNOWN}
    (study / "labels.csv").write_text(f"study,label\n{whole.StudyInstanceUID},0\n")
    assert prepare("folder", study, tmp_path / "out", jobs=1).scans.label.tolist() == [0]


def test_bad_label_file(study, tmp_path):
    (study / "labels.csv").write_text("scan,label\na,1\nb,0\nc,0\nd,1\n")
    (study / "d").mkdir()
    (study / "d" / "notes.txt").write_text("no picture")
    told = r"labels\.csv: .*c \(line 4\), d \(line 5\) \(d/notes\.txt: it is not a DICOM file"
    with pytest.raises(DataError, match=told):
        prepare("folder", study, tmp_path / "out", jobs=1)
    assert not (tmp_path / "out" / "scans").exists()


def test_bad_folders(study, tmp_path):
    with pytest.raises(DataError, match="nowhere: no such folder"):
        prepare("unlabelled", tmp_path / "nowhere", tmp_path / "out", jobs=1)
    empty = tmp_path / "empty"
    empty.mkdir()
    for out in (tmp_path / "out", empty / "out"):
        with pytest.raises(DataError, match="empty: holds no DICOM file"):
            prepare("unlabelled", empty, out, jobs=1)
    assert not any(empty.iterdir())
    assert not (tmp_path / "out").exists()
    (empty / "a.txt").write_text("x")
    with pytest.raises(DataError, match=r"empty: none of its 1 files is a CT slice; .*ledger\.csv"):
        prepare("unlabelled", empty, tmp_path / "out", jobs=1)
    assert pd.read_csv(tmp_path / "out" / "ledger.csv").file.tolist() == ["a.txt"]
    prepare("unlabelled", study, tmp_path / "good", jobs=1)
    with pytest.raises(DataError, match="good: was prepared with root"):
        prepare("unlabelled", empty, tmp_path / "good", jobs=1)


@pytest.mark.realdata
def test_ge_study(shared_data, tmp_path):
    prepared = prepare("unlabelled", shared_data / "ge_head_ct", tmp_path, jobs=2)
    assert prepared.scans.slices.tolist() == [28]
    steps = np.diff(prepared.table.position_mm)
    assert (steps > 0).all()
    np.testing.assert_allclose(
        steps[:13], 4.0, atol=0.01
    )  # two slabs, DATA.md; positions are rounded to 0.001 mm
    np.testing.assert_allclose(steps[14:], 7.0, atol=0.01)
    hu = prepared.hu(prepared.scans.index[0])
    assert hu.min() == LOWEST
    brain = hu[20, 200:300, 200:300]
    assert 15 < np.median(brain) < 50


@pytest.mark.parametrize("many", [0, 200], ids=["processes", "threads"])
def test_two_workers_give_the_same_set(rsna_root, prepared, tmp_path, monkeypatch, many):
    monkeypatch.setattr("ich_mil.sets.preparation.prepare.MANY", many)
    monkeypatch.setattr("ich_mil.sets.preparation.index.MANY", many)
    together = prepare("rsna", rsna_root, tmp_path / "out", jobs=2)
    assert together.fingerprint == prepared.fingerprint
    assert together.ledger.equals(prepared.ledger)
    for scan in prepared.scans.index:
        np.testing.assert_array_equal(together.hu(scan), prepared.hu(scan))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_dask_cluster_gives_the_same_set(rsna_root, prepared, tmp_path):
    """joblib's dask backend: the same call in another context, both workers take part."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
        joblib.parallel_config(backend="dask"),
    ):
        together = prepare("rsna", rsna_root, tmp_path / "together", jobs=2)
        done = client.run(lambda dask_worker: dask_worker.state.executed_count)
    assert len(done) == 2
    assert min(done.values()) > 0
    assert together.fingerprint == prepared.fingerprint
    assert together.ledger.equals(prepared.ledger)


def test_set_without_its_files(study, tmp_path):
    prepare("unlabelled", study, tmp_path / "out", jobs=1)
    for path in [path for path in study.rglob("*") if path.is_file()]:
        path.write_text("x")
    with pytest.raises(DataError, match="is a CT slice"):
        prepare("unlabelled", study, tmp_path / "out", jobs=1)
    with pytest.raises(DataError, match="is no prepared set"):
        open_prepared(tmp_path / "out")
