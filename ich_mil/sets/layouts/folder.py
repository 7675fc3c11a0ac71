"""Folder layout: any folder of DICOM files, with scan labels in a table in the root or without labels.

The table `labels.csv` or `labels.xlsx` (`ich_mil.sets.scan_labels`) names a study by its folder, its
accession number, its StudyInstanceUID or one of its SeriesInstanceUIDs. All other files below the root, at
any depth, are grouped by study. A study without a label takes no part.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ich_mil.sets.labels import UNKNOWN
from ich_mil.sets.layouts.collection import Collection, Refused, Scans, Series, Source, every_file
from ich_mil.sets.preparation.identifying_texts import accession_number
from ich_mil.sets.scan_labels import LABELS, find_labels, read_scan_labels
from ich_mil.sets.scan_names import ScanNames, folder_names, folder_of


class FolderCollection(Collection):
    """Studies below a folder; with `labelled`, scan labels are read from the table in it."""

    def __init__(self, root: Path, *, labelled: bool) -> None:
        super().__init__(root)
        self.table = read_scan_labels(find_labels(root)) if labelled else None
        self.labels: dict[str, int] = {}

    def files(self) -> Iterator[str]:
        """All files below the folder except tables of labels in it."""
        return (path for path in every_file(self.root, self.root) if not LABELS.fullmatch(path))

    def scan_label(self, scan: str, sources: Sequence[Source]) -> int:
        """Label from the row that names the study; known after `check`."""
        return self.labels.get(scan, UNKNOWN)

    def check(self, scans: Scans, refused: Refused = (), series: Iterable[Series] = ()) -> None:
        """Require that each labelled row fits one study, and leave out studies without a label."""
        if self.table is None:
            return
        first: dict[str, str] = {}
        folders: set[tuple[str, str]] = set()
        for scan, sources in scans:
            first[scan] = sources[0].path
            folders |= {(scan, folder_of(source.path)) for source in sources}

        def more() -> Iterator[tuple[str, str]]:
            for one in series:
                yield one.scan, one.uid
                if number := accession_number(self.root / one.path):
                    yield one.scan, number

        rows, reading = self.table.match(ScanNames(folder_names(folders)), more, refused)
        self.labels = dict(zip(rows.index, rows.label, strict=True))
        self.leave_out({scan: path for scan, path in first.items() if scan not in self.labels}, reading)
