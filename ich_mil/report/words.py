"""Sentences of the pages: the result, the slices that determine it, and problems of the input.

Every number in them is in `predictions.json`; slices are numbered from 1 here and from 0 there. Sentences
contain no text of a DICOM file, since file names and ledger details may name a patient.
"""

from collections import Counter
from collections.abc import Iterable

from ich_mil.evaluate.deployment.triage import LOOK, NEGATIVE, POSITIVE
from ich_mil.evaluate.threshold import THRESHOLD
from ich_mil.ledger import CORRECTED, REFUSED, Code, LedgerEntry
from ich_mil.report.page import percent
from ich_mil.runs.predictions import Run, ScanResult, is_promised

PROMISED = {
    POSITIVE: "Intracranial hemorrhage likely",
    LOOK: "Undecided: please look",
    NEGATIVE: "Intracranial hemorrhage unlikely",
}
"""Wording of the three decisions where the thresholds have a statistical guarantee."""
PLAIN = PROMISED | {
    POSITIVE: f"Probability above {100 * THRESHOLD:.0f} %",
    NEGATIVE: f"Probability below {100 * THRESHOLD:.0f} %",
}
"""Wording of the three decisions without a guarantee: a statement about the probability only."""
MARK = {POSITIVE: "▲", LOOK: "◆", NEGATIVE: "○"}
"""A symbol for each decision, so that it does not rest on colour alone."""
MAX_RUNS = 4
"""Number of runs named in the summary; the strip shows all runs."""
MAX_DRIVERS = 6
"""Number of slices, sentences and covariates named in the summary together."""

CODES = {
    Code.NOT_DICOM: "not a DICOM file",
    Code.NOT_CT: "not CT",
    Code.LOCALIZER: "a localizer",
    Code.NOT_AN_IMAGE: "no image",
    Code.MULTI_FRAME: "frames without distinct positions",
    Code.NO_GEOMETRY: "position or orientation missing",
    Code.NO_UID: "identifiers missing",
    Code.NO_HU_SCALE: "no Hounsfield scale",
    Code.UNREADABLE: "damaged",
    Code.NOT_OPENED: "cannot be opened",
    Code.NO_DECODER: "compressed in an unknown way",
    Code.OTHER_FOLDER: "in a folder that is not a study",
    Code.FLAT: "an image of one grey value",
    Code.NOISE: "an image of noise",
    Code.DUPLICATE: "a repeated slice",
    Code.OTHER_SHAPE: "image size differs from its series",
    Code.OTHER_ORIENTATION: "orientation differs from its series",
    Code.NO_HEAD: "shows no head",
    Code.SERIES_NOT_CHOSEN: "another series was used",
    Code.SCAN_EMPTY: "no slice could be used",
    Code.NO_LABEL: "a scan without a label",
    Code.INTERCEPT_12_BIT: "12-bit overflow of stored values",
    Code.ALREADY_HU: "values were Hounsfield units already",
    Code.PADDING: "padding set to air",
    Code.UNUSED_BITS: "unused bits cleared",
    Code.HU_CLIPPED: "extreme values cut",
    Code.AVERAGED: "thin slices averaged",
    Code.THINNED: "overlapping slices left out",
    Code.SERIES_CHOSEN: "series chosen by rule",
    Code.SERIES_JOINED: "series stored in parts, joined",
    Code.SERIES_KIND: "not a plain axial head series",
    Code.CONTRAST_UNSURE: "contrast agent possible",
    Code.PART_OF_HEAD: "only part of the head",
    Code.GAP: "gap between slices",
    Code.SPACING_CHANGES: "slice distance changes",
    Code.TILTED: "gantry tilted",
    Code.FLIPPED: "rows or columns stored in reverse order; images are shown as stored",
    Code.PIXELS_NOT_SQUARE: "pixels are not square: images are stretched, also for the model",
    Code.CENTRE_MOVES: "image centre moves",
    Code.OTHER_PICTURE: "two different images at one position, one of them used",
    Code.OTHER_RESCALE: "Hounsfield scale differs from its series",
    Code.LOSSY: "compressed with loss, or grey values of 8 bits",
    Code.COARSE: "grey levels too coarse to distinguish blood from brain",
    Code.SOP_REPEATED: "slice identifier used twice",
    Code.MODALITY_MISSING: "modality not stated",
    Code.SEVERAL_PATIENTS: "several patient identifiers in one study",
    Code.PATIENT_MISSING: "no patient identifier",
    Code.SAME_SLICES: "same slices as another scan",
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
"""Codes of refusals and corrections that occur in most studies: reported, but not as problems."""
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
"""Codes that a reader of the result must know."""


def results_in_words(decided_by: str) -> dict[str, str]:
    """Wording of each decision, which depends on how it was made (`Results.decided_by`)."""
    return PROMISED if is_promised(decided_by) else PLAIN


def unlike(scan: ScanResult) -> str:
    """Warning for a scan unlike the training scans; '' within the limit or without an unlikeness score."""
    if scan.unlikeness is None or scan.unlikeness <= 1:
        return ""
    return (
        f"This scan is unlike the training scans ({scan.unlikeness:.1f} times the limit): "
        "its probability may be wrong. Please look."
    )


def kinds(scan: ScanResult) -> list[str]:
    """Sentences on the kinds of bleed, the most probable first."""
    ordered = sorted(scan.kinds, key=lambda one: (-one.probability, one.name))
    return [
        f"{one.name}: {percent(one.probability)} (95 % interval {percent(one.interval_95[0])} to "
        f"{percent(one.interval_95[1])}), mostly from {one.source} ({percent(one.share)} of the weight); "
        f"held-out AUC {one.auc:.2f}"
        for one in ordered
    ]


def numbers(first: int, last: int) -> str:
    """Slice numbers from 1, as '13' or '13–18', for indices `first` to `last` from 0."""
    return f"{first + 1}" if first == last else f"{first + 1}–{last + 1}"


def span(first: int, last: int) -> str:
    """As `numbers`, with the noun: 'slice 13' or 'slices 13–18'."""
    return f"slice{'' if first == last else 's'} {numbers(first, last)}"


def by_drop(scan: ScanResult) -> list[Run]:
    """The runs, the most influential first: by the scan's probability without the run.

    A run of all slices, without which no probability is left, comes before all others.
    """
    return sorted(scan.runs, key=lambda run: (run.scan_without is not None, run.scan_without or 0, run.first))


def extra_names(scan: ScanResult) -> list[str]:
    """Name of each of the scan's sentences and covariates: 'sentence 2', 'the covariates'."""
    return [
        f"sentence {number}" if one.kind == "sentence" else "the covariates"
        for number, one in enumerate(scan.extras, 1)
    ]


def ranking(scan: ScanResult) -> list[tuple[float, str]]:
    """What drove the scan's probability, by how far it would move without it, the furthest first.

    Returns:
        The scan's probability without it, and its name: a run of slices, a single slice if there is no run, a
        sentence, or the covariates.
    """
    slices = [(run.scan_without, span(run.first, run.last)) for run in scan.runs] or [
        (one.scan_without, span(one.slice, one.slice)) for one in scan.slices
    ]
    extras = [(one.scan_without, name) for one, name in zip(scan.extras, extra_names(scan), strict=True)]
    known = [(value, name) for value, name in [*slices, *extras] if value is not None]
    return sorted(known, key=lambda one: -abs(one[0] - scan.probability))


def drivers(scan: ScanResult) -> list[str]:
    """Sentences on the runs that determine the scan's probability, or on the highest slice without a run.

    With sentences or covariates, the first `MAX_DRIVERS` of `ranking`.
    """
    without = "Without {} the scan's probability would be {}."
    if scan.extras:
        moving = [one for one in ranking(scan) if percent(one[0]) != percent(scan.probability)]
        lines = [without.format(name, percent(value)) for value, name in moving[:MAX_DRIVERS]]
        return lines or ["No slice, sentence or covariate alone changes the scan's probability."]
    sentences = []
    for run in by_drop(scan)[:MAX_RUNS]:
        if run.scan_without is None:
            sentences.append(f"All slices reach {percent(THRESHOLD)}.")
        else:
            sentences.append(without.format(span(run.first, run.last), percent(run.scan_without)))
    if len(scan.runs) > MAX_RUNS:
        sentences.append(f"{len(scan.runs) - MAX_RUNS} more runs: see the chart of slices.")
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
    """Lines on the problems of the input, in the order of the codes."""
    return [line for code, line in _lines(ledger) if code in PROBLEMS]


def routine(ledger: Iterable[LedgerEntry]) -> list[str]:
    """Lines on all other ledger entries, in the order of the codes."""
    return [line for code, line in _lines(ledger) if code not in PROBLEMS]


def _lines(ledger: Iterable[LedgerEntry]) -> list[tuple[Code, str]]:
    counts = Counter(entry.code for entry in ledger)
    return [(code, _line(code, counts[code])) for code in Code if counts[code]]


def _line(code: Code, count: int) -> str:
    kind = "Refused: " if code in REFUSED else "Corrected: " if code in CORRECTED else ""
    text = f"{kind}{CODES[code]}" if kind else CODES[code][0].upper() + CODES[code][1:]
    return text if count == 1 else f"{text} ({count} times)"
