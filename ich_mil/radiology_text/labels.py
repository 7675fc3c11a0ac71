"""Scan labels from the sentences of radiology reports, with their evidence.

In: reports. Out: a `Statement` for each sentence and a `ScanLabel` for each scan: positive, negative, or left
out with a reason. A scan is left out if its reports hedge, contradict each other, or do not mention blood,
until a person decides (`corrections.csv`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ich_mil.errors import DataError
from ich_mil.radiology_text.context import Verdict, classify, is_outside, part_of
from ich_mil.radiology_text.language.vocabulary import is_english
from ich_mil.radiology_text.read import Report
from ich_mil.radiology_text.rules import Rules, default_rules, split_words
from ich_mil.radiology_text.sentences import Sentence, split_report
from ich_mil.sets.labels import name_some, read_label_csv

Outcome = Literal["positive", "negative", "uncertain"]
DECISIONS: Mapping[str, Outcome] = {"1": "positive", "0": "negative", "out": "uncertain"}
"""Outcome by label in `corrections.csv`."""

MEASURED = {"stated": (818, 22), "denied": (760, 5), "normal": (64, 2)}
"""Right and wrong labels by type of evidence, in 2,838 texts, most written to mislead, measured before the
rules were changed because of them (docs/reports.md)."""
SHRINKAGE = 10.0
"""Number of labels of average accuracy that are added to those of each type of evidence."""


def _probability(evidence: str) -> float:
    """Probability of blood: the accuracy of this type of evidence, shrunk towards that of all."""
    right, wrong = MEASURED[evidence]
    average = sum(row[0] for row in MEASURED.values()) / sum(map(sum, MEASURED.values()))
    accuracy = (right + SHRINKAGE * average) / (right + wrong + SHRINKAGE)
    return round(accuracy if evidence == "stated" else 1 - accuracy, 3)


PROBABILITY = {evidence: _probability(evidence) for evidence in MEASURED} | {"uncertain": 0.5}
"""Probability of blood by type of evidence, and of an uncertain scan."""
LEAST_SURE = 20
"""Number of labels that a person is asked to read."""
REASONS = {
    "hedged": "blood is hedged",
    "implied": "an older or another bleed is implied and not stated",
    "unread": "a sentence on blood was not understood",
    "named": "a bleed is only named, without place, size, age or verb",
    "gone": "a bleed is said to be gone, nothing is said of others",
    "contradiction": "one sentence states blood, another denies any",
    "part": "one compartment is denied, nothing is said of the others",
    "silent": "no sentence says whether there is blood",
    "dates": "it has findings of several dates",
    "language": "the report is not in English",
    "examination": "the report is not of a head CT",
    "disagree": "its reports disagree",
    "corrected": "left out by corrections.csv",
}
_LATER = re.compile(r"addend|final|amend|correct", re.I)
"""Headings of sections that replace the statements before them."""
_OTHER_EXAMINATION = re.compile(
    r"(?:(?:exam|examination|procedure|study)[a-z ]*:\s*)?"
    r"(?:(?:neonatal|pa?ediatric|cranial|head|brain|bedside|portable|fetal) )*"
    r"(?:(?:MRI?|magnetic|ultraso|sonogra|x-?ray|radiogra|PET)[a-z]*\b(?!.*\bCT\b)|CT[- ]guided"
    r"|(?:CT|computed tomography)\b(?!.*\b(?:head|brain|crani|skull|cerebr))(?: [a-z]+){,3}"
    r" (?:sinus|spin|abdom|chest|thora|pelvi|neck|orbit|faci))",
    re.I,
)
"""Title of an examination of another kind or part of the body."""
_ACUTE = re.compile(r"\bacute(?:\W+\w+){,3}?\W+(?:ha?em[oa]|blood|bleed|[se]dh\b|sah\b|ivh\b|subdural)", re.I)
"""Acute blood in a sentence that states some."""
_REFERS = re.compile(
    r"\W*(?:(?:it|this|these|those|they|both|all|the (?:left|right|other|former|latter)(?: one)?)\b.*"
    r"\b(?:resolved|cleared|gone|none|no longer|disappeared|absent|resorbed|vanished|(?:has|have) not\W)"
    r"|.*\b(?:withdrawn|retracted|disregard|wrong patient|consensus (?:is |was )?not reached|not convinced"
    r"|not a formal report|see (?:the )?(?:separate|other|full) report)\b"
    r"|none\b|there (?:is|are|was|were) none|.*[:,] *(?:gone\b|(?:resolved|cleared|none)\W*$)"
    r"|.*\b(?:today|now)\b.*: nil\W*$)",
    re.I,
)
"""Sentence without a finding that turns or suspends an earlier one ("It has resolved.")."""

_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE = rf"(?:\d+(?:th)? {_MONTH}|{_MONTH} \d|\d{{4}}-\d\d-\d|\d{{1,2}}/\d|(?:day|POD) ?\d)"
_DATED = re.compile(rf"(?:^|[;:.])\W*(?:CT\W+)?{_DATE}", re.I)
"""Date at the start of a sentence or part of it: findings of that day."""


@dataclass(frozen=True)
class Statement:
    """One sentence of a report with its classification."""

    report: str
    scan: str
    text: str
    verdict: Verdict
    section: str = ""


@dataclass(frozen=True)
class ScanLabel:
    """Label of one scan from all its reports.

    Attributes:
        scan: scan id.
        outcome: positive, negative, or uncertain; uncertain scans are left out.
        probability: probability of blood (`PROBABILITY`); 0 or 1 for a label corrected to negative or
            positive.
        kinds: compartments named in positive sentences.
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
    """Classify every sentence of each report.

    Findings in sections such as the history or the scalp, and in questions, are labelled `other`. A denial
    in a section of one compartment ("Ventricles: no blood") is a denial of that compartment.
    """
    return [
        [_state(report, sentence, rules) for sentence in split_report(report.text, rules)]
        for report in reports
    ]


def _state(report: Report, sentence: Sentence, rules: Rules | None) -> Statement:
    verdict = classify(sentence.text, rules)
    if not sentence.finding or is_outside(sentence.section, sentence.text):
        label = verdict.label if verdict.label == "none" else "other"
        verdict = Verdict(label, evidence=(f"{sentence.section or '?'}:", *verdict.evidence))
    elif verdict.denied in ("any", "acute") and (covered := part_of(sentence.section)) != "any":
        verdict = replace(verdict, denied=covered)
    return Statement(report.name, report.scan, sentence.text, verdict, sentence.section)


def label_scans(statements: Sequence[Sequence[Statement]]) -> list[ScanLabel]:
    """One label for each scan from the statements of its reports, in the order of the reports."""
    by_scan: dict[str, list[ScanLabel]] = {}
    for of_report in statements:
        scan = of_report[0].scan
        by_scan.setdefault(scan, []).append(_label_report(scan, of_report))
    return [_joined(labels) for labels in by_scan.values()]


def _label_report(scan: str, statements: Sequence[Statement]) -> ScanLabel:
    outcome, basis, kinds = _decide(statements)
    reason = basis if outcome == "uncertain" else ""
    return ScanLabel(scan, outcome, PROBABILITY["uncertain" if reason else basis], kinds, reason)


def _left_out(statements: Sequence[Statement]) -> str:
    """Reason (key of `REASONS`) to leave a report out whatever its findings; ''."""
    words = [word for statement in statements for word in split_words(statement.text)]
    if not is_english(words, default_rules().words):
        return "language"
    titles = [{*split_words(statement.section)} for statement in statements]
    head = any("ct" in title and title & {"head", "brain"} for title in titles)
    if _OTHER_EXAMINATION.match(statements[0].text) and not head:
        return "examination"
    labels = [statement.verdict.label for statement in statements]
    first = next((i for i, label in enumerate(labels) if label in ("present", "absent")), 0)
    later = zip(labels[first + 1 :], statements[first + 1 :], strict=True)
    refers = any(label in ("none", "uncertain") and _REFERS.match(row.text) for label, row in later)
    dated = sum(
        len(_DATED.findall(row.text))
        for label, row in zip(labels, statements, strict=True)
        if label != "none"
    )
    return "unread" if refers else "dates" if dated > 1 else ""


def _decide(statements: Sequence[Statement]) -> tuple[Outcome, str, tuple[str, ...]]:
    """Outcome of a report, its evidence (key of `MEASURED`) or reason (of `REASONS`), and compartments."""
    verdicts = [statement.verdict for statement in statements]
    present = [statement for statement in statements if statement.verdict.label == "present"]
    later = [statement for statement in present if _LATER.search(statement.section)]
    denied = {verdict.denied for verdict in verdicts if verdict.label == "absent"}
    n_partial = sum(verdict.denied == "part" for verdict in verdicts)
    normal = any(verdict.normal for verdict in verdicts)
    bare = all(statement.verdict.bare for statement in present)
    kinds = tuple(sorted({kind for statement in present for kind in statement.verdict.kinds}))
    reasons = {verdict.reason for verdict in verdicts if verdict.label == "uncertain"}
    if reason := _left_out(statements):
        return "uncertain", reason, kinds
    amended = any(
        _LATER.search(row.section) and row.verdict.label in ("absent", "uncertain") for row in statements
    )
    acute = "acute" in denied and any(_ACUTE.search(statement.text) for statement in present)
    if present and not later and ("any" in denied or normal or amended or acute):
        return "uncertain", "contradiction", kinds
    if present:
        return ("uncertain", "named", kinds) if bare else ("positive", "stated", kinds)
    for reason in ("unread", "hedged"):
        if reason in reasons:
            return "uncertain", reason, ()
    if denied & {"any", "acute", "most"} or n_partial > 1:
        return "negative", "denied", ()
    if normal:
        return "negative", "normal", ()
    if reasons:
        return "uncertain", "implied", ()
    return "uncertain", next((scope for scope in ("gone", "part") if scope in denied), "silent"), ()


def _joined(labels: Sequence[ScanLabel]) -> ScanLabel:
    """Combine the labels of the reports of one scan.

    Positive and negative reports together make the scan uncertain. Otherwise a positive report decides, then
    a hedged or contradictory report, then a negative report.
    """
    outcomes = {label.outcome for label in labels}
    if {"positive", "negative"} <= outcomes:
        kinds = tuple(sorted({kind for label in labels for kind in label.kinds}))
        return ScanLabel(labels[0].scan, "uncertain", PROBABILITY["uncertain"], kinds, "disagree")
    doubts = ("hedged", "unread", "dates", "language", "contradiction", "named")
    unclear = [label for label in labels if label.reason in doubts]
    stated = [label for label in labels if label.outcome == "positive"]
    if stated:
        return replace(stated[0], kinds=tuple(sorted({kind for label in stated for kind in label.kinds})))
    negative = [label for label in labels if label.outcome == "negative"]
    return (unclear or negative or list(labels))[0]


def least_sure(labels: Sequence[ScanLabel]) -> list[str]:
    """The `LEAST_SURE` labelled scans nearest to a probability of 1/2, without corrected ones."""
    given = [label for label in labels if label.outcome != "uncertain" and not label.corrected]
    given.sort(key=lambda label: abs(label.probability - 0.5))
    return [label.scan for label in given[:LEAST_SURE]]


def read_corrections(path: Path, labels: Sequence[ScanLabel]) -> dict[str, Outcome]:
    """Read a person's decisions from `corrections.csv`, by scan.

    Raises:
        DataError: the file is not a CSV table with columns scan,label; a scan is not among `labels` or is
            listed twice; or a label is not 1, 0 or out.
    """
    table = read_label_csv(path, ["scan", "label"], key="scan")
    wrong = ~table["label"].isin(list(DECISIONS))
    if wrong.any():
        raise DataError(f"{path}: line {table.index[wrong][0] + 2}: label must be 1, 0 or out")
    unknown = sorted(set(table.scan) - {label.scan for label in labels})
    if unknown:
        raise DataError(
            f"{path}: {len(unknown)} scans have no report: {name_some(unknown)}; correct or remove these rows"
        )
    return {scan: DECISIONS[label] for scan, label in zip(table.scan, table["label"], strict=True)}


def correct(labels: Sequence[ScanLabel], decisions: Mapping[str, Outcome]) -> list[ScanLabel]:
    """Replace labels by a person's decisions; kinds are kept where the decision is positive."""
    corrected = []
    for label in labels:
        match decisions.get(label.scan):
            case None:
                corrected.append(label)
            case "positive":
                corrected.append(ScanLabel(label.scan, "positive", 1.0, label.kinds, corrected=True))
            case "negative":
                corrected.append(ScanLabel(label.scan, "negative", 0.0, corrected=True))
            case "uncertain":
                corrected.append(replace(label, outcome="uncertain", reason="corrected", corrected=True))
    return corrected
