"""The page of labelled reports: every scan with its sentences, and a form that corrects labels.

In: what `ich-mil reports` found. Out: HTML as a string. The page holds texts of reports and so belongs to the
folder it lies in; it loads nothing and sends nothing. Its button makes `corrections.csv` in the browser.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ich_mil.report.page import embedded, render

MOST_SCANS = 2000
"""Listed on the page; all are in the tables."""
MOST_SENTENCES = 8
"""Shown of a scan."""
MOST_TERMS = 60
OUTCOMES = {"uncertain": "left out", "positive": "hemorrhage", "negative": "no hemorrhage"}
"""In the order of the page: what a person must decide comes first."""
LABEL_OF = {"positive": "1", "negative": "0", "uncertain": "out"}


@dataclass(frozen=True)
class ShownSentence:
    """One sentence: its label, its text, and the words that decided."""

    label: str
    text: str
    evidence: Sequence[str] = ()


@dataclass(frozen=True)
class ShownScan:
    """One scan as the page lists it; `note` says why it is left out, or that it was corrected."""

    scan: str
    outcome: str
    probability: float
    kinds: Sequence[str] = ()
    note: str = ""
    corrected: bool = False
    sentences: Sequence[ShownSentence] = ()


@dataclass(frozen=True)
class ReportsPage:
    """All that the page shows.

    Attributes:
        title: name of the source.
        scans: in any order.
        reports: number of reports.
        sentences: number of sentences by label.
        terms: term, probability, estimated false discovery rate, the most probable first.
        unread: terms that no rule reads; a person may name them as seeds.
        skipped: DICOM objects that are no reports.
    """

    title: str
    scans: Sequence[ShownScan]
    reports: int
    sentences: Mapping[str, int]
    terms: Sequence[tuple[str, float, float]] = ()
    unread: Sequence[str] = ()
    skipped: int = 0


def render_reports(page: ReportsPage) -> str:
    """The page as one HTML document."""
    order = list(OUTCOMES)
    scans = sorted(page.scans, key=lambda one: (order.index(one.outcome), one.scan))
    kept = {one.scan: LABEL_OF[one.outcome] for one in page.scans if one.corrected}
    return render(
        "reports.html.j2",
        script="reports.js",
        page=page,
        scans=scans[:MOST_SCANS],
        most_sentences=MOST_SENTENCES,
        counts={outcome: sum(one.outcome == outcome for one in scans) for outcome in OUTCOMES},
        words=OUTCOMES,
        label_of=LABEL_OF,
        tones={"uncertain": "look", "positive": "positive", "negative": "negative"},
        corrected=len(kept),
        terms=page.terms[:MOST_TERMS],
        data=embedded(kept),
    )
