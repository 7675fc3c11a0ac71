"""Prepared set: one file of pixels per scan, and one table of all slices.

SET/scans/<scan>.zip    (n, H, W) Hounsfield units, lowest slice first (`ich_mil.sets.stored_hu`)
SET/scans/<scan>.json   source files, orientation and corrections of each slice; written last, marks a
                        complete scan
SET/slices.csv          one row per slice: scan, index, patient, position_mm, position, scan_label,
                        slice_label, sop, source, corrections, content (a digest of its pixels)
SET/ledger.csv          all refusals, corrections and choices
SET/index.sqlite        header index (`ich_mil.sets.preparation.index`), not part of the result
SET/prepared.json       format, layout, root, thickness and a digest of the source files
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.files import digest, each_text, original
from ich_mil.ledger import LedgerEntry
from ich_mil.sets.labels import name_some
from ich_mil.sets.scan_names import folder_of, own_folders
from ich_mil.sets.splits import content_of, one_patient
from ich_mil.sets.stored_hu import read_hu

FORMAT = "ich_mil.prepared.9"
COLUMNS = (
    *("scan", "index", "patient", "position_mm", "position", "scan_label", "slice_label"),
    *("sop", "source", "corrections", "content"),
)
"""Columns of `slices.csv`."""
UNFINISHED = ""
"""Value of `files` in `prepared.json` while scans are being prepared; otherwise a digest of the files."""


def scan_file(folder: Path, scan: str) -> Path:
    """Path of the pixels of a scan. An id that is no safe file name is replaced, with a digest appended."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", scan)
    if name != scan or name.startswith(".") or len(name) > 100:
        name = f"{name.lstrip('.')[:60]}-{digest(scan.encode())}"
    return folder / "scans" / f"{name}.zip"


@dataclass(frozen=True)
class PreparedSet:
    """A prepared set on disk.

    Attributes:
        folder: folder of the set.
        root: folder of the source files.
        fingerprint: digest of the source files and of the table.
    """

    folder: Path
    root: Path
    fingerprint: str

    @cached_property
    def table(self) -> pd.DataFrame:
        """`slices.csv`: one row per slice, sorted by scan and index."""
        texts = ("scan", "patient", "sop", "source", "content")
        return self._read("slices.csv", COLUMNS, dict.fromkeys(texts, str))

    @cached_property
    def scans(self) -> pd.DataFrame:
        """One row per scan, index `scan`: patient, label, slices (their number), content (a digest).

        Scans that share a slice belong to one patient, whatever their files say (`ich_mil.sets.splits`).
        """
        grouped = self.table.groupby("scan", sort=False)
        scans = grouped.agg(
            patient=("patient", "first"),
            label=("scan_label", "first"),
            slices=("scan", "size"),
            content=("content", lambda slices: content_of(slices, least=1)),
        )
        return scans.assign(patient=one_patient(self.table).groupby(self.table.scan, sort=False).first())

    def slices(self, scan: str) -> pd.DataFrame:
        """Table rows of one scan, lowest slice first. `DataError` if there is no such scan."""
        if scan not in self._rows:
            raise DataError(f"{self.folder}: has no scan {scan!r}")
        return self.table.loc[self._rows[scan]]

    @cached_property
    def _rows(self) -> dict[str, pd.Index]:
        return {str(scan): rows for scan, rows in self.table.groupby("scan").groups.items()}

    def part_of(self, scan: str) -> "PreparedSet":
        """The set on disk that contains a scan: this set (`_JoinedSet` overrides this)."""
        return self

    def hu(self, scan: str) -> np.ndarray:
        """Pixels of one scan: (n, H, W) int16 HU, a new array. `DataError`: damaged file."""
        return read_hu(scan_file(self.folder, scan))

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """`ledger.csv` as text, in file order."""
        return self._read("ledger.csv", [field.name for field in fields(LedgerEntry)], str)

    @cached_property
    def folders(self) -> dict[str, str]:
        """Folder below the root that stands for each scan, unused ones too; see `own_folders`."""
        return own_folders(self.in_folders)

    @cached_property
    def in_folders(self) -> set[tuple[str, str]]:
        """Pairs of a scan, unused ones too, and a folder of its files."""
        sources = zip(self.table.scan, self.table.source.str.split("|").str[0], strict=True)
        refused = zip(self.ledger.scan, self.ledger.file, strict=True)
        return {(scan, folder_of(path)) for scan, path in (*sources, *refused) if scan}

    def _read(self, name: str, columns: Iterable[str], types: Any) -> pd.DataFrame:
        """Read a table of the set. `DataError` if it is missing or damaged, or lacks a column."""
        try:
            table = pd.read_csv(self.folder / name, dtype=types, keep_default_na=False)
            if missing := [column for column in columns if column not in table]:
                raise ValueError(f"{name} lacks column {', '.join(missing)}")
        except (OSError, ValueError) as error:
            raise _no_set(self.folder, error) from error
        return each_text(table, original)

    @cached_property
    def ledger_by_scan(self) -> dict[str, list[dict[str, str]]]:
        """Ledger lines by scan id; lines that concern no scan are under ''."""
        lines: dict[str, list[Any]] = defaultdict(list)
        for line in self.ledger.to_dict("records"):
            lines[line["scan"]].append(line)
        return dict(lines)


def open_prepared(folder: str | Path) -> PreparedSet:
    """Open a prepared set. `DataError` if the folder holds no finished set of this version."""
    folder = Path(folder)
    try:
        metadata = {**json.loads((folder / "prepared.json").read_text(encoding="utf-8"))}
        table = hashlib.sha256((folder / "slices.csv").read_bytes()).digest()
        version, files = metadata.get("format"), metadata.get("files", UNFINISHED)
    except (OSError, TypeError, ValueError) as error:
        raise _no_set(folder, error) from error
    if version != FORMAT:
        raise DataError(f"{folder}: was prepared by another version ({version}); prepare it again")
    if files == UNFINISHED:
        raise DataError(f"{folder}: its preparation was interrupted; run 'ich-mil prepare' again")
    return PreparedSet(folder, Path(metadata.get("root", "")), digest(files.encode(), table))


def _no_set(folder: Path, error: Exception) -> DataError:
    return DataError(f"{folder}: is no prepared set ({error}); run 'ich-mil prepare' first")


@dataclass(frozen=True)
class _JoinedSet(PreparedSet):
    """Prepared sets read as one; `folder` is the parent folder and `root` the root of the first set.

    Patients are matched across sets by the key of the PatientID and by pixels: scans that share a
    bit-identical slice belong to one patient. Equal names of scans or slices in two sets are refused.
    """

    sets: tuple[PreparedSet, ...]

    @cached_property
    def table(self) -> pd.DataFrame:
        """Rows of `slices.csv` of all sets."""
        return pd.concat([prepared.table for prepared in self.sets], ignore_index=True)

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """Lines of `ledger.csv` of all sets."""
        return pd.concat([prepared.ledger for prepared in self.sets], ignore_index=True)

    @cached_property
    def folders(self) -> dict[str, str]:
        """`PreparedSet.folders` of all sets."""
        return {scan: folder for prepared in self.sets for scan, folder in prepared.folders.items()}

    def part_of(self, scan: str) -> PreparedSet:
        """The set that contains a scan. `DataError` if there is no such scan."""
        for prepared in self.sets:
            if scan in prepared.scans.index:
                return prepared
        raise DataError(f"{self.folder}: has no scan {scan!r}")

    def hu(self, scan: str) -> np.ndarray:
        """`PreparedSet.hu` of the set that contains the scan."""
        return self.part_of(scan).hu(scan)


def joined(sets: Sequence[PreparedSet]) -> PreparedSet:
    """Join prepared sets; a single set is returned unchanged.

    Raises:
        DataError: a scan id or slice name occurs in two sets.
    """
    if len(sets) == 1:
        return sets[0]
    for column, what in (("scan", "scans"), ("sop", "slices")):
        first: dict[str, PreparedSet] = {}
        for part in sets:
            names = set(part.table[column])
            if both := sorted(names & first.keys()):
                raise DataError(
                    f"{first[both[0]].root} and {part.root}: {len(both)} {what} are in both sets: "
                    f"{name_some(both)}; remove them from one set, or rename them if they differ"
                )
            first |= dict.fromkeys(names, part)
    fingerprint = digest(*(part.fingerprint.encode() for part in sets))
    return _JoinedSet(sets[0].folder.parent, sets[0].root, fingerprint, tuple(sets))
