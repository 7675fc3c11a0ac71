"""Worklist: all scans in reading order (`worklist`), as one HTML document.

Studies without a prediction and files outside any known study are listed above the worklist, so that no input
is dropped silently. DICOM texts such as the patient's name appear only where `texts` are given.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from ich_mil.ledger import (
    LOOK,
    MARK,
    PROBLEMS,
    Code,
    decision_words,
    in_no_study,
    incomplete,
    problems,
    routine,
)
from ich_mil.model.predictions import Results, ScanPrediction, worklist
from ich_mil.pages.dicom_words import in_words
from ich_mil.pages.page import percent, render
from ich_mil.pages.study_page import Neighbours
from ich_mil.pages.words import by_drop, span

TEXTS = ("Patient", "Patient ID", "Study", "Accession number")
"""Labels of the DICOM texts shown for each scan, in this order, where they are given."""
FAULTS = PROBLEMS - {Code.LEARNED_FROM}
"""Problems counted at the top: `LEARNED_FROM` is none of the input."""
MAX_RUNS = 2
"""Number of runs named in a row; the study page shows all runs."""


def neighbours(results: Results, links: Mapping[str, str]) -> dict[str, Neighbours]:
    """Addresses of the worklist and of the pages before and after that of each scan, in reading order.

    `links` as in `render_worklist`.
    """
    scans = [scan.scan for scan in worklist(results) if scan.scan in links]
    pages = ["", *(links[scan] for scan in scans), ""]
    return {
        scan: Neighbours("index.html", before, after)
        for scan, before, after in zip(scans, pages[:-2], pages[2:], strict=True)
    }


def render_worklist(
    results: Results, links: Mapping[str, str], *, title: str, texts: Mapping[str, Mapping[str, str]] = {}
) -> str:
    """Render the worklist as one HTML document.

    Args:
        results: predictions of all scans and their ledger.
        links: relative address of the page of each scan; a scan without an address has no link.
        title: heading of the page.
        texts: DICOM texts of each scan by keyword; those of the labels in `TEXTS` are shown.

    Raises:
        ValueError: a link is not relative.
    """
    scans = worklist(results)
    by_scan = defaultdict(list)
    for line in results.ledger:
        by_scan[line.scan].append(line)
    missing = {
        scan: problems(line for line in by_scan[scan] if line.code != Code.SCAN_EMPTY)
        for scan in dict.fromkeys(line.scan for line in results.ledger if line.code == Code.SCAN_EMPTY)
    }
    stray = in_no_study(results.ledger)
    above = set(stray)
    return render(
        "worklist.html.j2",
        script="worklist.js",
        title=title,
        results=results,
        counts=Counter(scan.decision for scan in scans),
        words=decision_words(results.decided_by),
        marks=MARK,
        rows=[
            {
                "scan": scan,
                "link": links.get(scan.scan, ""),
                "runs": _runs(scan),
                "problems": problems(scan.ledger),
                "incomplete": scan.decision == LOOK and bool(incomplete(scan.ledger)),
                "texts": [*filter(None, map(in_words(texts.get(scan.scan, {})).get, TEXTS))],
            }
            for scan in scans
        ],
        flagged=sum(any(line.code in FAULTS for line in scan.ledger) for scan in scans),
        labelled=any(scan.label is not None for scan in scans),
        missing=missing,
        files={line.scan: line.file for line in results.ledger if line.code == Code.SCAN_EMPTY},
        n_stray=len(stray),
        stray=problems(stray),
        other=[
            line
            for describe in (problems, routine)
            for line in describe(e for e in results.ledger if e.scan not in missing and e not in above)
        ],
    )


def _runs(scan: ScanPrediction) -> list[str]:
    named = [
        span(run.first, run.last) + ("" if run.scan_without is None else f" ({percent(run.scan_without)})")
        for run in by_drop(scan)[:MAX_RUNS]
    ]
    more = len(scan.runs) - len(named)
    return [*named, *([f"{more} more"] if more else [])]
