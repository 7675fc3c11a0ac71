"""Label tables: strict reading of hand-written CSV and Excel files, with errors that name file and line."""

import csv
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from ich_mil.errors import DataError, check_installed
from ich_mil.files import original

EXCEL = (".xlsx", ".xlsm")
UNKNOWN = -1
"""Label of an unlabelled slice or scan."""
MOST_TITLES = 50
"""Number of rows at the top of a table in which its header is looked for."""
_SEPARATORS = ",;\t"

IsHeader = Callable[[Sequence[str]], object]
"""Whether the texts of a row are the column names of a table."""


def read_label_csv(path: Path, columns: Sequence[str], *, key: str | None = None) -> pd.DataFrame:
    """Read a table with named columns as `read_table` does.

    Args:
        path: the CSV or Excel file.
        columns: required columns; where one is missing, a column that differs in case stands for it.
        key: column without repeated values.

    Raises:
        DataError: a column is missing, a value of `key` occurs twice, or as in `read_table`.
    """
    table = read_table(path)
    wanted = {column.casefold(): column for column in columns if column not in table}
    table = table.rename(columns=lambda name: wanted.get(name.casefold(), name))
    if missing := [column for column in columns if column not in table]:
        there = name_some(list(table.columns), 6)
        raise DataError(f"{path}: column {', '.join(missing)} is missing; found {there}")
    check_columns(table, path)
    if key is not None and len(repeated := table[key][table[key].duplicated()]):
        raise DataError(f"{path}: scans listed twice: {name_some(list(repeated))}; keep one row for each")
    return table


def encoding_of(start: bytes) -> str:
    """UTF-16 for a text that starts with its byte order mark ("Unicode text" of Excel), else UTF-8."""
    return "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        return encoding_of(file.read(2))


def first_rows(path: Path) -> Iterator[list[list[str]]]:
    """The first `MOST_TITLES` rows of a table as stripped text; of a text file by each separator in turn.

    `DataError`: the file is neither a table in UTF-8 or UTF-16 nor an Excel file.
    """
    if path.suffix.lower() in EXCEL:
        top = read_excel(path).head(MOST_TITLES).to_numpy().tolist()
        yield [[cell.strip() for cell in row] for row in top]
        return
    for separator in _SEPARATORS:
        try:
            with path.open(encoding=_encoding(path), newline="") as file:
                rows = islice(csv.reader(file, delimiter=separator), MOST_TITLES)
                yield [[cell.strip() for cell in row] for row in rows]
        except (csv.Error, OSError, UnicodeError):
            return  # reported by `read_table`


def table_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped values of `columns` of each row of a large text table, one row at a time.

    Separators, case of the column names and blank lines are as in `read_label_csv`. `DataError`: no such
    table or column, or a row of another length.
    """
    try:
        with path.open(encoding=_encoding(path), newline="") as file:
            first = file.readline()
            separator = next((mark for mark in _SEPARATORS if mark in first), ",")
            header = [name.strip() for name in next(csv.reader([first], delimiter=separator), [])]
            names = [name.casefold() for name in header]
            if missing := [name for name in columns if name.casefold() not in names]:
                there = name_some(header, 6)
                raise DataError(f"{path}: column {', '.join(missing)} is missing; found {there}")
            indices = [names.index(name.casefold()) for name in columns]
            rows = csv.reader(file, delimiter=separator)
            for row in rows:
                if len(row) == len(header):
                    yield rows.line_num + 1, [row[index].strip() for index in indices]
                elif any(map(str.strip, row)):
                    what = f"{len(row)} fields, but the header has {len(header)}"
                    raise DataError(f"{path}: line {rows.line_num + 1}: {what}; correct the row")
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such table; put it there, or correct path or layout") from error
    except UnicodeError as error:
        raise DataError(f"{path}: is not UTF-8 text; save it as CSV in UTF-8") from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error}); save it as CSV again") from error


def read_table(path: Path, is_header: IsHeader | None = None) -> pd.DataFrame:
    """Read a table as stripped text; its index is the line number minus 2.

    The columns of a text file are separated by commas, or by semicolons or tabs if its header has no comma. A
    row with fewer fields than the header is filled up with empty fields.

    Args:
        path: the CSV or Excel file.
        is_header: finds the header among the first rows; rows above it are titles. None, or no such row: the
            first row is the header.

    Raises:
        DataError: a row has more fields than the header, a column occurs twice, or the file is neither a
            table in UTF-8 or UTF-16 nor an Excel file.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such table; put it there, or correct path or layout")
    titles, separator = _header(path, is_header)
    if path.suffix.lower() in EXCEL:
        table = read_excel(path).iloc[titles:]
    else:
        table = _read_csv(path, titles, separator)
    if table.empty:
        raise DataError(f"{path}: holds no row; begin it with a row of column names")
    table.columns = pd.Index(table.iloc[0].fillna("").str.strip())
    table = table.iloc[1:].set_axis(pd.RangeIndex(titles, titles + len(table) - 1))
    table = table.fillna("").apply(lambda column: column.str.strip().map(original))
    table = table[(table != "").any(axis=1)]  # drop blank lines; the index still counts them
    if is_header is None or is_header(table.columns.tolist()):  # else the row may be of another kind
        check_columns(table, path)
    return table


def check_columns(table: pd.DataFrame, path: Path) -> None:
    """Raise `DataError` if a named column occurs twice."""
    twice = table.columns[table.columns.duplicated() & (table.columns != "")].unique()
    if len(twice):
        raise DataError(f"{path}: column {', '.join(twice)} occurs twice; keep one")


def read_excel(path: Path) -> pd.DataFrame:
    """Read the only filled sheet of an Excel file as text, its header as a row; error cells are '#N/A'.

    `DataError`: it cannot be read, or has several filled sheets.
    """
    check_installed("openpyxl", "formats", str(path))
    try:
        every = pd.read_excel(path, sheet_name=None, dtype=str, keep_default_na=False, header=None)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: is no Excel table; save it as .xlsx again, or as CSV") from error
    filled = {name: sheet for name, sheet in every.items() if not sheet.empty}
    if len(filled) > 1:
        raise DataError(f"{path}: has {len(filled)} filled sheets: {name_some([*filled])}; keep one")
    return next(iter(filled.values()), pd.DataFrame()).fillna("#N/A").astype(str)


def _header(path: Path, is_header: IsHeader | None) -> tuple[int, str]:
    """Number of title rows above the header, and separator of a text file; 0 and '' if it is not found."""
    if is_header is not None and path.is_file():
        for separator, rows in zip(_SEPARATORS, first_rows(path), strict=False):
            if (line := next((line for line, row in enumerate(rows) if is_header(row)), None)) is not None:
                return line, separator
    return 0, ""


def _read_csv(path: Path, titles: int, separator: str) -> pd.DataFrame:
    """Table of a text file, its header as a row, so that pandas refuses longer rows."""
    try:
        with path.open(encoding=_encoding(path)) as file:
            header = file.readline()
        # Excel writes ; in some locales
        separator = separator or next((mark for mark in _SEPARATORS if mark in header), ",")
        how: dict[str, Any] = {
            "header": None,
            "index_col": False,
            "keep_default_na": False,
            "skip_blank_lines": False,
            "skiprows": titles,
        }
        return pd.read_csv(path, sep=separator, dtype=str, encoding=_encoding(path), **how)
    except UnicodeError as error:
        raise DataError(f"{path}: is not UTF-8 text; save it as CSV in UTF-8") from error
    except (OSError, ValueError) as error:
        if fault := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
            named, line, fields = fault.groups()
            raise DataError(
                f"{path}: line {line}: {fields} fields, but the header has {named}; quote texts that contain "
                "the separator"
            ) from error
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: cannot be read as CSV ({reason}); save it as CSV again") from error


def binary(values: pd.Series, path: Path) -> pd.Series:
    """Parse text labels as integers. `DataError`, naming file and line, for any value other than 0 or 1."""
    wrong = values.index[~values.isin(["0", "1"])]
    if len(wrong):
        value = values[wrong[0]]
        raise DataError(f"{path}: line {wrong[0] + 2}: {values.name} must be 0 or 1, got {value!r}")
    return values.astype(int)


def name_some(names: Sequence[str], most: int = 3) -> str:
    """Join the first few names of a list, for an error message."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
