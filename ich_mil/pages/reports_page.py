"""Page of labelled radiology reports: every scan with its sentences, and a form to correct labels.

The page contains report texts and must stay in its folder; it loads nothing and sends nothing. Its button
creates `corrections.csv` in the browser.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ich_mil.pages.page import embedded, render

MOST_SCANS = 2000
"""Largest number of scans on the page; the tables contain all scans."""
MOST_SENTENCES = 8
"""Largest number of sentences shown for a scan."""
MOST_TERMS = 60
OUTCOMES = {"uncertain": "left out", "positive": "hemorrhage", "negative": "no hemorrhage"}
"""Wording of each outcome, in the order of the page: scans that a person must decide come first."""
LABEL_OF = {"positive": "1", "negative": "0", "uncertain": "out"}


@dataclass(frozen=True)
class ShownSentence:
    """One sentence of a report: its label, its text, and the words that decided the label."""

    label: str
    text: str
    evidence: Sequence[str] = ()


@dataclass(frozen=True)
class ShownScan:
    """One scan on the page.

    Attributes:
        scan: scan id.
        outcome: key of `OUTCOMES`.
        probability: probability of blood.
        kinds: compartments.
        note: why the scan is left out, or that it was corrected.
        corrected: whether a person decided.
        check: whether the label is among the least sure, which a person should read.
        sentences: the deciding sentences.
    """

    scan: str
    outcome: str
    probability: float
    kinds: Sequence[str] = ()
    note: str = ""
    corrected: bool = False
    check: bool = False
    sentences: Sequence[ShownSentence] = ()


@dataclass(frozen=True)
class ReportsPage:
    """Content of the page.

    Attributes:
        title: name of the source.
        scans: labelled scans, in any order.
        reports: number of reports.
        sentences: number of sentences by label.
        terms: new terms, the best first.
        unread: key terms that match no rule; the user may pass them as seeds.
        skipped: number of DICOM objects that are not reports.
    """

    title: str
    scans: Sequence[ShownScan]
    reports: int
    sentences: Mapping[str, int]
    terms: Sequence[str] = ()
    unread: Sequence[str] = ()
    skipped: int = 0


def render_reports(page: ReportsPage) -> str:
    """Render the page as one HTML document."""
    order = list(OUTCOMES)
    scans = sorted(page.scans, key=lambda scan: (not scan.check, order.index(scan.outcome), scan.scan))
    kept = {scan.scan: LABEL_OF[scan.outcome] for scan in page.scans if scan.corrected}
    return render(
        "reports.html.j2",
        script="reports.js",
        page=page,
        scans=scans[:MOST_SCANS],
        most_sentences=MOST_SENTENCES,
        counts={outcome: sum(scan.outcome == outcome for scan in scans) for outcome in OUTCOMES},
        words=OUTCOMES,
        label_of=LABEL_OF,
        tones={"uncertain": "look", "positive": "positive", "negative": "negative"},
        corrected=len(kept),
        check=sum(scan.check for scan in scans),
        terms=page.terms[:MOST_TERMS],
        data=embedded(kept),
    )
