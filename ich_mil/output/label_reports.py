"""Extract key terms, sentence labels and scan labels from radiology reports.

In: a table, folder or DICOM objects with reports, and seeds: words known to name blood. Out, in one folder:
`terms.csv` (rank, term), `sentences.csv` (report, sentence, label, kinds, evidence), `labels.csv`
(scan, label, probability, kinds; for layout `folder`), `left_out.csv` (scan, reason) and `reports.html`. A
`corrections.csv` (scan, label) in this folder is applied and never changed.

The texts of reports are written to these files only; the console shows counts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pandas as pd

from ich_mil.errors import DataError, named
from ich_mil.files import alone, check_apart, write_csv, write_text
from ich_mil.pages.reports_page import ReportsPage, ShownScan, ShownSentence, render_reports
from ich_mil.progress import say
from ich_mil.radiology_text.context import LABELS
from ich_mil.radiology_text.keywords import KeywordExtractor
from ich_mil.radiology_text.labels import (
    REASONS,
    ScanLabel,
    Statement,
    correct,
    label_scans,
    least_sure,
    read_corrections,
    read_sentences,
)
from ich_mil.radiology_text.read import Report, read_reports
from ich_mil.radiology_text.rules import default_rules, split_words

SEEDS = ("hemorrhage", "hematoma")
Uncertain = Literal["leave-out", "positive", "negative"]
CORRECTIONS = "corrections.csv"
RARE = 3
"""Minimum number of occurrences of a key term in a large collection."""
LARGE = 1000
"""Minimum number of reports of a large collection."""
OFFERED = 20
"""Number of new terms that are compared with the rules, and offered as seeds if no rule reads them."""


def label_reports(
    source: Path,
    *,
    out: Path,
    seeds: Sequence[str] = SEEDS,
    columns: Mapping[str, str] | None = None,
    uncertain: Uncertain = "leave-out",
) -> list[ScanLabel]:
    """Label the scans of all reports in `source`, and write the results to `out`.

    Args:
        source: table or folder; see `ich_mil.radiology_text.read`.
        out: folder of the results; a `corrections.csv` in it is applied.
        seeds: words that name blood; seeds missing in the rules are added to them.
        columns: as `read_reports`.
        uncertain: label of scans with undecided reports.

    Returns:
        The labels after corrections, in the order of the reports.
    """
    if source.is_dir():
        check_apart(out, source)
    with alone(out, doing="writing"):
        reports, skipped = read_reports(source, columns)
        rules = default_rules().with_terms(seeds)
        statements = read_sentences(reports, None if rules is default_rules() else rules)
        labels = label_scans(statements)
        english = any(label.reason != "language" for label in labels)
        if (out / CORRECTIONS).is_file():
            labels = correct(labels, read_corrections(out / CORRECTIONS, labels))
        terms = _terms(reports, seeds, source, english=english)
        page = ReportsPage(
            title=source.name,
            scans=_shown(labels, statements),
            reports=len(reports),
            sentences=_counts(statements),
            terms=terms,
            unread=[term for term in terms[:OFFERED] if not rules.find(split_words(term))],
            skipped=skipped,
        )
        ranks = range(1, len(terms) + 1)
        write_csv(out / "terms.csv", pd.DataFrame({"rank": ranks, "term": terms}))
        write_csv(out / "sentences.csv", _sentence_table(statements))
        value = {"positive": 1, "negative": 0, "uncertain": int(uncertain == "positive")}
        kept = [
            (label.scan, value[label.outcome], label.probability, "|".join(label.kinds))
            for label in labels
            if not _is_left_out(label, uncertain)
        ]
        dropped = [(label.scan, REASONS[label.reason]) for label in labels if _is_left_out(label, uncertain)]
        write_csv(out / "labels.csv", pd.DataFrame(kept, columns=["scan", "label", "probability", "kinds"]))
        write_csv(out / "left_out.csv", pd.DataFrame(dropped, columns=["scan", "reason"]))
        write_text(out / "reports.html", render_reports(page))
    _tell(out, reports, labels, uncertain, skipped)
    return labels


def _terms(reports: Sequence[Report], seeds: Sequence[str], source: Path, *, english: bool) -> list[str]:
    """New terms, the best first."""
    texts = [report.text for report in reports]
    used = {word for text in texts for word in split_words(text)}
    known = [seed for seed in seeds if used.issuperset(split_words(seed))]
    if not known and not english:
        raise DataError(
            f"{source}: none of its {len(texts)} reports is in English; give a translation of them"
        )
    if not known:
        raise DataError(f"{source}: no report has a seed ({', '.join(seeds)}); name words that they use")
    for seed in sorted(set(seeds) - set(known)):
        say(f"no report has the seed {seed!r}; it is not used")
    with named(source):
        return KeywordExtractor(min_count=RARE if len(texts) >= LARGE else 1).fit(texts, known).ranked_


def _counts(statements: Sequence[Sequence[Statement]]) -> dict[str, int]:
    counts = Counter(statement.verdict.label for of_report in statements for statement in of_report)
    return {label: counts[label] for label in LABELS}


def _shown(labels: Sequence[ScanLabel], statements: Sequence[Sequence[Statement]]) -> list[ShownScan]:
    """Scans with their sentences on blood or a normal finding, in the order present, uncertain, absent."""
    by_scan: dict[str, list[Statement]] = {}
    for of_report in statements:
        by_scan.setdefault(of_report[0].scan, []).extend(of_report)
    check = set(least_sure(labels))
    order = {"present": 0, "uncertain": 1, "absent": 2, "other": 3}
    shown = []
    for label in labels:
        stated = [row for row in by_scan[label.scan] if row.verdict.label in order or row.verdict.normal]
        stated.sort(key=lambda row: order.get(row.verdict.label, 4))
        note = REASONS[label.reason] if label.reason else "corrected by a person" if label.corrected else ""
        sentences = [ShownSentence(row.verdict.label, row.text, row.verdict.evidence) for row in stated]
        shown.append(
            ShownScan(
                label.scan,
                label.outcome,
                label.probability,
                label.kinds,
                note=note,
                corrected=label.corrected,
                check=label.scan in check,
                sentences=sentences,
            )
        )
    return shown


def _sentence_table(statements: Sequence[Sequence[Statement]]) -> pd.DataFrame:
    rows = [
        (row.report, row.text, row.verdict.label, "|".join(row.verdict.kinds), "|".join(row.verdict.evidence))
        for of_report in statements
        for row in of_report
    ]
    return pd.DataFrame(rows, columns=["report", "sentence", "label", "kinds", "evidence"])


def _is_left_out(label: ScanLabel, uncertain: Uncertain) -> bool:
    """Whether a scan gets no label.

    Always for scans with conflicting reports or left out by a correction, otherwise as `uncertain` says.
    """
    always = label.reason in ("disagree", "corrected")
    return label.outcome == "uncertain" and (always or uncertain == "leave-out")


def _tell(
    out: Path, reports: Sequence[Report], labels: Sequence[ScanLabel], uncertain: Uncertain, skipped: int
) -> None:
    """Print counts; no text of a report is printed."""
    counts = Counter(label.outcome for label in labels)
    away = Counter(label.reason for label in labels if _is_left_out(label, uncertain))
    say(f"{len(reports)} reports of {len(labels)} scans")
    if skipped:
        say(f"DICOM objects that are no reports: {skipped}")
    if corrected := sum(label.corrected for label in labels):
        say(f"{out / CORRECTIONS}: {corrected} labels corrected")
    say(f"{out / 'labels.csv'}: {counts['positive']} positive, {counts['negative']} negative")
    for reason, count in sorted(away.items()):
        say(f"{out / 'left_out.csv'}: {count} scans: {REASONS[reason]}")
    if opened := counts["uncertain"] - away.total():
        say(f"{opened} uncertain scans are in labels.csv as {uncertain}")
    say(f"{out / 'reports.html'}")
