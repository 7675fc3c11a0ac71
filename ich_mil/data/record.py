"""What is known of a prepared scan: `scans/<scan>.json`.

In: a `ScanRecord` of a scan whose pixels are written; or the folder of a prepared set. Out: the file, which
marks a whole scan; or the record that was read from it. A damaged one, or another format's, counts as none.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ich_mil.data.store import FORMAT, scan_file
from ich_mil.dicom.contrast_words import SitePhrases
from ich_mil.dicom.planes import Edges, edges_of
from ich_mil.files import digest, write_text
from ich_mil.ledger import Code, LedgerEntry


@dataclass(frozen=True)
class ScanRecord:
    """What `scans/<scan>.json` says of one prepared scan.

    Attributes:
        fingerprint: `scan_fingerprint` of what it was made from.
        n_bytes: size of the .npy file, 0 where there is none.
        patient: pseudonymous patient key, the scan id where the files name none.
        pixel_mm: distance of rows and of columns, mm; 0 where not known.
        slices: for each slice `sources` (paths below the root, with frames), `sops` of these, `sop` and
            `orientation` of the middle one, `position_mm`, `corrections`, `content` (a digest of its pixels).
        entries: ledger lines of the scan.
    """

    fingerprint: str
    n_bytes: int
    patient: str
    pixel_mm: tuple[float, float]
    slices: list[dict[str, Any]]
    entries: list[LedgerEntry]

    @property
    def edges(self) -> list[Edges | None]:
        """The sides of the patient at the edges of each slice; None where its orientation is not told."""
        return [edges_of(row["orientation"]) for row in self.slices]


def scan_fingerprint(
    files: str, thickness_mm: float, window: Sequence[float] | None = None, site: SitePhrases = ()
) -> str:
    """A digest of all that a prepared scan depends on: files, thickness, window, contrast words, format."""
    parts = [FORMAT, files, str(thickness_mm), *([] if window is None else [str(tuple(window))])]
    parts += [str(site)] if site else []
    return digest(*(part.encode() for part in parts))


def read_record(out: Path, scan: str) -> ScanRecord | None:
    """The record of a scan prepared earlier; None if there is none, a damaged one, or another version's."""
    path = scan_file(out, scan)
    try:
        row = json.loads(path.with_suffix(".json").read_bytes())
        if row.pop("format") != FORMAT or (row["n_bytes"] and path.stat().st_size != row["n_bytes"]):
            return None
        entries = [LedgerEntry(**{**entry, "code": Code(entry["code"])}) for entry in row.pop("entries")]
        return ScanRecord(**row, entries=entries)
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return None


def write_record(out: Path, scan: str, record: ScanRecord) -> None:
    """Write the record of a scan, after its pixels."""
    row = {"format": FORMAT, **vars(record), "entries": [vars(entry) for entry in record.entries]}
    write_text(scan_file(out, scan).with_suffix(".json"), json.dumps(row) + "\n")
