"""Folder layout: any folder of DICOM files, with scan labels in `ROOT/labels.csv` or without labels.

The table has columns `scan,label`; `scan` is a StudyInstanceUID or the name of a folder directly below ROOT
that holds one study. All other files below ROOT, at any depth, are grouped by study.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from unicodedata import normalize

from ich_mil.data.labels import UNKNOWN, binary, name_some, read_label_csv
from ich_mil.data.layouts.collection import Collection, Source, every_file
from ich_mil.errors import DataError
from ich_mil.ledger import LedgerEntry

LABELS = "labels.csv"


class FolderCollection(Collection):
    """Studies below a folder; with `labelled`, scan labels are read from `labels.csv`."""

    def __init__(self, root: Path, *, labelled: bool) -> None:
        super().__init__(root)
        self.path = root / LABELS
        self.labels: dict[str, int] | None = None
        if labelled:
            table = read_label_csv(self.path, ["scan", "label"], key="scan")
            self.labels = dict(zip(table.scan.map(_composed), binary(table.label, self.path), strict=True))

    def files(self) -> Iterator[str]:
        """All files below the folder except `labels.csv`."""
        return (path for path in every_file(self.root, self.root) if path != LABELS)

    def scan_label(self, scan: str, sources: Sequence[Source]) -> int:
        """Label from the row that names the study or its folder."""
        if self.labels is None:
            return UNKNOWN
        return self.labels.get(self._name(scan, sources[0].path), UNKNOWN)

    def check(
        self, scans: Iterable[tuple[str, Sequence[Source]]], refused: Iterable[LedgerEntry] = ()
    ) -> None:
        """Require that rows and studies match one to one."""
        if self.labels is None:
            return
        places = [(scan, sources[0].path) for scan, sources in scans]
        names = [self._name(scan, path) for scan, path in places]
        if missing := sorted(set(names) - set(self.labels)):
            raise DataError(
                f"{self.path}: no row for {len(missing)} studies: {name_some(missing)}; add a row for each"
            )
        unknown = sorted(set(self.labels) - set(names))
        if rows := [f"{folder} and {scan}" for scan, path in places if (folder := _folder(path)) in unknown]:
            raise DataError(f"{self.path}: two rows name one study: {name_some(rows)}; keep one of them")
        if unknown:
            of_these = (one for one in refused if self._name(one.scan, one.file) in unknown)
            why = next((f"; {one.detail}" for one in of_these), "")
            raise DataError(
                f"{self.path}: names {len(unknown)} scans without a readable file of their own (repeated "
                f"files count once): {name_some(unknown)}; correct these rows, or remove them{why}"
            )
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise DataError(
                f"{self.path}: folders that hold several studies: {name_some(twice)}; "
                "label these by StudyInstanceUID"
            )

    def _name(self, scan: str, path: str) -> str:
        """Name of a scan in `labels.csv`: its study UID, or its folder where no row has the UID."""
        assert self.labels is not None
        return scan if scan in self.labels else _folder(path) or scan


def _folder(path: str) -> str:
    """Name of the top folder, directly below the root, that contains the file; '' for a file in the root."""
    folders = PurePath(path).parts[:-1]
    return _composed(folders[0]) if folders else ""


def _composed(name: str) -> str:
    """Normalise to NFC: some systems store umlauts in file names decomposed, tables seldom do."""
    return normalize("NFC", name)
