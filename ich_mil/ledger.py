"""Vocabulary: the ledger codes of the input, the decisions on a scan, and the wording of both for users.

Pages, DICOM results, tables and the console take their words from here. The ledger has one entry per refused
file, corrected value or choice: no slice is dropped without an entry. It is stored as `ledger.csv`;
entries that depend on the model (`LEARNED_FROM`, `UNLIKE`) are in `predictions.json` alone. Wordings contain
no text of a DICOM file, which may name a patient.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from ich_mil.files import CsvRows

NOTICE = "For research only, not for diagnosis."
THRESHOLD = 0.5
"""Scans and slices with at least this probability count as positive."""

NEGATIVE, LOOK, POSITIVE = "negative", "look", "positive"
DECISIONS = (POSITIVE, LOOK, NEGATIVE)
"""Decisions; `look` leaves a scan to a radiologist."""
MARK = {POSITIVE: "▲", LOOK: "◆", NEGATIVE: "○"}
"""A symbol for each decision, so that it does not rest on colour alone."""
GUARANTEED = {
    POSITIVE: "Intracranial hemorrhage likely",
    LOOK: "Undecided: please look",
    NEGATIVE: "Intracranial hemorrhage unlikely",
}
"""Wording of the decisions where the thresholds have a statistical guarantee."""
PLAIN = GUARANTEED | {
    POSITIVE: f"Probability above {100 * THRESHOLD:.0f} %",
    NEGATIVE: f"Probability below {100 * THRESHOLD:.0f} %",
}
"""Wording without a guarantee: a statement about the probability only."""
BY_INTERVAL = f"where the 95 % interval lies against {100 * THRESHOLD:.0f} %, without a guarantee"
"""Decision rule without triage thresholds."""
WHOLE_ONLY = "a scan that was not seen whole, or is unlike the training scans, is never called negative"
"""Addition to every decision rule."""


def has_guarantee(decided_by: str) -> bool:
    """Whether the decision rule `Results.decided_by` is that of triage thresholds with a guarantee."""
    return not decided_by.startswith(BY_INTERVAL)


def decision_words(decided_by: str) -> dict[str, str]:
    """Wording of each decision under the decision rule `Results.decided_by`."""
    return GUARANTEED if has_guarantee(decided_by) else PLAIN


class Code(StrEnum):
    """Code of a ledger entry.

    Attributes:
        kind: `refused`, the file or scan is not used; `corrected`, a value was changed by a documented rule;
            `choice` of a series; or `noted`, used unchanged.
        weight: `routine`; `problem`, a reader of the result must know; or `incomplete`, a problem of a scan
            that was not seen whole, or is unlike the training scans: it is never called negative.
        text: wording for users.
    """

    kind: str
    weight: str
    text: str

    def __new__(cls, value: str, kind: str = "", weight: str = "", text: str = "") -> Self:  # noqa: D102
        code = str.__new__(cls, value)
        code._value_, code.kind, code.weight, code.text = value, kind, weight, text
        return code

    NOT_DICOM = "not-dicom", "refused", "routine", "not a DICOM file"
    NOT_CT = "not-ct", "refused", "routine", "not CT"
    LOCALIZER = "localizer", "refused", "routine", "a localizer"
    NOT_AN_IMAGE = "not-an-image", "refused", "routine", "no image"
    CAPTURE = "capture", "refused", "routine", "a dose sheet or screen capture"
    MULTI_FRAME = "multi-frame", "refused", "incomplete", "frames without distinct positions"
    NO_GEOMETRY = "no-geometry", "refused", "incomplete", "position or orientation missing"
    NO_UID = "no-uid", "refused", "incomplete", "identifiers missing"
    NO_HU_SCALE = "no-hu-scale", "refused", "incomplete", "no Hounsfield scale"
    UNREADABLE = "unreadable", "refused", "incomplete", "damaged"
    NOT_OPENED = "not-opened", "refused", "incomplete", "cannot be opened"
    NO_DECODER = "no-decoder", "refused", "incomplete", "compressed in an unknown way"
    OTHER_FOLDER = "other-folder", "refused", "problem", "in a folder that is not a study"
    FLAT = "flat", "refused", "incomplete", "a blank image"
    NOISE = "noise", "refused", "incomplete", "an image of noise"
    DUPLICATE = "duplicate", "refused", "problem", "a repeated slice"
    OTHER_SHAPE = "other-shape", "refused", "problem", "image size differs from its series"
    OTHER_ORIENTATION = "other-orientation", "refused", "problem", "orientation differs from its series"
    SCAN_EMPTY = "scan-empty", "refused", "problem", "no slice could be used"
    NO_LABEL = "no-label", "refused", "problem", "a scan without a label"
    NO_HEAD = "no-head", "choice", "routine", "shows no head"
    SERIES_NOT_CHOSEN = "series-not-chosen", "choice", "routine", "another series was used"
    SERIES_CHOSEN = "series-chosen", "choice", "routine", "series chosen by rule"
    SERIES_JOINED = "series-joined", "choice", "routine", "series stored in parts, joined"
    INTERCEPT_12_BIT = "intercept-12-bit", "corrected", "problem", "12-bit overflow of stored values"
    ALREADY_HU = "already-hu", "noted", "routine", "stored values are Hounsfield units"
    PADDING = "padding", "corrected", "routine", "padding set to air"
    UNUSED_BITS = "unused-bits", "corrected", "routine", "unused bits cleared"
    HU_CLIPPED = "hu-clipped", "corrected", "problem", "extreme values cut"
    AVERAGED = "averaged", "corrected", "routine", "thin slices averaged"
    THINNED = "thinned", "corrected", "routine", "overlapping slices left out"
    SERIES_KIND = "series-kind", "noted", "incomplete", "not a plain axial head series"
    CONTRAST_UNSURE = "contrast-unsure", "noted", "problem", "contrast agent possible"
    """Contrast agent unknown: the series description is not understood, or contradicts the header."""
    PART_OF_HEAD = "part-of-head", "noted", "incomplete", "only part of the head"
    GAP = "gap", "noted", "incomplete", "gap between slices"
    SPACING_CHANGES = "spacing-changes", "noted", "routine", "slice distance changes"
    TILTED = "tilted", "noted", "routine", "gantry tilted"
    FLIPPED = (
        "flipped",
        "corrected",
        "problem",
        "images stored mirrored or turned, shown with the patient's left at the right",
    )
    ORIENTATION_UNKNOWN = "orientation-unknown", "noted", "incomplete", "orientation not stated"
    """The file does not tell the patient's sides, or tells them twice differently (NIfTI)."""
    PIXELS_NOT_SQUARE = (
        "pixels-not-square",
        "corrected",
        "problem",
        "pixels that were not square resampled",
    )
    CENTRE_MOVES = "centre-moves", "noted", "routine", "image centre moves"
    OTHER_PICTURE = (
        "other-picture",
        "noted",
        "incomplete",
        "two different images at one position, one of them used",
    )
    OTHER_RESCALE = "other-rescale", "noted", "incomplete", "Hounsfield scale differs from its series"
    """RescaleSlope or RescaleIntercept differs from most slices of the series."""
    LOSSY = "lossy", "noted", "problem", "compressed with loss, or grey values of 8 bits"
    COARSE = "coarse-grey", "noted", "incomplete", "grey levels too coarse to distinguish blood from brain"
    SOP_REPEATED = "sop-repeated", "noted", "routine", "slice identifier used twice"
    MODALITY_MISSING = "modality-missing", "noted", "routine", "modality not stated"
    SEVERAL_PATIENTS = "several-patients", "noted", "incomplete", "several patient identifiers in one study"
    """The files of the study name several patients; the scan of one of them may not have been used."""
    PATIENT_MISSING = "patient-missing", "noted", "routine", "no patient identifier"
    SAME_SLICES = "same-slices", "noted", "routine", "same slices as another scan"
    """Duplicate of another scan; both count as the same patient."""
    LEARNED_FROM = "learned-from", "noted", "problem", "the model was trained or calibrated on this patient"
    """The model was trained or calibrated on this scan, or on another scan of the patient."""
    UNLIKE = "unlike-training", "noted", "incomplete", "unlike the scans the model was trained on"
    LABEL_REPEATED = "label-repeated", "noted", "routine", "label given twice"
    LABEL_CLASH = "label-clash", "noted", "routine", "labels contradict each other"
    LABEL_UNUSED = "label-unused", "noted", "routine", "label without an image"


def _of_kind(kind: str) -> frozenset[Code]:
    return frozenset(code for code in Code if code.kind == kind)


REFUSED, CORRECTED, CHOICES = _of_kind("refused"), _of_kind("corrected"), _of_kind("choice")
INCOMPLETE = frozenset(code for code in Code if code.weight == "incomplete")
PROBLEMS = frozenset(code for code in Code if code.weight != "routine")
PASSING = frozenset({Code.NOT_OPENED, Code.NO_DECODER})
"""Temporary refusals; the next run tries these files again."""
_MM = r"(\d+(?:\.\d+)?) mm"
_STEPS = re.compile(rf"(?:frame \d+: )?(?:(\d+) steps of up to )?{_MM} between (?:slices {_MM} thick)?")
"""Start of a detail of `GAP` with a length (`study.geometry.irregularities`)."""


@dataclass(frozen=True)
class LedgerEntry:
    """Ledger entry; `scan` or `file` is empty where it does not apply."""

    scan: str
    file: str
    code: Code
    detail: str


def incomplete(ledger: Iterable[LedgerEntry]) -> list[Code]:
    """Codes of the reasons why a part of a scan was not seen; empty for a complete scan."""
    return sorted({entry.code for entry in ledger} & INCOMPLETE)


def whole_only(decision: str, ledger: Iterable[LedgerEntry]) -> str:
    """Replace the decision `NEGATIVE` by `LOOK` for a scan of which a part was not seen."""
    return LOOK if decision == NEGATIVE and incomplete(ledger) else decision


def in_no_study(ledger: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Refused files that may be slices of an unknown scan."""
    return [entry for entry in ledger if not entry.scan and entry.code in REFUSED & INCOMPLETE]


def problems(ledger: Iterable[LedgerEntry]) -> list[str]:
    """Lines on the problems of the input, in the order of the codes."""
    return [_line(code, entries) for code, entries in _by_code(ledger).items() if code in PROBLEMS]


def routine(ledger: Iterable[LedgerEntry]) -> list[str]:
    """Lines on all other ledger entries, in the order of the codes."""
    return [_line(code, entries) for code, entries in _by_code(ledger).items() if code not in PROBLEMS]


def reasons(ledger: Iterable[LedgerEntry]) -> list[str]:
    """Reasons why a scan is never called negative, in words; empty for a complete scan."""
    return [_text(code, entries) for code, entries in _by_code(ledger).items() if code in INCOMPLETE]


def stated(ledger: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Entries without 'a repeated slice' of files whose image differs: `OTHER_PICTURE` is the true entry."""
    entries = list(ledger)
    differ = {entry.file for entry in entries if entry.code == Code.OTHER_PICTURE}
    return [entry for entry in entries if entry.code != Code.DUPLICATE or entry.file not in differ]


def gap_steps(ledger: Iterable[LedgerEntry]) -> list[tuple[int, float, float | None]]:
    """Gaps of known length, each: number of steps, the longest in mm, and the slice thickness in mm.

    The thickness is given where all steps are longer than the slices are thick, else None.
    """
    found = [_STEPS.match(entry.detail) for entry in ledger if entry.code == Code.GAP]
    return [(int(m[1] or 1), float(m[2]), float(m[3]) if m[3] else None) for m in found if m]


def _by_code(ledger: Iterable[LedgerEntry]) -> dict[Code, list[LedgerEntry]]:
    """Entries in the order of the codes."""
    found = defaultdict[Code, list[LedgerEntry]](list)
    for entry in stated(ledger):
        found[entry.code].append(entry)
    return {code: found[code] for code in Code if code in found}


def _text(code: Code, entries: list[LedgerEntry]) -> str:
    """Wording of the entries of a code, with their number, the kind of the series or the size of the gaps."""
    if code == Code.GAP and (steps := gap_steps(entries)):
        count, longest = sum(n for n, _, _ in steps), round(max(mm for _, mm, _ in steps), 1)
        return f"{code.text} ({f'{count} steps of up to' if count > 1 else 'a step of'} {longest:g} mm)"
    kinds = {entry.detail.rpartition(") is ")[2] for entry in entries if ") is " in entry.detail}
    text = f"{code.text} ({', '.join(sorted(kinds))})" if kinds and code == Code.SERIES_KIND else code.text
    return text if len(entries) == 1 or code == Code.PART_OF_HEAD else f"{text} ({len(entries)} times)"


def _line(code: Code, entries: list[LedgerEntry]) -> str:
    text = _text(code, entries)
    if code.kind in ("refused", "corrected"):
        return f"{code.kind.capitalize()}: {text}"
    return text[0].upper() + text[1:]


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


def ledger_entries(lines: Iterable[dict[str, Any]]) -> tuple[LedgerEntry, ...]:
    """Ledger entries from their stored fields. `ValueError` for an unknown code."""
    return tuple(LedgerEntry(**line | {"code": Code(line["code"])}) for line in lines)
