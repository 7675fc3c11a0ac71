"""Slice layout: single labelled slices, as 8-bit pictures or DICOM files, with a table of labels.

The table, `labels.csv` or `labels.xlsx`, has columns `slice,label` and optionally `patient`. `slice` is the
name of a file without its suffix, at any depth below ROOT. A column `any`, as in tables of RSNA 2019, may
replace `label`; others are ignored. Each slice is a scan of one slice, whatever its study UID, and need not
show a head. A slice without a label takes no part. Without a column `patient`, the PatientID of a DICOM file
is used, and each picture counts as a patient.

Legend: `H, W` pixels.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from unicodedata import normalize

import numpy as np

from ich_mil.errors import DataError, DicomError
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.sets.boxes import BOXES
from ich_mil.sets.labels import name_some
from ich_mil.sets.layouts.collection import Collection, Refused, Scans, Series, Source, every_file
from ich_mil.sets.layouts.slice_pictures import Window, is_picture, read_picture
from ich_mil.sets.preparation.record import ScanRecord
from ich_mil.sets.preparation.scan import ScanTask, write_scan
from ich_mil.sets.preparation.stack import slice_row
from ich_mil.sets.scan_labels import LABELS, LabelColumns, find_labels, read_scan_labels
from ich_mil.sets.scan_names import Name, ScanNames
from ich_mil.sets.splits import patient_key
from ich_mil.study.files.header import SliceHeader
from ich_mil.study.geometry.irregularities import turn_notes
from ich_mil.study.geometry.upright import Upright
from ich_mil.study.pixels.read import read_slice


class SliceCollection(Collection):
    """Single labelled slices; the scan id is the name of the slice.

    Attributes:
        window: (level, width) of the pictures, HU; None if there are no pictures.
    """

    pictures = True

    def __init__(self, root: Path, *, window: Window | None) -> None:
        super().__init__(root)
        self.window = window
        self.path = find_labels(root)
        columns = LabelColumns(ids={"slice": "slice"}, labels=("label", "any"))
        self.table = read_scan_labels(self.path, columns)
        self.labels: dict[str, int] = {}
        self.patients: dict[str, str] = {}
        rows = self.table.rows
        if "patient" in rows and (empty := rows.patient == "").any():
            reason = "patient is empty; where it is unknown write the slice"
            raise DataError(f"{self.path}: line {rows.index[empty][0]}: {reason}")

    def files(self) -> Iterator[str]:
        """All files below the folder except tables of labels and boxes in it."""
        return (
            path for path in every_file(self.root, self.root) if not LABELS.fullmatch(path) and path != BOXES
        )

    def scan_id(self, path: str, study_uid: str) -> str:
        """File name without its suffix, in Unicode form NFC."""
        return normalize("NFC", PurePath(path).stem)

    def scan_label(self, scan: str, sources: Sequence[Source]) -> int:
        """Label from the row of the slice."""
        return self.labels[scan]

    def slice_label(self, sop: str, *, scan: str = "") -> int:
        """Label from the row of the slice."""
        return self.labels[scan]

    def patient(self, scan: str) -> str:
        """Patient key from the column `patient`; '' without that column."""
        return self.patients.get(scan, "")

    def check(self, scans: Scans, refused: Refused = (), series: Iterable[Series] = ()) -> None:
        """Require a file for each labelled row, and a window exactly for pictures.

        A slice without a label is left out. A DICOM file that has a row but cannot be used gets ledger lines,
        as in the other layouts.
        """
        usable, unusable = dict(scans), {self.scan_id(entry.file, ""): entry for entry in refused}
        if twice := [scan for scan, sources in usable.items() if len(sources) > 1]:
            files = [source.path for source in usable[twice[0]]]
            raise DataError(
                f"{self.root}: {len(twice)} slices occur twice, the first is {twice[0]!r} "
                f"({name_some(files)}); keep one file with one slice for each"
            )
        rows, reading = self.table.match(ScanNames(Name(scan, scan) for scan in (*usable, *unusable)))
        self.labels = dict(zip(rows.index, rows.label, strict=True))
        if "patient" in rows:
            self.patients = dict(zip(rows.index, map(patient_key, rows.patient), strict=True))
        for scan in sorted(self.labels.keys() & unusable.keys() - usable.keys()):
            if unusable[scan].code == Code.NOT_DICOM:
                raise DataError(
                    f"{self.root / unusable[scan].file}: is neither a PNG or JPEG picture nor a DICOM file; "
                    "save it as one, or remove it and its row"
                )
        pictures = [sources[0].path for sources in usable.values() if is_picture(sources[0].path)]
        if pictures and self.window is None:
            raise DataError(
                f"{self.root}: holds pictures ({name_some(pictures)}) but no window for their grey values; "
                "set window: [level, width] in HU (--window LEVEL WIDTH)"
            )
        if self.window is not None and not pictures:
            raise DataError(
                f"{self.root}: holds no PNG or JPEG picture; leave out window, DICOM files need none"
            )
        if pictures and not self.patients:
            detail = f"no column patient: {len(pictures)} pictures count as patients of their own"
            self.entries.append(LedgerEntry("", self.path.name, Code.PATIENT_MISSING, detail))
        self.leave_out({scan: of[0].path for scan, of in usable.items() if scan not in self.labels}, reading)

    def check_twins(self, scan: str, other: str) -> None:
        """Raise `DataError` if two identical slices have different labels."""
        if self.labels[scan] != self.labels[other]:
            raise DataError(
                f"{self.path}: {scan} and {other} are the same picture, but one is labelled 0 and one 1; "
                "correct a label, or remove them"
            )


def prepare_slices(tasks: Sequence[ScanTask], out: Path, *, window: Window | None) -> int:
    """Prepare scans of one slice into `out`. Returns their number. `DataError`: unreadable picture."""
    for task in tasks:
        (header,) = task.headers
        upright = Upright.of(header)
        hu, notes = _read(header, task.root, window, upright)
        slices = []
        if hu is None:
            notes.append((Code.SCAN_EMPTY, "its only slice cannot be used"))
        else:
            codes = {code for code, _ in notes}
            row = slice_row([header], content=hu, codes=codes, upright=upright)
            slices = [row | {"position_mm": 0.0}]
        entries = [
            LedgerEntry(task.scan, "" if code == Code.SCAN_EMPTY else header.path, code, detail)
            for code, detail in notes
        ]
        patient = header.patient_id or task.scan
        record = ScanRecord(task.fingerprint, 0, patient, upright.spacing, slices, entries)
        write_scan(out, task.scan, record, None if hu is None else hu[None])
    return len(tasks)


def _read(
    header: SliceHeader, root: Path, window: Window | None, upright: Upright
) -> tuple[np.ndarray | None, list[tuple[Code, str]]]:
    """HU (h, w) of one turned slice, or None if it is refused, and code and detail of its ledger lines."""
    try:
        if is_picture(header.path):
            assert window is not None  # ensured by `SliceCollection.check`
            return read_picture(root / header.path, window=window), [*header.notes]
        hu, repairs = read_slice(header, root=root)
        return upright.picture(hu), [*header.notes, *repairs, *turn_notes(header)]
    except DicomError as error:
        return None, [(Code(error.code), str(error).removeprefix(f"{root}{os.sep}"))]
