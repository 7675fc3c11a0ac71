"""Label tables: strict reading of hand-written CSV files.

In: a CSV file. Out: its columns as stripped text, or as 0 and 1. Any other content raises an error that names
the file and, where possible, the line.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ich_mil.errors import DataError

UNKNOWN = -1
"""Label of an unlabelled slice or scan."""


def read_label_csv(path: Path, columns: Sequence[str], *, key: str | None = None) -> pd.DataFrame:
    """Read a label table as stripped text; its index is the line number minus 2.

    A row with fewer fields than the header is filled up with empty fields.

    Raises:
        DataError: a row has more fields than the header, a column is missing or occurs twice, a value of the
            column `key` occurs twice, or the file is not a comma-separated table in UTF-8.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such table; put it there, or correct path or layout")
    try:
        with path.open(encoding="utf-8-sig") as file:
            _check_separator(file.readline(), path)
        # The header is read as a row, so that pandas refuses longer rows. With a header, pandas takes the
        # number of fields from the first row of data.
        table = pd.read_csv(
            path,
            dtype=str,
            encoding="utf-8-sig",
            header=None,
            index_col=False,
            keep_default_na=False,
            skip_blank_lines=False,
        )
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no UTF-8 text; save it as CSV in UTF-8") from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason}); put it where it can be") from error
    except ValueError as error:
        if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
            named, line, fields = found.groups()
            raise DataError(
                f"{path}: line {line}: {fields} fields, but the header names {named}; put texts with a comma "
                "into quotes"
            ) from error
        told = " ".join(str(error).split())
        raise DataError(f"{path}: cannot be read as a CSV table ({told}); save it as one again") from error
    table.columns = pd.Index(table.iloc[0].fillna("").str.strip())
    table = table.iloc[1:].set_axis(pd.RangeIndex(len(table) - 1))
    table = table.fillna("").apply(lambda column: column.str.strip())
    table = table[(table != "").any(axis=1)]  # drop blank lines; the index still counts them
    missing = [column for column in columns if column not in table]
    if missing:
        there = name_some(list(table.columns), 6)
        raise DataError(f"{path}: column {', '.join(missing)} is missing; found {there}")
    twice = table.columns[table.columns.duplicated() & (table.columns != "")].unique()
    if len(twice):
        raise DataError(f"{path}: column {', '.join(twice)} is there twice; leave one")
    if key is not None and len(repeated := table[key][table[key].duplicated()]):
        raise DataError(f"{path}: scans listed twice: {name_some(list(repeated))}; leave one row for each")
    return table


def _check_separator(header: str, path: Path) -> None:
    """Raise `DataError` for semicolons or tabs: Excel writes semicolons in locales with a decimal comma."""
    for mark, told in ((";", "';'"), ("\t", "tabs")):
        if mark in header and "," not in header:
            raise DataError(f"{path}: its columns are separated by {told}, not by ','; save it with commas")


def binary(values: pd.Series, path: Path) -> pd.Series:
    """Parse text labels as integers. `DataError`, naming file and line, for any value other than 0 or 1."""
    wrong = ~values.isin(["0", "1"])
    if wrong.any():
        row = values.index[wrong][0]
        raise DataError(f"{path}: line {row + 2}: {values.name} must be 0 or 1, got {values[row]!r}")
    return values.astype(int)


def name_some(names: Sequence[str], most: int = 3) -> str:
    """Join the first few names of a list, for an error message."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
