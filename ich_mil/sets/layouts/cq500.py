"""CQ500 layout: DICOM folders, and labels by three readers (Chilamkurthy et al. 2018).

The files are `ROOT/CQ500CT<n> CQ500CT<n>/Unknown Study/<series>/CT%06d.dcm`; `ROOT/reads.csv` has one row per
scan, with columns `name` and `R<1..3>:<finding>` in {0, 1}. A finding is positive if at least two readers saw
it. There are no slice labels. Source: 10.1016/S0140-6736(18)31645-3.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path, PurePath

import pandas as pd

from ich_mil.errors import DataError
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.sets.labels import binary, name_some, read_label_csv
from ich_mil.sets.layouts.collection import Collection, Refused, Scans, Series, Source, every_file

READERS = ("R1", "R2", "R3")
MAJORITY = 2
FINDINGS = ("ICH", "IPH", "IVH", "SDH", "EDH", "SAH")
"""Any hemorrhage, then its types: intraparenchymal, intraventricular, subdural, epidural, subarachnoid."""
_FOLDER = re.compile(r"^CQ500-?CT-?(\d+)\b", re.IGNORECASE)


def read_votes(path: Path, findings: Sequence[str]) -> pd.DataFrame:
    """Number of readers who saw each finding: index `name` (the scan), one column per finding.

    `DataError` as in `read_label_csv`, or for a read other than 0 or 1.
    """
    table = read_label_csv(
        path, ["name", *(f"{reader}:{finding}" for finding in findings for reader in READERS)], key="name"
    )
    votes = {
        finding: sum(binary(table[f"{reader}:{finding}"], path) for reader in READERS) for finding in findings
    }
    return pd.DataFrame(votes).set_index(pd.Index(table["name"], name="name"))


def read_cq500_findings(path: Path) -> pd.DataFrame:
    """Majority vote on each finding, and agreement of the three readers on any hemorrhage.

    Returns:
        A table with index `scan`, such as 'CQ500-CT-0', in the order of the file; boolean columns `FINDINGS`
        and `readers_agree` (all three readers or none saw a hemorrhage). A scan may have several types of
        hemorrhage, or a hemorrhage without a type that two readers agree on.
    """
    votes = read_votes(path, FINDINGS)
    findings = (votes >= MAJORITY).assign(readers_agree=votes["ICH"].isin([0, len(READERS)]))
    return findings.rename_axis(index="scan")


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

    def check(self, scans: Scans, refused: Refused = (), series: Iterable[Series] = ()) -> None:
        """Require a row for every scan. A row without a scan gets a ledger line (a partial download)."""
        scan_ids = {scan for scan, _ in scans}
        if missing := sorted(scan_ids - set(self.labels)):
            raise DataError(
                f"{self.path}: no row for {len(missing)} scans: {name_some(missing)}; add a row for each, or "
                "remove their folders"
            )
        for scan in sorted(set(self.labels) - scan_ids):
            detail = "reads.csv has a row, but no readable slice was found"
            self.entries.append(LedgerEntry(scan, self.path.name, Code.LABEL_UNUSED, detail))
