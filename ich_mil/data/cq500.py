"""The CQ500 layout (Chilamkurthy et al. 2018).

`ROOT/CQ500CT<n> CQ500CT<n>/Unknown Study/<series>/CT%06d.dcm` and `ROOT/reads.csv` with three readers a scan.
A scan is positive if at least two of the three readers saw a hemorrhage. There are no slice labels.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ich_mil.data.collection import Collection, binary, every_file, name_some, read_label_csv
from ich_mil.dicom.read import SliceHeader
from ich_mil.errors import DataError
from ich_mil.ledger import Code, LedgerEntry

READERS = ("R1:ICH", "R2:ICH", "R3:ICH")
MAJORITY = 2
_FOLDER = re.compile(r"^CQ500-?CT-?(\d+)\b")


class Cq500Collection(Collection):
    """CQ500 files with scan labels by majority of three readers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.path = root / "reads.csv"
        table = read_label_csv(self.path, ["name", *READERS])
        repeated = table.name[table.name.duplicated()]
        if len(repeated):
            raise DataError(f"{self.path}: scans listed twice: {name_some(list(repeated))}")
        votes = pd.concat([binary(table[reader], self.path) for reader in READERS], axis=1).sum(axis=1)
        self.labels = dict(zip(table["name"], (votes >= MAJORITY).astype(int), strict=True))

    def files(self) -> list[Path]:
        """Every file below a folder named CQ500CT<n>."""
        folders = [
            folder for folder in sorted(self.root.iterdir()) if folder.is_dir() and _FOLDER.match(folder.name)
        ]
        if not folders:
            raise DataError(f"{self.root}: holds no folder named like 'CQ500CT0 CQ500CT0'")
        return [path for folder in folders for path in every_file(folder)]

    def scan_id(self, header: SliceHeader) -> str:
        """`CQ500-CT-<n>` from the folder, as `reads.csv` writes it."""
        folder = Path(header.path).relative_to(self.root).parts[0]
        match = _FOLDER.match(folder)
        assert match is not None, folder  # files() walks such folders only
        return f"CQ500-CT-{match[1]}"

    def scan_label(self, scan: str, headers: Sequence[SliceHeader]) -> int:
        """At least two of three readers."""
        return self.labels[scan]

    def check(self, scans: dict[str, list[SliceHeader]]) -> None:
        """Every scan needs a row; rows without a folder are noted (downloads are often in part)."""
        missing = sorted(set(scans) - set(self.labels))
        if missing:
            raise DataError(f"{self.path}: no row for {len(missing)} scans: {name_some(missing)}")
        for scan in sorted(set(self.labels) - set(scans)):
            detail = "reads.csv has a row, but no readable slice was found"
            self.entries.append(LedgerEntry(scan, self.path.name, Code.LABEL_UNUSED, detail))
