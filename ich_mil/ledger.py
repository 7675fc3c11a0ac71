"""Ledger of a prepared set: one entry per refused file, corrected value or choice.

In: entries from reading files, ordering slices and choosing series. Out: `ledger.csv` with columns
`scan,file,code,detail`. No slice is dropped without an entry.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Self

from ich_mil.files import CsvRows


class Code(StrEnum):
    """Code of a ledger entry.

    Attributes:
        kind: `refused`, the file or scan is not used; `corrected`, a value was changed by a documented rule;
            `choice` of a series; or `noted`, used unchanged.
        incomplete: a part of the scan was not seen, or it is unlike the training scans: such a scan is never
            called negative.
    """

    kind: str
    incomplete: bool

    def __new__(cls, text: str, kind: str = "", incomplete: bool = False) -> Self:  # noqa: D102
        code = str.__new__(cls, text)
        code._value_, code.kind, code.incomplete = text, kind, incomplete
        return code

    NOT_DICOM = "not-dicom", "refused"
    NOT_CT = "not-ct", "refused"
    LOCALIZER = "localizer", "refused"
    NOT_AN_IMAGE = "not-an-image", "refused"
    MULTI_FRAME = "multi-frame", "refused", True
    NO_GEOMETRY = "no-geometry", "refused", True
    NO_UID = "no-uid", "refused", True
    NO_HU_SCALE = "no-hu-scale", "refused", True
    UNREADABLE = "unreadable", "refused", True
    NOT_OPENED = "not-opened", "refused", True
    NO_DECODER = "no-decoder", "refused", True
    OTHER_FOLDER = "other-folder", "refused"
    FLAT = "flat", "refused", True
    NOISE = "noise", "refused", True
    DUPLICATE = "duplicate", "refused"
    OTHER_SHAPE = "other-shape", "refused"
    OTHER_ORIENTATION = "other-orientation", "refused"
    SCAN_EMPTY = "scan-empty", "refused"
    NO_LABEL = "no-label", "refused"
    """A scan without a label in a labelled set."""
    NO_HEAD = "no-head", "choice"
    SERIES_NOT_CHOSEN = "series-not-chosen", "choice"
    """Another series was chosen for the scan."""
    SERIES_CHOSEN = "series-chosen", "choice"
    """Reason for the choice of this series."""
    SERIES_JOINED = "series-joined", "choice"
    """The scan was stored in several series, joined here."""
    INTERCEPT_12_BIT = "intercept-12-bit", "corrected"
    ALREADY_HU = "already-hu", "corrected"
    PADDING = "padding", "corrected"
    UNUSED_BITS = "unused-bits", "corrected"
    HU_CLIPPED = "hu-clipped", "corrected"
    AVERAGED = "averaged", "corrected"
    THINNED = "thinned", "corrected"
    """Only some of the overlapping thick slices are used."""
    SERIES_KIND = "series-kind", "noted", True
    """The chosen series is not a plain axial series of the head."""
    CONTRAST_UNSURE = "contrast-unsure", "noted"
    """The series description contradicts the header on contrast agent."""
    PART_OF_HEAD = "part-of-head", "noted", True
    """The chosen series covers less than a head."""
    GAP = "gap", "noted", True
    SPACING_CHANGES = "spacing-changes", "noted"
    TILTED = "tilted", "noted"
    FLIPPED = "flipped", "noted"
    PIXELS_NOT_SQUARE = "pixels-not-square", "noted"
    """Row and column spacing differ."""
    CENTRE_MOVES = "centre-moves", "noted"
    OTHER_PICTURE = "other-picture", "noted", True
    """Two different slices at the same position; one of them is not used."""
    OTHER_RESCALE = "other-rescale", "noted", True
    """RescaleSlope or RescaleIntercept differs from most slices of the series."""
    LOSSY = "lossy", "noted"
    """The pixels were compressed with loss, or have the grey values of an 8-bit image."""
    COARSE = "coarse-grey", "noted", True
    """The grey values are too coarse to tell blood from brain reliably."""
    SOP_REPEATED = "sop-repeated", "noted"
    MODALITY_MISSING = "modality-missing", "noted"
    SEVERAL_PATIENTS = "several-patients", "noted", True
    """The files of the study name several patients; the scan of one of them may not have been used."""
    PATIENT_MISSING = "patient-missing", "noted"
    SAME_SLICES = "same-slices", "noted"
    """Duplicate of another scan; both count as the same patient."""
    LEARNED_FROM = "learned-from", "noted"
    """The model was trained or calibrated on this scan, or on another scan of the patient."""
    UNLIKE = "unlike-training", "noted", True
    """The slice features are unlike those of the training scans."""
    LABEL_REPEATED = "label-repeated", "noted"
    LABEL_CLASH = "label-clash", "noted"
    LABEL_UNUSED = "label-unused", "noted"


def _of_kind(kind: str) -> frozenset[Code]:
    return frozenset(code for code in Code if code.kind == kind)


REFUSED, CORRECTED, CHOICES = _of_kind("refused"), _of_kind("corrected"), _of_kind("choice")
INCOMPLETE = frozenset(code for code in Code if code.incomplete)
PASSING = frozenset({Code.NOT_OPENED, Code.NO_DECODER})
"""Temporary refusals; the next run tries these files again."""


@dataclass(frozen=True)
class LedgerEntry:
    """Ledger entry; `scan` or `file` is empty where it does not apply."""

    scan: str
    file: str
    code: Code
    detail: str


class LedgerWriter:
    """Context manager that writes `ledger.csv` entry by entry and counts the codes.

    Attributes:
        codes: number of entries per code.
    """

    def __init__(self, path: Path) -> None:
        self.codes: Counter[str] = Counter()
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
        self._rows = CsvRows(self._file, [field.name for field in fields(LedgerEntry)])

    def __enter__(self) -> "LedgerWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, entries: Iterable[LedgerEntry]) -> None:
        """Write entries in their order."""
        for entry in entries:
            self.codes[str(entry.code)] += 1
            self._rows.write((entry.scan, entry.file, entry.code, entry.detail))
