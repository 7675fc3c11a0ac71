"""Scan labels from what the sentences of reports state, with their evidence.

In: reports. Out: a `Statement` for each sentence and a `ScanLabel` for each scan: positive, negative, or left
out with a reason. Nothing is guessed: hedged or contradicting reports, and reports that say nothing of blood,
leave their scan out until a person decides (`corrections.csv`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ich_mil.data.labels import name_some, read_label_csv
from ich_mil.errors import DataError
from ich_mil.reports.context import Verdict, classify
from ich_mil.reports.read import Report
from ich_mil.reports.rules import Rules
from ich_mil.reports.sentences import Sentence, split_report

Outcome = Literal["positive", "negative", "uncertain"]
DECISIONS: Mapping[str, Outcome] = {"1": "positive", "0": "negative", "out": "uncertain"}
"""Labels of `corrections.csv`."""

PROBABILITY = {"stated": 0.98, "denied": 0.02, "normal": 0.05, "gone": 0.1, "uncertain": 0.5}
"""Probability of blood by what decided, a constant each: judgement, no measurement. Only `stated` leans on
one: of 102 sentences from which no rule was written, 61 of 62 called present were so (docs/reports.md)."""
REASONS = {
    "hedged": "blood is hedged",
    "implied": "an older or another bleed is implied and not stated",
    "contradiction": "one sentence states blood, another denies any",
    "part": "one compartment is denied, nothing is said of the others",
    "silent": "no sentence says whether there is blood",
    "disagree": "its reports disagree",
    "corrected": "left out by corrections.csv",
}


@dataclass(frozen=True)
class Statement:
    """One sentence of a report with its verdict."""

    report: str
    scan: str
    text: str
    verdict: Verdict


@dataclass(frozen=True)
class ScanLabel:
    """What the reports of one scan come to.

    Attributes:
        scan: its id.
        outcome: positive, negative, or uncertain, which is left out.
        probability: of blood (`PROBABILITY`); of a corrected label 0 or 1.
        kinds: compartments named in its positive sentences.
        reason: key of `REASONS` for an uncertain scan, else ''.
        corrected: whether a person decided.
    """

    scan: str
    outcome: Outcome
    probability: float
    kinds: tuple[str, ...] = ()
    reason: str = ""
    corrected: bool = False


def read_sentences(reports: Sequence[Report], rules: Rules | None = None) -> list[list[Statement]]:
    """Label every sentence of each report. Findings in the history and such sections count as `other`."""
    return [[_state(report, one, rules) for one in split_report(report.text, rules)] for report in reports]


def _state(report: Report, sentence: Sentence, rules: Rules | None) -> Statement:
    verdict = classify(sentence.text, rules)
    if not sentence.finding:
        label = verdict.label if verdict.label == "none" else "other"
        verdict = Verdict(label, evidence=(f"{sentence.section}:", *verdict.evidence))
    return Statement(report.name, report.scan, sentence.text, verdict)


def label_scans(statements: Sequence[Sequence[Statement]]) -> list[ScanLabel]:
    """One label a scan, from the statements of each report, in the order of the reports."""
    by_scan: dict[str, list[ScanLabel]] = {}
    for of_report in statements:
        scan = of_report[0].scan
        by_scan.setdefault(scan, []).append(_label_report(scan, of_report))
    return [_joined(labels) for labels in by_scan.values()]


def _label_report(scan: str, statements: Sequence[Statement]) -> ScanLabel:
    verdicts = [one.verdict for one in statements]
    present = [one for one in verdicts if one.label == "present"]
    denied = {one.denied for one in verdicts if one.label == "absent"}
    uncertain = [one for one in verdicts if one.label == "uncertain"]
    kinds = tuple(sorted({kind for one in present for kind in one.kinds}))
    if present and "any" in denied:
        return ScanLabel(scan, "uncertain", PROBABILITY["uncertain"], kinds, "contradiction")
    if present:
        return ScanLabel(scan, "positive", PROBABILITY["stated"], kinds)
    if any(one.hedged for one in uncertain):
        return ScanLabel(scan, "uncertain", PROBABILITY["uncertain"], reason="hedged")
    if denied & {"any", "acute"}:
        return ScanLabel(scan, "negative", PROBABILITY["denied"])
    if any(one.normal for one in verdicts):
        return ScanLabel(scan, "negative", PROBABILITY["normal"])
    if uncertain:
        return ScanLabel(scan, "uncertain", PROBABILITY["uncertain"], reason="implied")
    if "gone" in denied:
        return ScanLabel(scan, "negative", PROBABILITY["gone"])
    reason = "part" if denied else "silent"
    return ScanLabel(scan, "uncertain", PROBABILITY["uncertain"], reason=reason)


def _joined(labels: Sequence[ScanLabel]) -> ScanLabel:
    """The label of a scan from those of its reports; what one leaves open another may state."""
    outcomes = {one.outcome for one in labels}
    if {"positive", "negative"} <= outcomes:
        kinds = tuple(sorted({kind for one in labels for kind in one.kinds}))
        return ScanLabel(labels[0].scan, "uncertain", PROBABILITY["uncertain"], kinds, "disagree")
    strict = [one for one in labels if one.reason in ("hedged", "contradiction")]
    stated = [one for one in labels if one.outcome == "positive"]
    if stated:
        return replace(stated[0], kinds=tuple(sorted({kind for one in stated for kind in one.kinds})))
    clear = [one for one in labels if one.outcome == "negative"]
    return (strict or clear or list(labels))[0]


def read_corrections(path: Path, labels: Sequence[ScanLabel]) -> dict[str, Outcome]:
    """Decisions of a person by scan.

    Raises:
        DataError: no CSV table with columns scan,label; a scan that is not among `labels` or stands twice, or
            a label that is not 1, 0 or out.
    """
    table = read_label_csv(path, ["scan", "label"], key="scan")
    wrong = ~table["label"].isin(list(DECISIONS))
    if wrong.any():
        raise DataError(f"{path}: line {table.index[wrong][0] + 2}: label must be 1, 0 or out")
    unknown = sorted(set(table.scan) - {one.scan for one in labels})
    if unknown:
        raise DataError(
            f"{path}: {len(unknown)} scans have no report: {name_some(unknown)}; correct or remove these rows"
        )
    return {scan: DECISIONS[label] for scan, label in zip(table.scan, table["label"], strict=True)}


def correct(labels: Sequence[ScanLabel], decisions: Mapping[str, Outcome]) -> list[ScanLabel]:
    """Labels with a person's decisions in place of ours; kinds stay where the decision is positive."""
    corrected = []
    for one in labels:
        match decisions.get(one.scan):
            case None:
                corrected.append(one)
            case "positive":
                corrected.append(ScanLabel(one.scan, "positive", 1.0, one.kinds, corrected=True))
            case "negative":
                corrected.append(ScanLabel(one.scan, "negative", 0.0, corrected=True))
            case "uncertain":
                corrected.append(replace(one, outcome="uncertain", reason="corrected", corrected=True))
    return corrected
