"""Scan labels as people write them: a CSV or Excel table with ids and labels, matched to scans.

In: a table with one or several columns of ids (`ID_COLUMNS`) and a column `label`, or columns named by the
user; case, blanks and punctuation of column names do not matter, and titles may stand above the header. Out:
the label of each scan. All faults of a table are raised at once, with what was understood of it.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import pandas as pd

from ich_mil.errors import DataError
from ich_mil.ledger import LedgerEntry
from ich_mil.sets.labels import UNKNOWN, first_rows, name_some, read_table
from ich_mil.sets.scan_names import Name, ScanNames
from ich_mil.settings import did_you_mean

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
    1: re.compile(r"1([.,]0*)?|yes|y|ja|j|true|wahr|positive?|pos\.?|\+", re.IGNORECASE),
    0: re.compile(r"0([.,]0*)?|no|n|nein|false|falsch|negative?|neg\.?|[-\u2212\u2013]", re.IGNORECASE),
    UNKNOWN: re.compile(""),
}
_SIGN = re.compile(r"[-+\u2212\u2013]?")
"""Labels of a column of signs. Beside words a minus may stand for no label, and is refused."""
_SHORTENED = re.compile(r"\d([.,]\d*)?E[+-]?\d+", re.IGNORECASE)
"""A long number as spreadsheets write it."""
_WRONG = -2
_MOST = 10
"""Number of rows or values named for each fault."""


def find_labels(root: Path) -> Path:
    """Path of the table of labels in a folder. `DataError`: there is none, or there are several."""
    tables = sorted(path for path in root.iterdir() if LABELS.fullmatch(path.name))
    if not tables:
        raise DataError(
            f"{root}: holds neither labels.csv nor labels.xlsx; put the table there, or let 'ich-mil "
            "labels-template' write one for studies"
        )
    if len(tables) > 1:
        names = name_some([path.name for path in tables])
        raise DataError(f"{root}: holds {len(tables)} tables of labels: {names}; keep one")
    return tables[0]


@dataclass(frozen=True)
class ScanLabels:
    """Rows of a table of labels.

    Attributes:
        path: the file.
        rows: rows as text, columns renamed as in `ID_COLUMNS`; `label` is 0, 1, `UNKNOWN` or wrong. The index
            is the line number.
        ids: columns of `rows` that hold ids.
        faults: faults that show without the scans.
        reading: what was understood of columns and labels.
    """

    path: Path
    rows: pd.DataFrame
    ids: list[str]
    faults: list[str]
    reading: str

    def check(self) -> None:
        """Raise `DataError` for the faults that show without the scans."""
        self._raise(self.faults, self.reading)

    def _raise(self, faults: list[str], reading: str) -> None:
        if faults:
            raise DataError(f"{self.path}: {'; '.join(faults)}; correct or remove these rows ({reading})")

    def match(
        self,
        names: ScanNames,
        more: Callable[[], Iterable[Name]] = tuple,
        refused: Iterable[LedgerEntry] = (),
    ) -> tuple[pd.DataFrame, str]:
        """Find the scan of each labelled row.

        Args:
            names: names of the scans.
            more: further names, collected unless folders and ids of scans fit one scan for each row.
            refused: ledger lines of unusable files, for the reason why a row fits no scan.

        Returns:
            The labelled rows with the scan id as index, and what was understood, in words.

        Raises:
            DataError: a wrong label, a row without an id, of no scan or of several, two rows of one scan, or
                no label at all.
        """
        rows = self.rows[self.rows.label != UNKNOWN]
        fits = self._fits(rows, names)
        open_columns = [column for column in self.ids if column not in ("folder", "study")]
        ambiguous = {*rows[open_columns].to_numpy().ravel()} - {""}
        if any(not sets or len(set.intersection(*sets)) != 1 for sets in fits.values()) or any(
            names.find(name) != {name} for name in ambiguous
        ):
            names.add(more())
            fits = self._fits(rows, names)
        ids = [name for row in rows[self.ids].to_numpy().tolist() for name in row if name]
        scans = {line: set.intersection(*sets) if sets else set() for line, sets in fits.items()}
        faults = [*self.faults, *self._faults(rows, fits, scans, refused)]
        matched = sum(len(scan) == 1 for scan in scans.values())
        reading = f"{self.reading}; {matched} of {len(rows)} rows with a label matched"
        if part := next((name for name in ids if names.path_of(name)), ""):
            reading += f" ({part} is folder {names.path_of(part)})"
        self._raise(faults, reading)
        index = pd.Index([scan for (scan,) in scans.values()], name="scan")
        return rows.set_axis(index), f"{self.path}: {reading}"

    def _fits(self, rows: pd.DataFrame, names: ScanNames) -> dict[int, list[set[str]]]:
        """Scans that fit each id of a row, by line.

        Accession numbers that a spreadsheet has shortened do not count, nor does a column of them that fits
        no scan at all, as where the DICOM files have other numbers or are gone.
        """
        fits = {
            line: {str(column): names.find(name, str(column)) for column, name in row.items() if name}
            for line, row in zip(rows.index, rows[self.ids].to_dict("records"), strict=True)
        }
        known = any(of_row.get("accession") for of_row in fits.values())
        for line, of_row in fits.items():
            lost = len(of_row) > 1 and not of_row.get("accession", {""})
            if lost and (not known or _SHORTENED.fullmatch(rows.accession[line])):
                del of_row["accession"]
        return {line: [*of_row.values()] for line, of_row in fits.items()}

    def _faults(
        self,
        rows: pd.DataFrame,
        fits: Mapping[int, list[set[str]]],
        scans: Mapping[int, set[str]],
        refused: Iterable[LedgerEntry],
    ) -> Iterable[str]:
        ids = {line: [name for name in row if name] for line, *row in rows[self.ids].itertuples()}
        apart = [line for line in rows.index if fits[line] and all(fits[line]) and not scans[line]]
        if apart:
            shown = [f"{', '.join(ids[line])} (line {line})" for line in apart]
            yield f"rows whose ids are of different scans: {name_some(shown, _MOST)}"
        if lost := [line for line in rows.index if ids[line] and not scans[line] and line not in apart]:
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
        for line, scan in scans.items():
            if len(scan) == 1:
                lines[min(scan)].append(str(line))
        if twice := [" and ".join(of) for of in lines.values() if len(of) > 1]:
            yield f"lines that name one scan: {name_some(twice, _MOST)}"


@dataclass(frozen=True)
class LabelColumns:
    """Columns of a table of labels.

    Attributes:
        ids: names of columns that hold ids, by the lower-case letters of the column.
        labels: names of the column of labels; the first that exists counts.
        id_column: column of ids, as named by the user; '' for those of `ids`.
        label_column: column of labels, as named by the user; '' for those of `labels`.
    """

    ids: Mapping[str, str] = field(default_factory=lambda: ID_COLUMNS)
    labels: Sequence[str] = ("label",)
    id_column: str = ""
    label_column: str = ""

    def chosen(self, row: Sequence[str]) -> dict[str, list[str]]:
        """Columns of a header row by the names that `ScanLabels.rows` gives them."""
        by_name: dict[str, list[str]] = defaultdict(list)
        for column in filter(None, row):
            letters = re.sub(r"[\W\d_]", "", column.casefold())
            key = "" if self.id_column else self.ids.get(letters, "")
            key = key or (letters if letters == "patient" else "")
            if letters in self.labels and not self.label_column:
                key = letters
            by_name[key].append(column)
        for wanted, name in ((self.id_column, next(iter(self.ids.values()))), (self.label_column, "label")):
            if wanted:
                by_name[name] = [c for c in row if c == wanted] or [
                    c for c in row if _plain(c) == _plain(wanted) != ""
                ]
        return {name: columns for name, columns in by_name.items() if name and columns}

    def names(self, row: Sequence[str]) -> tuple[list[str], list[str]]:
        """Names of the columns of ids and of labels that a header row has."""
        chosen = self.chosen(row)
        ids = [name for name in dict.fromkeys(self.ids.values()) if name in chosen]
        return ids, [name for name in self.labels if name in chosen]

    def is_header(self, row: Sequence[str]) -> bool:
        """Whether a row has a column of ids and one of labels."""
        return all(self.names(row))

    def missing(self, path: Path) -> str:
        """The columns that a table without header lacks, and those of its row that is most like a header."""
        rows = [row for table in first_rows(path) for row in table]
        header = max(rows, key=lambda row: (sum(map(bool, self.names(row))), sum(map(bool, row))))
        ids, labels = self.names(header)
        cells = sorted({cell for row in rows for cell in row if cell})
        usual = f"of scan ids ({', '.join(dict.fromkeys(self.ids.values()))})", " or ".join(self.labels)
        missing = " and column ".join(
            f"{named!r}{did_you_mean(named, cells)}" if named else name
            for present, named, name in zip(
                (ids, labels), (self.id_column, self.label_column), usual, strict=True
            )
            if not present
        )
        verb = "is" if ids or labels else "are"
        found = name_some([*filter(None, header)], 6)
        return f"{missing} {verb} missing; found {found}; call them so, or use --id-column, --label-column"


def read_scan_labels(path: Path, columns: LabelColumns = LabelColumns()) -> ScanLabels:
    """Read a table of labels, a CSV or Excel file, possibly with titles above its header.

    `DataError`: no column of ids or labels, one that occurs twice, or as in `read_table`.
    """
    table = read_table(path, columns.is_header)
    given = table.columns.tolist()
    if not columns.is_header(given):
        raise DataError(f"{path}: column {columns.missing(path)}")
    chosen = columns.chosen(given)
    for name, matches in chosen.items():
        if len(matches) > 1:
            raise DataError(f"{path}: column {name} occurs twice ({', '.join(matches)}); keep one")
    original = {name: matches[0] for name, matches in chosen.items()}
    table = table[list(original.values())].set_axis(list(original), axis=1)
    id_columns, label_columns = columns.names(given)
    texts = table[label_columns[0]].set_axis(table.index + 2)
    values = texts.map(_value)
    signs = texts.str.fullmatch(_SIGN)
    if not signs.all():
        values[signs & (texts != "")] = _WRONG
    wrong = [f"{text!r} (line {line})" for line, text in texts[values == _WRONG].items()]
    faults = [f"labels that are neither 1 (yes) nor 0 (no): {name_some(wrong, _MOST)}"] if wrong else []
    labelled = table.set_axis(table.index + 2)[values != UNKNOWN]
    if empty := [f"line {line}" for line, *row in labelled[id_columns].itertuples() if not any(row)]:
        faults.append(f"no id of a scan in {name_some(empty, _MOST)}")
    if labelled.empty:
        faults.append("no row has a label")
    counts = texts[values != _WRONG].value_counts()
    words = {text: f"{text} = {_value(text)}" if text else "empty = no label" for text in texts}
    read = [f"{words[text]} ({n})" for text, n in zip(counts.index, counts, strict=True)]
    from_columns = ", ".join(original[column] for column in id_columns)
    reading = f"scan ids from column {from_columns}, labels from {original[label_columns[0]]}: "
    reading += name_some(read, _MOST) or "none is understood"
    rows = table.set_axis(table.index + 2).assign(label=values)
    return ScanLabels(path, rows, id_columns, faults, reading)


def unlabelled(count: int) -> str:
    """Words on scans without a label, to follow what was read; '' for none."""
    return f"; scans without a label, which take no part: {count}" if count else ""


def _plain(column: str) -> str:
    """Letters and digits of the name of a column, in lower case."""
    return re.sub(r"[\W_]", "", column.casefold())


def _value(text: str) -> int:
    return next((value for value, words in _VALUES.items() if words.fullmatch(text)), _WRONG)
