"""The ledger: a line for each file refused, each value corrected, each choice made.

In: entries from reading, ordering and choosing. Out: `ledger.csv` with columns `scan,file,code,detail`.
Nothing leaves a data set without a line here.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from ich_mil.files import CsvRows


class Code(StrEnum):
    """What happened to a file or a scan."""

    # refused: the file takes no part
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
    """Another series stands for the scan."""
    SCAN_EMPTY = "scan-empty"
    # corrected: the value was changed by a stated rule
    INTERCEPT_12_BIT = "intercept-12-bit"
    ALREADY_HU = "already-hu"
    PADDING = "padding"
    UNUSED_BITS = "unused-bits"
    HU_CLIPPED = "hu-clipped"
    AVERAGED = "averaged"
    THINNED = "thinned"
    """Of thick slices that overlap only some are taken."""
    # noted: used as it is
    SERIES_CHOSEN = "series-chosen"
    """Why this series stands for the scan."""
    SERIES_JOINED = "series-joined"
    """One scan that was stored in several parts."""
    SERIES_KIND = "series-kind"
    """The series that stands for the scan is no plain axial one of the head."""
    CONTRAST_UNSURE = "contrast-unsure"
    """Its description is not understood, or contradicts its header, in whether a contrast agent was given."""
    PART_OF_HEAD = "part-of-head"
    """The series that stands for the scan covers less than a head."""
    GAP = "gap"
    SPACING_CHANGES = "spacing-changes"
    TILTED = "tilted"
    FLIPPED = "flipped"
    PIXELS_NOT_SQUARE = "pixels-not-square"
    """Rows are not as far apart as columns."""
    CENTRE_MOVES = "centre-moves"
    OTHER_PICTURE = "other-picture"
    """Of two slices in one place, which differ, one takes no part."""
    OTHER_RESCALE = "other-rescale"
    """Most slices of the series have another RescaleSlope or RescaleIntercept."""
    LOSSY = "lossy"
    """Its pixels were compressed with loss, or have the grey values of an 8-bit picture."""
    COARSE = "coarse-grey"
    """Its grey values are so far apart that blood and brain may look alike."""
    SOP_REPEATED = "sop-repeated"
    MODALITY_MISSING = "modality-missing"
    SEVERAL_PATIENTS = "several-patients"
    """Its files, of whichever series, name several: one of them may not have been looked at."""
    PATIENT_MISSING = "patient-missing"
    SAME_SLICES = "same-slices"
    """It is another scan under a second name, and counts as of its patient."""
    LEARNED_FROM = "learned-from"
    """The model was trained or calibrated on this scan or others of the patient."""
    UNLIKE = "unlike-training"
    """The features of its slices are unlike those of the training scans."""
    LABEL_REPEATED = "label-repeated"
    LABEL_CLASH = "label-clash"
    LABEL_UNUSED = "label-unused"


CHOICES = frozenset({Code.SERIES_CHOSEN, Code.SERIES_NOT_CHOSEN, Code.SERIES_JOINED, Code.NO_HEAD})
"""Which series stands for a scan."""
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
"""Slices, or what may hold slices, of which nothing could be seen."""
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
"""What takes no part."""
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
"""What was changed by a stated rule."""
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
"""A part of the scan was not seen, or not as the model knows it: that it shows no bleed says little."""
PASSING = frozenset({Code.NOT_OPENED, Code.NO_DECODER})
"""Refusals that may be over by the next run: it tries again."""


@dataclass(frozen=True)
class LedgerEntry:
    """One line of the ledger; `scan` or `file` is empty where the line is not about one."""

    scan: str
    file: str
    code: Code
    detail: str


class LedgerWriter:
    """Writes `ledger.csv` line by line and counts the codes. A context manager.

    Attributes:
        codes: how often each code has been written.
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
        """Write `entries` in the order given."""
        for entry in entries:
            self.codes[str(entry.code)] += 1
            self._rows.write((entry.scan, entry.file, entry.code, entry.detail))
