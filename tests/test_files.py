"""CSV files: no cell is a formula, and every text comes back."""

import csv
import re
from pathlib import Path

import pandas as pd
import pytest

import ich_mil
from ich_mil.data.splits import load_splits, write_splits
from ich_mil.data.store import PreparedSet
from ich_mil.files import inert, original, write_csv
from ich_mil.ledger import Code, LedgerEntry, LedgerWriter

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
    table = pd.DataFrame(
        {"scan": scans, "patient": scans, "label": [0, 1, 0, 1], "split": "train", "content": ""}
    )
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
    assert writers == {"files.py", "training/fit_cnn.py", "runs/training_sets.py"}
