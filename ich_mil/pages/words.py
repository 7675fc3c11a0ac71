"""Sentences on the result of one scan, for its page and DICOM results.

Every number in them is in `predictions.json`.
"""

from ich_mil.ledger import LOOK, THRESHOLD, has_guarantee, reasons
from ich_mil.model.predictions import Run, ScanPrediction
from ich_mil.pages.page import interval, percent

MAX_RUNS = 4
"""Number of runs named in the summary; the strip shows all runs."""
MAX_DRIVERS = 6
"""Number of slices, sentences and covariates named in the summary together."""
KINDS = {
    "edh": "epidural",
    "iph": "intraparenchymal",
    "ivh": "intraventricular",
    "sah": "subarachnoid",
    "sdh": "subdural",
}
"""Kinds of bleed by their abbreviations."""


def why_look(scan: ScanPrediction, decided_by: str) -> str:
    """Why the scan is left to a reader under the decision rule; '' for the other decisions."""
    if scan.decision != LOOK:
        return ""
    low, high = scan.interval_95
    sentences = [f"Never called negative: {', '.join(why)}."] if (why := reasons(scan.ledger)) else []
    if has_guarantee(decided_by):
        return " ".join(sentences) or "The probability lies between the thresholds."
    if low < THRESHOLD <= high:
        sentences.append(f"The 95 % interval crosses {percent(THRESHOLD)}.")
    return " ".join(sentences) or "The 95 % interval reaches the limit of negative scans."


def unlike(scan: ScanPrediction) -> str:
    """Warning for a scan unlike the training scans; '' within the limit or without an unlikeness score."""
    if scan.unlikeness is None or scan.unlikeness <= 1:
        return ""
    return (
        f"This scan is unlike the training scans ({scan.unlikeness:.1f} times the limit): "
        "its probability may be wrong. Please look."
    )


def kinds(scan: ScanPrediction) -> list[str]:
    """Sentences on the kinds of bleed, the most probable first, and on those of `KINDS` without a model."""
    ordered = sorted(scan.kinds, key=lambda kind: (-kind.probability, kind.name))
    names = [KINDS.get(kind.name.lower(), kind.name) for kind in ordered]
    lines = [
        f"{name}: {percent(kind.probability)} (95 % interval {interval(kind.interval_95)}); "
        f"held-out AUC {kind.auc:.2f}"
        for name, kind in zip(names, ordered, strict=True)
    ]
    unjudged = [name for name in KINDS.values() if name not in names]
    return [*lines, f"Not judged: {', '.join(unjudged)}"] if 0 < len(unjudged) < len(KINDS) else lines


def numbers(first: int, last: int) -> str:
    """Slice numbers from 1, as '13' or '13–18', for indices `first` to `last` from 0."""
    return f"{first + 1}" if first == last else f"{first + 1}–{last + 1}"


def span(first: int, last: int) -> str:
    """As `numbers`, with the noun: 'slice 13' or 'slices 13–18'."""
    return f"slice{'' if first == last else 's'} {numbers(first, last)}"


def by_drop(scan: ScanPrediction) -> list[Run]:
    """The runs, the most influential first: by the scan's probability without the run.

    A run of all slices, without which no probability is left, comes before all others.
    """
    return sorted(scan.runs, key=lambda run: (run.scan_without is not None, run.scan_without or 0, run.first))


def extra_names(scan: ScanPrediction) -> list[str]:
    """Name of each of the scan's sentences and covariates: 'sentence 2', 'the covariates'."""
    return [
        f"sentence {number}" if extra.kind == "sentence" else "the covariates"
        for number, extra in enumerate(scan.extras, 1)
    ]


def ranking(scan: ScanPrediction) -> list[tuple[float, str]]:
    """Inputs by the change of the scan's probability without them, the largest change first.

    Returns:
        The scan's probability without an input, and the input's name: a run of slices, a single slice if
        there is no run, a sentence, or the covariates.
    """
    slices = [(run.scan_without, span(run.first, run.last)) for run in scan.runs] or [
        (slice_.scan_without, span(slice_.slice, slice_.slice)) for slice_ in scan.slices
    ]
    extras = [(extra.scan_without, name) for extra, name in zip(scan.extras, extra_names(scan), strict=True)]
    known = [(value, name) for value, name in [*slices, *extras] if value is not None]
    return sorted(known, key=lambda pair: -abs(pair[0] - scan.probability))


def drivers(scan: ScanPrediction) -> list[str]:
    """Sentences on the runs that determine the scan's probability, or on the highest slice without a run.

    With sentences or covariates, the first `MAX_DRIVERS` of `ranking`.
    """
    without = "Without {} the scan's probability would be {}."
    if scan.extras:
        moving = [pair for pair in ranking(scan) if percent(pair[0]) != percent(scan.probability)]
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
        top = max(scan.slices, key=lambda slice_: slice_.probability)
        if top.probability < 0.01:  # as all others, '< 1 %'
            return [f"No slice reaches {percent(0.01)}."]
        highest = f"the highest is slice {top.slice + 1} at {percent(top.probability)}"
        sentences.append(f"No slice reaches {percent(THRESHOLD)}; {highest}.")
        known = [
            (slice_.scan_without, slice_.slice) for slice_ in scan.slices if slice_.scan_without is not None
        ]
        value, index = min(known, default=(scan.probability, 0))
        if value < scan.probability and percent(value) != percent(scan.probability):
            sentences.append(without.format(span(index, index), percent(value)))
    return sentences
