"""A collection: DICOM files on disk and what is known of their labels. One subclass a layout.

In: a root folder. Out: the files to look at, the scan each file belongs to, the label of each scan and slice.
Collections read label files and folder names only; pixels and geometry are the business of `ich_mil.dicom`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ich_mil.data.features import UNKNOWN
from ich_mil.dicom.read import SliceHeader
from ich_mil.errors import DataError
from ich_mil.ledger import LedgerEntry


class Collection(ABC):
    """DICOM files below `root`, and their labels.

    Attributes:
        root: the folder.
        entries: ledger lines about the label files.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise DataError(f"{root}: no such folder")
        self.root = root
        self.entries: list[LedgerEntry] = []

    @abstractmethod
    def files(self) -> list[Path]:
        """Every file that may be a slice, sorted. Raises `DataError` if there is none."""

    @abstractmethod
    def scan_id(self, header: SliceHeader) -> str:
        """The scan that a slice belongs to."""

    @abstractmethod
    def scan_label(self, scan: str, headers: Sequence[SliceHeader]) -> int:
        """0, 1 or `UNKNOWN` for a scan, given the headers of all of its slices."""

    def slice_label(self, header: SliceHeader) -> int:
        """0, 1 or `UNKNOWN` for a slice."""
        return UNKNOWN

    @abstractmethod
    def check(self, scans: dict[str, list[SliceHeader]]) -> None:
        """Compare the labels with the scans that were found.

        Raises:
            DataError: scans without a label, or labels that name scans which are not there.
        """


def every_file(folder: Path) -> list[Path]:
    """All files below `folder`, hidden and linked ones too, sorted; `DataError` if there is none."""
    found: list[Path] = []
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # a link back up
            folders.clear()
            continue
        seen.add(real)
        found.extend(Path(place) / name for name in names)
    files = sorted(found)
    if not files:
        raise DataError(f"{folder}: holds no file; name the folder with the DICOM files")
    return files


def read_label_csv(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """A label table as stripped text; its index is the line less 2. `DataError` if a column is missing."""
    if not path.is_file():
        raise DataError(f"{path}: no such label file")
    try:
        table = pd.read_csv(
            path, dtype=str, encoding="utf-8-sig", keep_default_na=False, skip_blank_lines=False
        )
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: cannot be read as a CSV table ({error})") from error
    table.columns = table.columns.str.strip()
    table = table.fillna("").apply(lambda column: column.str.strip())
    table = table[(table != "").any(axis=1)]  # blank lines go, the index still counts them
    missing = [column for column in columns if column not in table]
    if missing:
        raise DataError(f"{path}: column {', '.join(missing)} is missing; found {', '.join(table.columns)}")
    return table


def binary(values: pd.Series, path: Path) -> pd.Series:
    """Text labels as integers. `DataError` naming file and line for anything that is not 0 or 1."""
    wrong = ~values.isin(["0", "1"])
    if wrong.any():
        row = values.index[wrong][0]
        raise DataError(f"{path}: line {row + 2}: {values.name} must be 0 or 1, got {values[row]!r}")
    return values.astype(int)


def name_some(names: Sequence[str], most: int = 3) -> str:
    """The first few names of a list, for an error message."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
