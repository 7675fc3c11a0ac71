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
from ich_mil.reports.read import Report, scans_of
from ich_mil.reports.rules import Rules
from ich_mil.reports.sentences import Sentence, split_report

Outcome = Literal["positive", "negative", "uncertain"]
DECISIONS: Mapping[str, Outcome] = {"1": "positive", "0": "negative", "out": "uncertain"}
"""Labels of `corrections.csv`."""

PROBABILITY = {"stated": 0.98, "denied": 0.02, "normal": 0.05, "gone": 0.1, "uncertain": 0.5}
"""Probability of blood by what decided, a constant each. `stated`: on the 102 gold sentences that no rule had
seen, 61 of 62 sentences labelled present were so (docs/reports.md); the others are judgement and no measurement."""
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
    """One sentence of a report with its verdict; `section` is '' outside of sections that state no finding."""

    report: str
    scan: str
    text: str
    verdict: Verdict
    section: str = ""


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


def read_sentences(reports: Sequence[Report], rules: Rules | None = None) -> list[Statement]:
    """Label every sentence. Findings in the history and such sections count as `other`."""
    statements = []
    for report in reports:
        for sentence in split_report(report.text, rules):
            verdict, section = _in_section(sentence, classify(sentence.text, rules))
            statements.append(Statement(report.name, report.scan, sentence.text, verdict, section))
    return statements


def _in_section(sentence: Sentence, verdict: Verdict) -> tuple[Verdict, str]:
    if sentence.finding:
        return verdict, ""
    label = verdict.label if verdict.label == "none" else "other"
    return Verdict(label, evidence=(f"{sentence.section}:", *verdict.evidence)), sentence.section


def label_scans(reports: Sequence[Report], statements: Sequence[Statement]) -> list[ScanLabel]:
    """One label a scan, in the order of the reports."""
    by_report: dict[tuple[str, str], list[Statement]] = {}
    for one in statements:
        by_report.setdefault((one.scan, one.report), []).append(one)
    labels = []
    for scan, of_scan in scans_of(reports).items():
        names = dict.fromkeys(report.name for report in of_scan)
        if len(names) < len(of_scan):  # rows of one id: each is told apart by its sentences alone
            single = [_label_report(scan, read) for read in _apart(of_scan, by_report[scan, of_scan[0].name])]
        else:
            single = [_label_report(scan, by_report.get((scan, name), [])) for name in names]
        labels.append(_joined(single))
    return labels


def _apart(reports: Sequence[Report], statements: Sequence[Statement]) -> list[list[Statement]]:
    """The statements of reports with one name, which stand one after the other."""
    apart, start = [], 0
    for report in reports:
        length = len(split_report(report.text))
        apart.append(list(statements[start : start + length]))
        start += length
    return apart


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
