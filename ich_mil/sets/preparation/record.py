"""Scan record: how each slice of a prepared scan was made, stored in `scans/<scan>.json`.

The record is written after the pixels, so that its presence marks a complete scan. A damaged record, or a
record of another format, counts as missing.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ich_mil.errors import DataError
from ich_mil.files import digest, write_text
from ich_mil.ledger import Code, LedgerEntry, ledger_entries
from ich_mil.sets.store import FORMAT, PreparedSet, scan_file
from ich_mil.study.contrast import SitePhrases
from ich_mil.study.study import Study


@dataclass(frozen=True)
class ScanRecord:
    """Record of one prepared scan.

    Attributes:
        fingerprint: `scan_fingerprint` of the inputs.
        n_bytes: size of the file of pixels in bytes; 0 without a file.
        patient: pseudonymous patient key; the scan id where the files have no PatientID.
        pixel_mm: spacing of rows and of columns, mm; 0 where unknown.
        slices: for each slice, `sources` (paths below the root, with frames), `sops` (SOP instance UIDs of
            the sources), `sop` and `orientation` of the middle source, `position_mm`, `corrections`,
            `content` (a digest of the pixels).
        entries: ledger lines of the scan.
    """

    fingerprint: str
    n_bytes: int
    patient: str
    pixel_mm: tuple[float, float]
    slices: list[dict[str, Any]]
    entries: list[LedgerEntry]


def scan_fingerprint(
    files: str, thickness_mm: float, window: Sequence[float] | None, site: SitePhrases
) -> str:
    """Digest of all inputs of a prepared scan: files, thickness, window, contrast words, format version."""
    inputs = [FORMAT, files, str(thickness_mm), *([] if window is None else [str(tuple(window))])]
    inputs += [str(site)] if site else []
    return digest(*(text.encode() for text in inputs))


def read_record(out: Path, scan: str) -> ScanRecord | None:
    """Read the record of a scan; None if it is missing, damaged or of another version."""
    path = scan_file(out, scan)
    try:
        row = json.loads(path.with_suffix(".json").read_bytes())
        if row.pop("format") != FORMAT or (row["n_bytes"] and path.stat().st_size != row["n_bytes"]):
            return None
        entries = [LedgerEntry(**{**entry, "code": Code(entry["code"])}) for entry in row.pop("entries")]
        return ScanRecord(**row, entries=entries)
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return None


def need_record(folder: Path, scan: str) -> ScanRecord:
    """Read the record of a scan of a prepared set. `DataError` if it cannot be read."""
    record = read_record(folder, scan)
    if record is None:
        raise DataError(f"{folder}: the record of scan {scan!r} cannot be read; run prepare again")
    return record


def prepared_study(prepared: PreparedSet, scan: str) -> Study:
    """A scan of a prepared set. `DataError`: its files cannot be read."""
    part = prepared.part_of(scan)
    record = need_record(part.folder, scan)
    ledger = ledger_entries(prepared.ledger_by_scan.get(scan, []))
    patient, folder = str(prepared.scans.patient[scan]), prepared.folders.get(scan, "")
    return Study(scan, patient, part.hu(scan), record.slices, record.pixel_mm, ledger, part.root, folder)


def write_record(out: Path, scan: str, record: ScanRecord) -> None:
    """Write the record of a scan. Call this after its pixels are written."""
    row = {"format": FORMAT, **vars(record), "entries": [vars(entry) for entry in record.entries]}
    write_text(scan_file(out, scan).with_suffix(".json"), json.dumps(row) + "\n")
