"""What a page says in words: the result, what drove it, and what was wrong with the input.

In: a `ScanResult`. Out: short sentences. Every number in them stands in `predictions.json`; slices are
counted from 1 as people do, there from 0. No text of a DICOM file gets into them: file names and ledger
details may name a patient.
"""

from collections import Counter
from collections.abc import Iterable

from ich_mil.evaluate.metrics import THRESHOLD
from ich_mil.evaluate.triage import LOOK, NEGATIVE, POSITIVE
from ich_mil.ledger import CORRECTED, REFUSED, Code, LedgerEntry
from ich_mil.predictions import Run, ScanResult, is_promised
from ich_mil.report.page import percent

PROMISED = {
    POSITIVE: "Hemorrhage likely",
    LOOK: "No prediction: please look",
    NEGATIVE: "Hemorrhage unlikely",
}
"""The three results of thresholds with a promise."""
PLAIN = PROMISED | {
    POSITIVE: f"Probability above {100 * THRESHOLD:.0f} %",
    NEGATIVE: f"Probability below {100 * THRESHOLD:.0f} %",
}
"""Those without: no more than the numbers say."""
MARK = {POSITIVE: "▲", LOOK: "◆", NEGATIVE: "○"}
"""A shape for each, so that no result rests on colour alone."""
MAX_RUNS = 4
"""Runs named in the summary; the strip shows all."""

CODES = {
    Code.NOT_DICOM: "not a DICOM file",
    Code.NOT_CT: "not CT",
    Code.LOCALIZER: "a localizer",
    Code.NOT_AN_IMAGE: "no image",
    Code.MULTI_FRAME: "frames that cannot be told apart",
    Code.NO_GEOMETRY: "position or orientation missing",
    Code.NO_UID: "identifiers missing",
    Code.NO_HU_SCALE: "no Hounsfield scale",
    Code.UNREADABLE: "damaged",
    Code.NOT_OPENED: "could not be opened",
    Code.NO_DECODER: "compressed in an unknown way",
    Code.OTHER_FOLDER: "in a folder that is no study",
    Code.FLAT: "a picture of one grey value",
    Code.NOISE: "a picture of noise",
    Code.DUPLICATE: "a repeated slice",
    Code.OTHER_SHAPE: "another picture size than its series",
    Code.OTHER_ORIENTATION: "another orientation than its series",
    Code.NO_HEAD: "no head in it",
    Code.SERIES_NOT_CHOSEN: "another series was used",
    Code.SCAN_EMPTY: "no slice could be used",
    Code.INTERCEPT_12_BIT: "12-bit values that ran over the end of their scale",
    Code.ALREADY_HU: "values were Hounsfield units already",
    Code.PADDING: "padding set to air",
    Code.UNUSED_BITS: "unused bits cleared",
    Code.HU_CLIPPED: "extreme values cut",
    Code.AVERAGED: "thin slices averaged",
    Code.THINNED: "overlapping slices left out",
    Code.SERIES_CHOSEN: "series chosen by rule",
    Code.SERIES_JOINED: "series stored in parts, joined",
    Code.SERIES_KIND: "not a plain axial head series",
    Code.CONTRAST_UNSURE: "whether contrast agent was given is not sure",
    Code.PART_OF_HEAD: "only a part of a head",
    Code.GAP: "gap between slices",
    Code.SPACING_CHANGES: "slice distance changes",
    Code.TILTED: "gantry tilted",
    Code.FLIPPED: "stored rows or columns run the other way; pictures are shown as stored",
    Code.PIXELS_NOT_SQUARE: "pixels are not square: pictures, and what the model saw, are stretched",
    Code.CENTRE_MOVES: "picture centre moves",
    Code.OTHER_PICTURE: "two different pictures of one place, of which one was used",
    Code.OTHER_RESCALE: "another Hounsfield scale than the rest of its series",
    Code.LOSSY: "compressed with loss, or grey values of 8 bits",
    Code.COARSE: "grey values too far apart to tell blood from brain",
    Code.SOP_REPEATED: "slice identifier used twice",
    Code.MODALITY_MISSING: "modality not stated",
    Code.SEVERAL_PATIENTS: "several patient identifiers in one study",
    Code.PATIENT_MISSING: "no patient identifier",
    Code.SAME_SLICES: "the slices of another scan",
    Code.LEARNED_FROM: "the model was trained or calibrated on this patient",
    Code.UNLIKE: "unlike the scans the model was trained on",
    Code.LABEL_REPEATED: "label given twice",
    Code.LABEL_CLASH: "labels contradict each other",
    Code.LABEL_UNUSED: "label without an image",
}
ROUTINE = frozenset(
    {
        Code.NOT_DICOM,
        Code.NOT_CT,
        Code.LOCALIZER,
        Code.NOT_AN_IMAGE,
        Code.PADDING,
        Code.UNUSED_BITS,
        Code.AVERAGED,
        Code.THINNED,
    }
)
"""Refused or corrected in most studies: told, but no problem."""
NOTED = frozenset(
    {
        Code.SERIES_KIND,
        Code.CONTRAST_UNSURE,
        Code.PART_OF_HEAD,
        Code.GAP,
        Code.FLIPPED,
        Code.PIXELS_NOT_SQUARE,
        Code.OTHER_PICTURE,
        Code.OTHER_RESCALE,
        Code.LOSSY,
        Code.COARSE,
        Code.SEVERAL_PATIENTS,
        Code.LEARNED_FROM,
        Code.UNLIKE,
    }
)
PROBLEMS = (REFUSED | CORRECTED | NOTED) - ROUTINE
"""What a reader of the result has to know of."""


def results_in_words(decided_by: str) -> dict[str, str]:
    """The words for each decision, by how it was made (`Results.decided_by`)."""
    return PROMISED if is_promised(decided_by) else PLAIN


def unlike(scan: ScanResult) -> str:
    """A warning where the scan is unlike the training scans; '' where it is like them, or nobody knows."""
    if scan.unlikeness is None or scan.unlikeness <= 1:
        return ""
    return (
        "This scan is unlike those the model was trained on "
        f"({scan.unlikeness:.1f} times the limit): its probability may be wrong. Please look."
    )


def numbers(first: int, last: int) -> str:
    """'13' or '13–18' for places 12, or 12 to 17, counted from 0."""
    return f"{first + 1}" if first == last else f"{first + 1}–{last + 1}"


def span(first: int, last: int) -> str:
    """'slice 13' or 'slices 13–18'."""
    return f"slice{'' if first == last else 's'} {numbers(first, last)}"


def by_drop(scan: ScanResult) -> list[Run]:
    """The runs, the one first without which the scan's probability would be lowest."""
    return sorted(scan.runs, key=lambda run: (run.scan_without is not None, run.scan_without or 0, run.first))


def drivers(scan: ScanResult) -> list[str]:
    """Which slices drove the scan, a sentence each: its runs; without a run, the slice that did most."""
    without = "Without {} the scan's probability would be {}."
    sentences = []
    for run in by_drop(scan)[:MAX_RUNS]:
        if run.scan_without is None:
            sentences.append(f"All slices reach {percent(THRESHOLD)}.")
        else:
            sentences.append(without.format(span(run.first, run.last), percent(run.scan_without)))
    if len(scan.runs) > MAX_RUNS:
        sentences.append(f"Runs that are not named: {len(scan.runs) - MAX_RUNS}; see the strip.")
    if not scan.runs:
        top = max(scan.slices, key=lambda one: one.probability)
        highest = f"the highest is slice {top.slice + 1} at {percent(top.probability)}"
        sentences.append(f"No slice reaches {percent(THRESHOLD)}; {highest}.")
        known = [(one.scan_without, one.slice) for one in scan.slices if one.scan_without is not None]
        value, place = min(known, default=(scan.probability, 0))
        if value < scan.probability and percent(value) != percent(scan.probability):
            sentences.append(without.format(span(place, place), percent(value)))
    return sentences


def problems(ledger: Iterable[LedgerEntry]) -> list[str]:
    """What was wrong with the input, in the order of the codes."""
    return [line for code, line in _lines(ledger) if code in PROBLEMS]


def routine(ledger: Iterable[LedgerEntry]) -> list[str]:
    """The other lines of the ledger."""
    return [line for code, line in _lines(ledger) if code not in PROBLEMS]


def _lines(ledger: Iterable[LedgerEntry]) -> list[tuple[Code, str]]:
    counts = Counter(entry.code for entry in ledger)
    return [(code, _line(code, counts[code])) for code in Code if counts[code]]


def _line(code: Code, count: int) -> str:
    kind = "Refused: " if code in REFUSED else "Corrected: " if code in CORRECTED else ""
    text = f"{kind}{CODES[code]}" if kind else CODES[code][0].upper() + CODES[code][1:]
    return text if count == 1 else f"{text} ({count} times)"
