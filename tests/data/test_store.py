"""Reading a prepared set that is written by hand: text stays text, what is none of ours is told."""

import io
import json
import pickle

import numpy as np
import pytest

from ich_mil.data.splits import content_of
from ich_mil.data.store import COLUMNS, FORMAT, open_prepared, scan_file
from ich_mil.errors import DataError
from ich_mil.files import digest

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
        ["007", "010", 0, 2, content_of(["0e2", "0e1"])],
        ["2e5", "020", 1, 1, content_of(["0e1"], least=1)],
    ]
    assert prepared.slices("2e5").position.tolist() == [0.5]
    assert prepared.ledger_by_scan == {
        "NA": [
            {"scan": "NA", "file": "", "code": "CHOSEN", "detail": ""},
            {"scan": "NA", "file": "", "code": "CLAMPED", "detail": "null"},
        ],
        "": [{"scan": "", "file": "", "code": "SKIPPED", "detail": "007"}],
    }
    with pytest.raises(DataError, match="has no scan '3'"):
        prepared.slices("3")


def test_the_fingerprint_is_of_the_files_and_of_the_table(tmp_path):
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
def test_a_set_of_another_version_or_half_a_set_is_told(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        written(tmp_path, **changes)


@pytest.mark.parametrize("lost", ["layout", "root", "files"])
def test_what_is_missing_is_named(tmp_path, lost):
    written(tmp_path)
    (tmp_path / "prepared.json").write_text(json.dumps({k: v for k, v in ABOUT.items() if k != lost}))
    with pytest.raises(DataError, match=rf"prepared\.json lacks {lost}"):
        open_prepared(tmp_path)


@pytest.mark.parametrize(
    ("scan", "name"),
    [
        ("a-1.b_2", "a-1.b_2"),
        ("x" * 100, "x" * 100),
        ("x" * 101, "x" * 60 + "-" + digest(b"x" * 101)),
        ("a b", "a_b-" + digest(b"a b")),
        ("a/b", "a_b-" + digest(b"a/b")),
        ("..", "-" + digest(b"..")),
        (".a", "a-" + digest(b".a")),
    ],
)
def test_a_scan_has_a_file_of_its_own(tmp_path, scan, name):
    assert scan_file(tmp_path, scan) == tmp_path / "scans" / f"{name}.npy"


@pytest.mark.parametrize("name", ["slices.csv", "ledger.csv"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"scan,index\n007,0\n"])
def test_tables_that_cannot_be_read_are_told(tmp_path, name, content):
    prepared = written(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="is no prepared set"):
        prepared.scans if name == "slices.csv" else prepared.ledger_by_scan  # noqa: B018


def npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


FOREIGN = [npy(np.zeros((2, 3, 3))), npy(np.zeros((3, 3), np.int16))]


@pytest.mark.parametrize("content", [None, b"", b"\x93NUMPY half", pickle.dumps(1), *FOREIGN])
def test_pixels_that_cannot_be_read_are_told(tmp_path, content):
    prepared = written(tmp_path)
    if content is not None:
        scan_file(tmp_path, "007").write_bytes(content)
    with pytest.raises(DataError, match=r"007\.npy: cannot be read") as caught:
        prepared.hu("007")
    assert "pickle" not in str(caught.value)  # a remedy of numpy's, and none here
