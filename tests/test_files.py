"""Files: written whole or not at all, locked folders, CSV cells that are no formulas."""

import csv
import errno
import fcntl
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

import ich_mil
from ich_mil.errors import DataError
from ich_mil.files import alone, inert, original, whole_file, write_csv, write_text
from ich_mil.ledger import Code, LedgerEntry, LedgerWriter
from ich_mil.sets.splits import load_splits, write_splits
from ich_mil.sets.store import PreparedSet

FORMULAS = ["=1+1", "+1", "-1+1", "@sum(1)", "\t=1", "\r=1", "\n=1", "\uff1d1+1", "'=1", "''=1"]
SPLIT = ["1.2;=1+1;", '1.2;"=1', "1.2\t=1", "a\r\n@b"]
PLAIN = ["1.2.840", "a=b", "'quoted'", "it's", "", "a-b", "é"]


def run_by_a_spreadsheet(path: Path) -> list[str]:
    """Cells that are formulas, where `,`, `;` or tabs separate cells."""
    with path.open(newline="", encoding="utf-8") as file:
        cells = [
            cell for row in csv.reader(file) for whole in row for cell in re.split(r"[;\t\r\n\"]", whole)
        ]
    return [cell for cell in cells if re.match(r"[=+@\uff1d]|-(?![\d.]+$)", cell)]


def test_whole_file_keeps_the_old_file_when_the_writer_fails(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(TypeError), whole_file(path) as temporary:
        temporary.write_text(b"no text")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EROFS, "x"), r"file: cannot be written \(Read-only file system\)"),
        (RuntimeError('Read-only file system (os error 30) at path "/x/.tmpE"'), "file: cannot be written"),
        (RuntimeError("I/O error: Disk quota exceeded (os error 122)"), "file: the disk is full"),
    ],
)
def test_errors_of_the_disk_name_the_file(tmp_path, error, message):
    with pytest.raises(DataError, match=message), whole_file(tmp_path / "file"):
        raise error


def test_errors_about_other_files_are_left_alone(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, whole_file(tmp_path / "copy") as temporary:
        shutil.copyfile(tmp_path / "absent", temporary)
    assert caught.value.filename == str(tmp_path / "absent")
    with pytest.raises(RuntimeError, match="exit code: 28"), whole_file(tmp_path / "file"):
        raise RuntimeError("a decoder ended with exit code: 28")


def test_a_folder_is_locked_once_and_for_one_process(tmp_path):
    out = tmp_path / "new" / "out"
    with alone(out, doing="preparing"):
        (out / "a").touch()
        with (
            pytest.raises(DataError, match="out: another process is preparing it"),
            alone(out, doing="preparing"),
        ):
            pytest.fail("it is not held")
    with alone(out, doing="preparing"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"), alone(tmp_path / "file" / "a", doing="writing"):
        pytest.fail("it is not held")


def test_after_an_error_empty_folders_are_removed(tmp_path):
    for name in ("", "kept"):
        with pytest.raises(ZeroDivisionError), alone(tmp_path / "a" / "b", doing="holding"):
            1 / (tmp_path / "a" / "b" / (name or ".lock")).write_text("")
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ([name] if name else [])
        assert (tmp_path / "a").exists() == bool(name)


def test_file_system_without_locks(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone(tmp_path / "out", doing="writing"):
        (tmp_path / "out" / "a").touch()
    assert "its file system has no locks" in capsys.readouterr().out


@pytest.mark.parametrize("text", [*FORMULAS, *SPLIT])
def test_formula_is_made_inert_and_comes_back(text):
    assert inert(text) != text
    assert original(inert(text)) == text
    assert original(inert(inert(text))) == inert(text)


@pytest.mark.parametrize("cell", [*PLAIN, -0.5, None])
def test_other_cells_are_written_as_they_are(cell):
    assert inert(cell) is original(cell) is cell


def test_table_is_written_without_formulas_and_its_numbers_as_numbers(tmp_path):
    texts = [*FORMULAS, *SPLIT, *PLAIN]
    table = pd.DataFrame({"=scan": texts, "value": -0.5, "label": pd.array([None] * len(texts), "Int64")})
    write_csv(tmp_path / "a.csv", table, float_format="%.3f")
    assert run_by_a_spreadsheet(tmp_path / "a.csv") == []
    read = pd.read_csv(tmp_path / "a.csv", keep_default_na=False)
    assert read.value.tolist() == [-0.5] * len(texts)
    assert (list(read), read.label.tolist()) == (["'=scan", "value", "label"], [""] * len(texts))
    assert read["'=scan"].map(original).tolist() == texts


def test_ledger_comes_back_from_its_file(tmp_path):
    entries = [LedgerEntry(text, f"{text}.dcm", Code.GAP, text) for text in [*FORMULAS, *SPLIT, *PLAIN]]
    with LedgerWriter(tmp_path / "ledger.csv") as ledger:
        ledger.write(entries)
    assert run_by_a_spreadsheet(tmp_path / "ledger.csv") == []
    read = PreparedSet(tmp_path, tmp_path, "").ledger
    assert [LedgerEntry(*row) for row in read.itertuples(index=False)] == entries


def test_split_comes_back_from_its_file(tmp_path):
    scans = ["=1+1", "-a", "@b", "'=c"]
    columns = {"scan": scans, "patient": scans, "label": [0, 1, 0, 1], "split": "train"}
    table = pd.DataFrame(columns | {"learn": "all", "content": ""})
    write_splits(table, tmp_path / "splits.csv")
    assert run_by_a_spreadsheet(tmp_path / "splits.csv") == []
    assert load_splits(tmp_path / "splits.csv").equals(table)


def test_no_other_file_writes_csv():
    """Except the log of a training, which holds numbers."""
    package = Path(ich_mil.__file__).parent
    writers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"to_csv\(\S|csv\.(Dict)?[wW]riter\(", path.read_text(encoding="utf-8"))
    }
    assert writers == {"files.py", "network/training/epoch_log.py", "model/training/training_sets.py"}
