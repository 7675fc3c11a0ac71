"""Reading a prepared set that is written by hand: text stays text, what is none of ours is told."""

import json
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from pydicom import dcmread

from ich_mil.errors import DataError
from ich_mil.files import digest
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.splits import content_of, draw_splits
from ich_mil.sets.store import COLUMNS, FORMAT, joined, open_prepared, scan_file
from tests import phantoms

pytestmark = pytest.mark.filterwarnings("ignore:Invalid value for VR UI")

ABOUT = {"format": FORMAT, "layout": "rsna", "root": "/scans", "files": "digest"}
# text that a reader of tables would take for numbers, or for nothing
ROWS = [
    ["007", 0, "010", -2.5, 0.0, 0, 0, "1.20", "01", "", "0e1"],
    ["007", 1, "010", 2.5, 1.0, 0, 0, "1.30", "02", "NA", "0e2"],
    ["2e5", 0, "020", 0.0, 0.5, 1, 1, "1.40", "03", "null", "0e1"],
]


def written(folder, rows=ROWS, **changes):
    (folder / "scans").mkdir(parents=True, exist_ok=True)
    (folder / "prepared.json").write_text(json.dumps(ABOUT | changes))
    (folder / "slices.csv").write_text(
        "\n".join(",".join(map(str, line)) for line in [COLUMNS, *rows]), encoding="utf-8"
    )
    (folder / "ledger.csv").write_text(
        "scan,file,code,detail\nNA,,CHOSEN,\n,,SKIPPED,007\nNA,,CLAMPED,null\n"
    )
    return open_prepared(folder)


def test_text_stays_text(tmp_path):
    prepared = written(tmp_path)
    table = prepared.table
    for name in ("scan", "patient", "sop", "source", "corrections", "content"):
        assert table[name].tolist() == [line[COLUMNS.index(name)] for line in ROWS]
    scans = prepared.scans.reset_index().to_numpy().tolist()
    assert scans == [
        ["007", "010 = 020", 0, 2, content_of(["0e2", "0e1"])],  # both have the slice 0e1
        ["2e5", "010 = 020", 1, 1, content_of(["0e1"], least=1)],
    ]
    assert prepared.slices("2e5").position.tolist() == [0.5]
    told = {scan: [line["detail"] for line in lines] for scan, lines in prepared.ledger_by_scan.items()}
    assert told == {"NA": ["", "null"], "": ["007"]}
    with pytest.raises(DataError, match="has no scan '3'"):
        prepared.slices("3")


def test_fingerprint_of_files_and_table(tmp_path):
    first = written(tmp_path / "a")
    assert first.fingerprint == written(tmp_path / "b", root="/elsewhere").fingerprint
    others = [written(tmp_path / "c", files="other"), written(tmp_path / "d", ROWS[:2])]
    assert len({one.fingerprint for one in (first, *others)}) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "ich_mil.prepared.1"}, r"another version \(ich_mil.prepared.1\)"),
        ({"files": ""}, "its preparation was interrupted"),
    ],
)
def test_set_of_another_version_or_unfinished(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        written(tmp_path, **changes)


@pytest.mark.parametrize(
    ("scan", "name"),
    [
        ("a-1.b_2", "a-1.b_2"),
        ("x" * 101, "x" * 60 + "-" + digest(b"x" * 101)),
        ("a/b", "a_b-" + digest(b"a/b")),
        ("..", "-" + digest(b"..")),
    ],
)
def test_scan_file_names(tmp_path, scan, name):
    assert scan_file(tmp_path, scan) == tmp_path / "scans" / f"{name}.zip"


@pytest.mark.parametrize("name", ["slices.csv", "ledger.csv"])
def test_damaged_tables(tmp_path, name):
    prepared = written(tmp_path)
    (tmp_path / name).write_bytes(b"scan,index\n007,0\n")
    with pytest.raises(DataError, match="is no prepared set"):
        prepared.scans if name == "slices.csv" else prepared.ledger_by_scan  # noqa: B018


@pytest.mark.parametrize("content", [None, b"\x93NUMPY half", pickle.dumps(1), np.zeros((2, 3, 3))])
def test_damaged_pixels(tmp_path, content):
    prepared = written(tmp_path)
    if isinstance(content, np.ndarray):
        np.save(scan_file(tmp_path, "007"), content)
    elif content is not None:
        scan_file(tmp_path, "007").write_bytes(content)
    with pytest.raises(DataError, match=r"007\.zip: cannot be read") as caught:
        prepared.hu("007")
    assert "pickle" not in str(caught.value)  # a remedy of numpy's, and none here


BRAIN = (40.0, 80.0)
GREYS = np.random.default_rng(1).integers(0, 256, (3, 16, 16), dtype=np.uint8)


def slices(folder, names, greys=GREYS, patients=None):
    """A prepared set of pictures; all are negative."""
    (folder / "in").mkdir(parents=True)
    for name, grey in zip(names, greys, strict=True):
        Image.fromarray(grey).save(folder / "in" / f"{name}.png")
    table = pd.DataFrame({"slice": names, "label": 0}).assign(**({"patient": patients} if patients else {}))
    table.to_csv(folder / "in" / "labels.csv", index=False)
    return prepare("slices", folder / "in", folder / "out", jobs=1, window=BRAIN)


def test_joined_tables_and_pixels(prepared, tmp_path):
    single = slices(tmp_path, ["a", "b", "c"])
    both = joined([prepared, single])
    assert both.scans.index.tolist() == [*prepared.scans.index, "a", "b", "c"]
    columns = ["patient", "label", "slices", "content"]
    pd.testing.assert_frame_equal(both.scans[columns], pd.concat([prepared.scans, single.scans])[columns])
    scan = prepared.scans.index[1]
    for part, name in ((prepared, scan), (single, "b")):
        assert both.part_of(name) is part
        assert np.array_equal(both.hu(name), part.hu(name))
        assert both.slices(name).reset_index(drop=True).equals(part.slices(name).reset_index(drop=True))
    assert both.folders == prepared.folders | single.folders
    assert both.ledger_by_scan[""] == [*prepared.ledger_by_scan.get("", []), *single.ledger_by_scan[""]]
    with pytest.raises(DataError, match="has no scan 'd'"):
        both.hu("d")
    assert joined([prepared]) is prepared
    assert len({both.fingerprint, prepared.fingerprint, single.fingerprint}) == 3
    assert joined([prepared, single]).fingerprint == both.fingerprint


def test_joined_patients(tmp_path):
    first = slices(tmp_path / "1", ["a", "b", "c"], patients=["p", "q", "r"])
    shared = [GREYS[0].T, GREYS[1], GREYS[2].T]  # the second is b's
    second = slices(tmp_path / "2", ["d", "e", "f"], shared, patients=["p", "s", "t"])
    scans = joined([first, second]).scans
    assert scans.patient["a"] == scans.patient["d"] == first.scans.patient["a"]
    both = f"{first.scans.patient['b']} = {second.scans.patient['e']}"
    assert scans.patient["b"] == scans.patient["e"] == both
    assert scans.patient.nunique() == 4
    scans = scans.assign(label=[0, 0, 0, 1, 1, 0])
    for seed in range(10):
        split = draw_splits(scans, validation=0.4, test=0.0, seed=seed).set_index("scan").split
        assert split["a"] == split["d"]
        assert split["b"] == split["e"]


def test_joined_slice_of_a_scan(prepared, rsna_root, tmp_path):
    source = next(iter(prepared.table.source))
    (tmp_path / "in").mkdir()
    shutil.copy(rsna_root / source, tmp_path / "in" / "one.dcm")
    (tmp_path / "in" / "labels.csv").write_text("slice,label\none,0")
    same = prepare("slices", tmp_path / "in", tmp_path / "same", jobs=1)
    with pytest.raises(DataError, match=rf"{prepared.root} and {same.root}: 1 slices are in both sets: ID_"):
        joined([prepared, same])
    whole = prepare("rsna", rsna_root, tmp_path / "thin", jobs=1, thickness_mm=0)
    other = {"PatientID": "another", "SOPInstanceUID": "9.9", "StudyInstanceUID": "9.8"}
    phantoms.rewrite(tmp_path / "in" / "one.dcm", **other)
    renamed = prepare("slices", tmp_path / "in", tmp_path / "renamed", jobs=1)
    scans = joined([whole, renamed]).scans
    study = dcmread(rsna_root / source, stop_before_pixels=True).StudyInstanceUID
    assert scans.patient["one"] == scans.patient[study]
    assert {renamed.scans.patient["one"], whole.scans.patient[study]} == {*scans.patient["one"].split(" = ")}


def test_joined_names(tmp_path):
    first = slices(tmp_path / "1", ["a", "b", "c"])
    second = slices(tmp_path / "2", ["c", "d", "e"], GREYS[:, ::-1])
    with pytest.raises(DataError, match=rf"{first.root} and {second.root}: 1 scans are in both sets: c;"):
        joined([first, second])
