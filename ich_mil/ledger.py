"""Ledger of a prepared set: one entry per refused file, corrected value or choice.

In: entries from reading files, ordering slices and choosing series. Out: `ledger.csv` with columns
`scan,file,code,detail`. No slice is dropped without an entry.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from ich_mil.files import CsvRows


class Code(StrEnum):
    """Code of a ledger entry."""

    # refused: the file is not used
    NOT_DICOM = "not-dicom"
    NOT_CT = "not-ct"
    LOCALIZER = "localizer"
    NOT_AN_IMAGE = "not-an-image"
    MULTI_FRAME = "multi-frame"
    NO_GEOMETRY = "no-geometry"
    NO_UID = "no-uid"
    NO_HU_SCALE = "no-hu-scale"
    UNREADABLE = "unreadable"
    NOT_OPENED = "not-opened"
    NO_DECODER = "no-decoder"
    OTHER_FOLDER = "other-folder"
    FLAT = "flat"
    NOISE = "noise"
    DUPLICATE = "duplicate"
    OTHER_SHAPE = "other-shape"
    OTHER_ORIENTATION = "other-orientation"
    NO_HEAD = "no-head"
    SERIES_NOT_CHOSEN = "series-not-chosen"
    """Another series was chosen for the scan."""
    SCAN_EMPTY = "scan-empty"
    # corrected: a value was changed by a documented rule
    INTERCEPT_12_BIT = "intercept-12-bit"
    ALREADY_HU = "already-hu"
    PADDING = "padding"
    UNUSED_BITS = "unused-bits"
    HU_CLIPPED = "hu-clipped"
    AVERAGED = "averaged"
    THINNED = "thinned"
    """Only some of the overlapping thick slices are used."""
    # noted: used unchanged
    SERIES_CHOSEN = "series-chosen"
    """Reason for the choice of this series."""
    SERIES_JOINED = "series-joined"
    """The scan was stored in several series, joined here."""
    SERIES_KIND = "series-kind"
    """The chosen series is not a plain axial series of the head."""
    CONTRAST_UNSURE = "contrast-unsure"
    """Contrast agent unknown: the series description is not understood, or contradicts the header."""
    PART_OF_HEAD = "part-of-head"
    """The chosen series covers less than a head."""
    GAP = "gap"
    SPACING_CHANGES = "spacing-changes"
    TILTED = "tilted"
    FLIPPED = "flipped"
    PIXELS_NOT_SQUARE = "pixels-not-square"
    """Row and column spacing differ."""
    CENTRE_MOVES = "centre-moves"
    OTHER_PICTURE = "other-picture"
    """Two different slices at the same position; one of them is not used."""
    OTHER_RESCALE = "other-rescale"
    """RescaleSlope or RescaleIntercept differs from most slices of the series."""
    LOSSY = "lossy"
    """The pixels were compressed with loss, or have the grey values of an 8-bit image."""
    COARSE = "coarse-grey"
    """The grey values are too coarse to tell blood from brain reliably."""
    SOP_REPEATED = "sop-repeated"
    MODALITY_MISSING = "modality-missing"
    SEVERAL_PATIENTS = "several-patients"
    """The files of the study name several patients; the scan of one of them may not have been used."""
    PATIENT_MISSING = "patient-missing"
    SAME_SLICES = "same-slices"
    """Duplicate of another scan; both count as the same patient."""
    LEARNED_FROM = "learned-from"
    """The model was trained or calibrated on this scan, or on another scan of the patient."""
    UNLIKE = "unlike-training"
    """The slice features are unlike those of the training scans."""
    LABEL_REPEATED = "label-repeated"
    LABEL_CLASH = "label-clash"
    LABEL_UNUSED = "label-unused"


CHOICES = frozenset({Code.SERIES_CHOSEN, Code.SERIES_NOT_CHOSEN, Code.SERIES_JOINED, Code.NO_HEAD})
"""Codes of the choice of a series."""
_UNSEEN = frozenset(
    {
        Code.MULTI_FRAME,
        Code.NO_GEOMETRY,
        Code.NO_UID,
        Code.NO_HU_SCALE,
        Code.UNREADABLE,
        Code.NOT_OPENED,
        Code.NO_DECODER,
        Code.FLAT,
        Code.NOISE,
    }
)
"""Files that are or may be slices, but whose pixels could not be used."""
REFUSED = _UNSEEN | frozenset(
    {
        Code.NOT_DICOM,
        Code.NOT_CT,
        Code.LOCALIZER,
        Code.NOT_AN_IMAGE,
        Code.OTHER_FOLDER,
        Code.DUPLICATE,
        Code.OTHER_SHAPE,
        Code.OTHER_ORIENTATION,
        Code.SCAN_EMPTY,
    }
)
"""Codes of files and scans that are not used."""
CORRECTED = frozenset(
    {
        Code.INTERCEPT_12_BIT,
        Code.ALREADY_HU,
        Code.PADDING,
        Code.UNUSED_BITS,
        Code.HU_CLIPPED,
        Code.AVERAGED,
        Code.THINNED,
    }
)
"""Codes of values changed by a documented rule."""
INCOMPLETE = _UNSEEN | frozenset(
    {
        Code.SERIES_KIND,
        Code.PART_OF_HEAD,
        Code.GAP,
        Code.OTHER_PICTURE,
        Code.OTHER_RESCALE,
        Code.COARSE,
        Code.SEVERAL_PATIENTS,
        Code.UNLIKE,
    }
)
"""Part of the scan was not seen, or is unlike the training scans: such a scan is never called negative."""
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
