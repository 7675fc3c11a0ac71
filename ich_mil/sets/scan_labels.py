"""Scan labels as people write them: a CSV or Excel table with ids and labels, matched to scans.

In: a table with one or several columns of ids (`ID_COLUMNS`) and a column `label`; case, blanks and
punctuation of column names do not matter. Out: the label of each scan. All faults of a table are raised at
once, with what was understood of it.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import pandas as pd

from ich_mil.errors import DataError
from ich_mil.ledger import LedgerEntry
from ich_mil.sets.labels import UNKNOWN, check_columns, name_some, read_table
from ich_mil.sets.scan_names import ScanNames

ID_COLUMNS = {
    "scan": "scan",
    "scanid": "scan",
    "folder": "folder",
    "accession": "accession",
    "accessionnumber": "accession",
    "study": "study",
    "studyuid": "study",
    "studyinstanceuid": "study",
    "series": "series",
    "seriesuid": "series",
    "seriesinstanceuid": "series",
}
"""Columns of scan ids, by their lower-case letters. Each may hold any name of a scan."""
LABELS = re.compile(r"labels\.(csv|tsv|xlsx|xlsm)", re.IGNORECASE)
"""File name of a table of labels in the root of a data set."""
_VALUES = {
    1: re.compile(r"1([.,]0*)?|yes|y|true|positive|pos", re.IGNORECASE),
    0: re.compile(r"0([.,]0*)?|no|n|false|negative|neg", re.IGNORECASE),
    UNKNOWN: re.compile(""),
}
_WRONG = -2
_MOST = 10
"""Number of rows or values named for each fault."""


def find_labels(root: Path) -> Path:
    """Path of the table of labels in a folder. `DataError`: there is none, or there are several."""
    found = sorted(path for path in root.iterdir() if LABELS.fullmatch(path.name))
    if not found:
        raise DataError(
            f"{root}: holds neither labels.csv nor labels.xlsx; put the table there, or let 'ich-mil "
            "labels-template' write one for studies"
        )
    if len(found) > 1:
        names = name_some([path.name for path in found])
        raise DataError(f"{root}: holds {len(found)} tables of labels: {names}; keep one")
    return found[0]


@dataclass(frozen=True)
class ScanLabels:
    """Rows of a table of labels.

    Attributes:
        path: the file.
        rows: rows as text, columns renamed as in `ID_COLUMNS`; `label` is 0, 1, `UNKNOWN` or wrong. The index
            is the line number.
        ids: columns of `rows` that hold ids.
        faults: faults of the labels.
        reading: what was understood of columns and labels.
    """

    path: Path
    rows: pd.DataFrame
    ids: list[str]
    faults: list[str]
    reading: str

    def match(
        self,
        names: ScanNames,
        more: Callable[[], Iterable[tuple[str, str]]] = tuple,
        refused: Iterable[LedgerEntry] = (),
    ) -> tuple[pd.DataFrame, str]:
        """Find the scan of each labelled row.

        Args:
            names: names of the scans.
            more: further names, collected only if some rows fit no scan without them.
            refused: ledger lines of unusable files, for the reason why a row fits no scan.

        Returns:
            The labelled rows with the scan id as index, and what was understood, in words.

        Raises:
            DataError: a wrong label, a row without an id, of no scan or of several, two rows of one scan, or
                no label at all.
        """
        rows = self.rows[self.rows.label != UNKNOWN]
        scans = self._scans(rows, names)
        if any(len(fits) != 1 for fits in scans.values()):
            names.add(more())
            scans = self._scans(rows, names)
        faults = [*self.faults, *self._faults(rows, scans, refused)]
        matched = sum(len(fits) == 1 for fits in scans.values())
        reading = f"{self.reading}; {matched} of {len(rows)} rows with a label matched"
        if not len(rows):
            faults.append("no row has a label")
        if faults:
            raise DataError(f"{self.path}: {'; '.join(faults)}; correct or remove these rows ({reading})")
        index = pd.Index([scan for (scan,) in scans.values()], name="scan")
        return rows.set_axis(index), f"{self.path}: {reading}"

    def _scans(self, rows: pd.DataFrame, names: ScanNames) -> dict[int, set[str]]:
        """Scans that fit all ids of a row, by line."""
        scans = {}
        for line, row in zip(rows.index, rows[self.ids].to_dict("records"), strict=True):
            fits = {column: names.find(name) for column, name in row.items() if name}
            if not fits.get("accession"):  # shortened by a spreadsheet, or the DICOM files are gone
                fits.pop("accession", None)
            scans[line] = set.intersection(*fits.values()) if fits else set()
        return scans

    def _faults(
        self, rows: pd.DataFrame, scans: Mapping[int, set[str]], refused: Iterable[LedgerEntry]
    ) -> Iterable[str]:
        ids = {line: [name for name in row if name] for line, *row in rows[self.ids].itertuples()}
        if empty := [f"line {line}" for line in rows.index if not ids[line]]:
            yield f"no id of a scan in {name_some(empty, _MOST)}"
        if lost := [line for line in rows.index if ids[line] and not scans[line]]:
            named = {name for line in lost for name in ids[line]}
            reasons = (r.detail for r in refused if named & {r.scan, *PurePath(r.file).parts[:-1]})
            why = f" ({reason})" if (reason := next(reasons, "")) else ""
            shown = [f"{', '.join(ids[line])} (line {line})" for line in lost]
            yield f"rows that fit no scan with a readable file: {name_some(shown, _MOST)}{why}"
        if several := [line for line in rows.index if len(scans[line]) > 1]:
            shown = [f"{', '.join(ids[line])} (line {line}: {len(scans[line])})" for line in several]
            fault = "ids that fit several scans, name these by StudyInstanceUID or path"
            yield f"{fault}: {name_some(shown, _MOST)}"
        lines: dict[str, list[str]] = defaultdict(list)
        for line, fits in scans.items():
            if len(fits) == 1:
                lines[min(fits)].append(str(line))
        if twice := [" and ".join(of) for of in lines.values() if len(of) > 1]:
            yield f"lines that name one scan: {name_some(twice, _MOST)}"


def read_scan_labels(
    path: Path, *, ids: Mapping[str, str] = ID_COLUMNS, labels: Sequence[str] = ("label",)
) -> ScanLabels:
    """Read a table of labels, a CSV or Excel file.

    `ids` are the names of columns that hold ids, by the lower-case letters of the column; the first of
    `labels` that exists holds the label. `DataError`: no column of ids or labels, or as in `read_table`.
    """
    table = read_table(path)
    known = {**ids, **{name: name for name in (*labels, "patient")}}
    plain = {column: re.sub(r"[\W\d_]", "", column.casefold()) for column in map(str, table)}
    given = table.columns.tolist()
    table = table.rename(columns=lambda column: known.get(plain[str(column)], column))
    check_columns(table, path)
    original = dict(zip(table.columns, given, strict=True))
    id_columns = [column for column in dict.fromkeys(ids.values()) if column in table]
    label_columns = [column for column in labels if column in table]
    missing = [] if id_columns else [f"of scan ids ({', '.join(dict.fromkeys(ids.values()))})"]
    missing += [] if label_columns else [" or ".join(labels)]
    if missing:
        raise DataError(
            f"{path}: column {' and column '.join(missing)} is missing; found {name_some(given, 6)}"
        )
    texts = table[label_columns[0]].set_axis(table.index + 2)
    values = texts.map(_value)
    wrong = [f"{text!r} (line {line})" for line, text in texts[values == _WRONG].items()]
    faults = [f"labels that are neither 1 (yes) nor 0 (no): {name_some(wrong, _MOST)}"] if wrong else []
    counts = texts[values != _WRONG].value_counts()
    words = {text: f"{text} = {_value(text)}" if text else "empty = no label" for text in texts}
    read = [f"{words[text]} ({n})" for text, n in zip(counts.index, counts, strict=True)]
    from_columns = ", ".join(original[column] for column in id_columns)
    reading = f"scan ids from column {from_columns}, labels from {original[label_columns[0]]}: "
    reading += name_some(read, _MOST)
    rows = table.set_axis(table.index + 2).assign(label=values)
    return ScanLabels(path, rows, id_columns, faults, reading)


def unlabelled(count: int) -> str:
    """Words on scans without a label, to follow what was read; '' for none."""
    return f"; scans without a label, which take no part: {count}" if count else ""


def _value(text: str) -> int:
    return next((value for value, words in _VALUES.items() if words.fullmatch(text)), _WRONG)
