"""The ledger: a line for each file refused, each value corrected, each choice made.

In: entries from reading, ordering and choosing. Out: `ledger.csv` with columns `scan,file,code,detail`.
Nothing leaves a data set without a line here.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path

import pandas as pd


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
    FLAT = "flat"
    DUPLICATE = "duplicate"
    OTHER_SHAPE = "other-shape"
    OTHER_ORIENTATION = "other-orientation"
    SERIES_NOT_CHOSEN = "series-not-chosen"
    NO_LABEL = "no-label"
    SCAN_EMPTY = "scan-empty"
    # corrected: the value was changed by a stated rule
    INTERCEPT_12_BIT = "intercept-12-bit"
    ALREADY_HU = "already-hu"
    PADDING = "padding"
    UNUSED_BITS = "unused-bits"
    HU_CLIPPED = "hu-clipped"
    AVERAGED = "averaged"
    # noted: used as it is
    SERIES_CHOSEN = "series-chosen"
    GAP = "gap"
    SPACING_CHANGES = "spacing-changes"
    TILTED = "tilted"
    MODALITY_MISSING = "modality-missing"
    LABEL_REPEATED = "label-repeated"
    LABEL_UNUSED = "label-unused"


@dataclass(frozen=True)
class LedgerEntry:
    """One line of the ledger; `scan` or `file` is empty where the line is not about one."""

    scan: str
    file: str
    code: Code
    detail: str


def write_ledger(entries: Iterable[LedgerEntry], path: Path) -> None:
    """Write `entries` to the CSV file `path`, in the order given."""
    columns = [field.name for field in fields(LedgerEntry)]
    pd.DataFrame([asdict(entry) for entry in entries], columns=columns).to_csv(path, index=False)


def count_codes(entries: Iterable[LedgerEntry]) -> dict[str, int]:
    """How often each code occurs, most frequent first."""
    return {str(code): n for code, n in Counter(entry.code for entry in entries).most_common()}
