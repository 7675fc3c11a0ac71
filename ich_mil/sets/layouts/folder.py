"""Folder layout: any folder of DICOM or NIfTI files, or one file, with scan labels in a table or without.

Each NIfTI file is a scan of its own; its id is its path without the suffix. A NIfTI file in a folder with
DICOM slices is a copy of them or a mask, and takes no part.

The table `labels.csv` or `labels.xlsx` (`ich_mil.sets.scan_labels`) names a study by its folder, its
accession number, its StudyInstanceUID or one of its SeriesInstanceUIDs, and a NIfTI file by its name or path
with or without suffix. All other files below the root, at
any depth, are grouped by study. A study without a label takes no part.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath

from ich_mil.ledger import Code, LedgerEntry
from ich_mil.sets.labels import UNKNOWN
from ich_mil.sets.layouts.collection import Collection, Refused, Scans, Series, Source, every_file
from ich_mil.sets.preparation.identifying_texts import accession_number
from ich_mil.sets.scan_labels import LABELS, ScanLabels, find_labels, read_scan_labels
from ich_mil.sets.scan_names import Name, ScanNames, folder_names, folder_of
from ich_mil.study.files.header import SliceHeader, slice_name
from ich_mil.study.files.nifti import is_nifti


class FolderCollection(Collection):
    """Studies below a folder, or one file; with `labelled`, the table in the folder has their labels.

    Attributes:
        file: name of the file that alone is read; '' if all files are.
    """

    def __init__(self, root: Path, *, labelled: bool, labels: ScanLabels | None = None) -> None:
        """`labels` is the table; None: with `labelled`, the table in the folder."""
        self.file = root.name if root.is_file() else ""
        super().__init__(root.parent if self.file else root)
        if labelled and labels is None:
            labels = read_scan_labels(find_labels(self.root))
        self.table = labels
        self.labels: dict[str, int] = {}
        self.ids: dict[str, list[str]] = {}

    def files(self) -> Iterator[str]:
        """All files below the folder except tables of labels in it; or the one file."""
        if self.file:
            return iter([self.file])
        table = self.table and os.path.relpath(self.table.path.resolve(), self.root.resolve())
        return (
            path for path in every_file(self.root, self.root) if not LABELS.fullmatch(path) and path != table
        )

    def scan_label(self, scan: str, sources: Sequence[Source]) -> int:
        """Label from the row that names the study; known after `check`."""
        return self.labels.get(scan, UNKNOWN)

    def named_elsewhere(self, scan: str, used: set[str], headers: Callable[[], Sequence[SliceHeader]]) -> str:
        """Series or folder in the row of a label of which no slice is used; ''."""
        if not (ids := [name for name in self.ids.get(scan, []) if name != scan]):
            return ""

        def names(headers: Sequence[SliceHeader]) -> ScanNames:
            series = {header.series_uid for header in headers}
            folders = {(scan, folder_of(header.path)) for header in headers}
            return ScanNames([*folder_names(folders), *(Name(scan, uid, "series") for uid in series)])

        every = headers()
        known, chosen = names(every), names([header for header in every if slice_name(header) in used])
        return next((name for name in ids if known.find(name) and not chosen.find(name)), "")

    def check(self, scans: Scans, refused: Refused = (), series: Iterable[Series] = ()) -> None:
        """Require that each labelled row fits one study.

        Studies without a label are left out, and so are NIfTI files in a folder with DICOM slices.
        """
        first: dict[str, str] = {}
        folders: set[tuple[str, str]] = set()
        for scan, sources in scans:
            first[scan] = sources[0].path
            folders |= {(scan, folder_of(source.path)) for source in sources}
        with_dicom = {folder for scan, folder in folders if not is_nifti(first[scan])}
        volumes = {scan: path for scan, path in first.items() if is_nifti(path)}
        copies = {scan: path for scan, path in volumes.items() if folder_of(path) in with_dicom}
        detail = "a NIfTI file beside DICOM slices, which were used"
        self.entries += [LedgerEntry("", path, Code.SERIES_NOT_CHOSEN, detail) for path in copies.values()]
        self.left_out = {*copies}
        if self.table is None:
            return
        first = {scan: path for scan, path in first.items() if scan not in copies}
        names = [*folder_names((scan, folder) for scan, folder in folders if scan in first)]
        for scan, path in volumes.items():
            if scan in first:
                names += [Name(scan, name) for name in (path, PurePath(path).name, PurePath(scan).name)]

        def more() -> Iterator[Name]:
            for item in series:
                yield Name(item.scan, item.uid, "series")
                if number := accession_number(self.root / item.path):
                    yield Name(item.scan, number, "accession")

        rows, reading = self.table.match(ScanNames(names), more, refused)
        self.labels = dict(zip(rows.index, rows.label, strict=True))
        self.ids = {scan: [*filter(None, row)] for scan, *row in rows[self.table.ids].itertuples()}
        self.leave_out({scan: path for scan, path in first.items() if scan not in self.labels}, reading)
        self.left_out |= copies.keys()
