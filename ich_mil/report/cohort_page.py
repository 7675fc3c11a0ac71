"""The page of a cohort: a worklist of all scans, the likely ones first.

In: `Results` of `predictions.json` and the addresses of the study pages. Out: HTML as a string. Studies that
could not be predicted, and files of no known study, stand above the list: none is lost. Patients are named
only where their texts are given.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from ich_mil.evaluate.triage import DECISIONS
from ich_mil.ledger import Code
from ich_mil.predictions import Results, ScanResult, in_no_study
from ich_mil.report.page import percent, render
from ich_mil.report.words import MARK, by_drop, problems, results_in_words, routine, span

TEXTS = ("PatientName", "PatientID", "StudyDate", "AccessionNumber")
"""Shown of each scan in this order, where they are given."""
MAX_RUNS = 2
"""Runs named in a row; the study page shows all."""


def worklist(results: Results) -> list[ScanResult]:
    """The scans as they should be read: by decision (positive, look, negative), then by falling risk."""
    return sorted(
        results.scans, key=lambda scan: (DECISIONS.index(scan.decision), -scan.probability, scan.scan)
    )


def render_cohort(
    results: Results,
    links: Mapping[str, str],
    *,
    title: str,
    texts: Mapping[str, Mapping[str, str]] = {},
) -> str:
    """The cohort page as one HTML document.

    Args:
        results: of all scans.
        links: relative address of a scan's page; scans without one are listed without a link.
        title: heading of the page.
        texts: of scans, DICOM texts by keyword, with any content; those of `TEXTS` are shown.

    Raises:
        ValueError: a link is not relative.
    """
    scans = worklist(results)
    about = defaultdict(list)
    for line in results.ledger:
        about[line.scan].append(line)
    missing = {
        scan: problems(line for line in about[scan] if line.code != Code.SCAN_EMPTY)
        for scan in dict.fromkeys(line.scan for line in results.ledger if line.code == Code.SCAN_EMPTY)
    }
    stray = in_no_study(results.ledger)
    above = set(stray)
    return render(
        "cohort.html.j2",
        script="cohort.js",
        title=title,
        results=results,
        counts=Counter(scan.decision for scan in scans),
        words=results_in_words(results.decided_by),
        marks=MARK,
        rows=[
            {
                "scan": scan,
                "link": links.get(scan.scan, ""),
                "runs": _runs(scan),
                "problems": problems(scan.ledger),
                "texts": [own[name] for name in TEXTS if name in (own := texts.get(scan.scan, {}))],
            }
            for scan in scans
        ],
        flagged=sum(bool(problems(scan.ledger)) for scan in scans),
        labelled=any(scan.label is not None for scan in scans),
        missing=missing,
        n_stray=len(stray),
        stray=problems(stray),
        other=[
            line
            for tell in (problems, routine)
            for line in tell(e for e in results.ledger if e.scan not in missing and e not in above)
        ],
    )


def _runs(scan: ScanResult) -> list[str]:
    """'slices 13–18 (21 %)' for the runs that matter most, with the scan's probability without them."""
    named = [
        span(run.first, run.last) + ("" if run.scan_without is None else f" ({percent(run.scan_without)})")
        for run in by_drop(scan)[:MAX_RUNS]
    ]
    more = len(scan.runs) - len(named)
    return [*named, *([f"{more} more"] if more else [])]
