"""CQ500 layout: DICOM folders with scan labels from three readers (Chilamkurthy et al. 2018).

In: `ROOT/CQ500CT<n> CQ500CT<n>/Unknown Study/<series>/CT%06d.dcm` and `ROOT/reads.csv` with three reads per
scan. Out: a `Collection`. A scan is positive if at least two of the three readers saw a hemorrhage. There are
no slice labels.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path, PurePath

from ich_mil.data.labels import name_some
from ich_mil.data.layouts.collection import Collection, Source, every_file
from ich_mil.data.layouts.cq500_reads import MAJORITY, read_votes
from ich_mil.errors import DataError
from ich_mil.ledger import Code, LedgerEntry

_FOLDER = re.compile(r"^CQ500-?CT-?(\d+)\b", re.IGNORECASE)


class Cq500Collection(Collection):
    """CQ500 files with scan labels by majority vote of three readers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.path = root / "reads.csv"
        votes = read_votes(self.path, ["ICH"])["ICH"]
        self.labels = dict(zip(votes.index, (votes >= MAJORITY).astype(int), strict=True))

    def files(self) -> Iterator[str]:
        """All files in folders named `CQ500CT<n>`; other entries of the root get a ledger line."""
        folders = []
        for path in sorted(self.root.iterdir()):
            if _FOLDER.match(path.name) and path.is_dir():
                folders.append(path)
            elif path != self.path:
                detail = "its name is not that of a CQ500 scan; it was not looked at"
                self.entries.append(LedgerEntry("", path.name, Code.OTHER_FOLDER, detail))
        if not folders:
            reason = "holds no folder named like 'CQ500CT0 CQ500CT0'; correct path or layout"
            raise DataError(f"{self.root}: {reason}")
        return chain.from_iterable(every_file(folder, self.root) for folder in folders)

    def scan_id(self, path: str, study_uid: str) -> str:
        """Scan id `CQ500-CT-<n>`, as in `reads.csv`, from the folder name."""
        match = _FOLDER.match(PurePath(path).parts[0])
        assert match is not None, path  # files() lists only folders with such names
        return f"CQ500-CT-{match[1]}"

    def scan_label(self, scan: str, sources: Sequence[Source]) -> int:
        """1 if at least two of the three readers saw a hemorrhage, else 0."""
        return self.labels[scan]

    def check(
        self, scans: Iterable[tuple[str, Sequence[Source]]], refused: Iterable[LedgerEntry] = ()
    ) -> None:
        """Require a row for every scan. A row without a scan gets a ledger line (a partial download)."""
        found = {scan for scan, _ in scans}
        missing = sorted(found - set(self.labels))
        if missing:
            raise DataError(
                f"{self.path}: no row for {len(missing)} scans: {name_some(missing)}; add a row for each, or "
                "take their folders out"
            )
        for scan in sorted(set(self.labels) - found):
            detail = "reads.csv has a row, but no readable slice was found"
            self.entries.append(LedgerEntry(scan, self.path.name, Code.LABEL_UNUSED, detail))
