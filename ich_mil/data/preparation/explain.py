"""Explanation of one prepared scan: a text report of its result, choices, refusals and corrections.

In: a prepared set and the id of a scan. Out: text, compiled from `scans/<scan>.json`, `slices.csv` and
`ledger.csv`. No DICOM file is read.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from statistics import median

import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.data.preparation.record import ScanRecord, read_record
from ich_mil.data.store import open_prepared, scan_file
from ich_mil.dicom.geometry.planes import steps_of
from ich_mil.errors import DataError
from ich_mil.ledger import CHOICES, CORRECTED, REFUSED, Code

SHOWN = 5
"""Largest number of lines per code in the report; the ledger has all lines."""


def explain(folder: Path, scan: str) -> str:
    """Explain how one scan was prepared.

    Args:
        folder: a prepared set.
        scan: the id of a scan, which may have been left out, or the source folder of a prepared scan.

    Returns:
        Several lines of text.

    Raises:
        DataError: `folder` is no prepared set, the record or pixels of the scan are damaged, or the set has
            no such scan; the error names similar ids.
    """
    prepared = open_prepared(folder)
    below = prepared.table.scan[prepared.table.source.str.startswith(f"{scan.rstrip('/')}/")].unique()
    scan = below[0] if len(below) == 1 else scan
    lines = prepared.ledger_by_scan.get(scan, [])
    story = [scan]
    if scan in prepared.scans.index:
        record = read_record(folder, scan)
        if record is None:
            raise DataError(f"{folder}: the record of scan {scan!r} cannot be read; run prepare again")
        story += _result(record, prepared.slices(scan), scan_file(folder, scan))
    elif lines:
        story.append("  left out: it has no slice that can be used")
    else:
        names = sorted({*prepared.scans.index, *prepared.ledger_by_scan} - {""})
        near = ", ".join(get_close_matches(scan, names, n=3, cutoff=0.0))
        raise DataError(f"{folder}: knows no scan {scan!r}; the nearest names are {near}")
    by_code: dict[Code, list[dict[str, str]]] = defaultdict(list)
    for line in lines:
        by_code[Code(line["code"])].append(line)
    rest = frozenset(Code) - REFUSED - CORRECTED - CHOICES
    for title, codes in (
        ("chosen", CHOICES),
        ("refused", REFUSED),
        ("corrected", CORRECTED),
        ("noted", rest),
    ):
        found = [code for code in Code if code in codes and code in by_code]
        if found:
            story.append(f"  {title}")
        for code in found:
            # a correction usually applies to most slices alike, so one line suffices
            story += _lines(code, by_code[code], shown=1 if codes is CORRECTED else SHOWN)
    return "\n".join(story)


def _result(record: ScanRecord, rows: pd.DataFrame, path: Path) -> Iterator[str]:
    """Report lines on the result: patient, label, slices, spacing, source files."""
    label, slice_labels = int(rows.scan_label.iloc[0]), rows.slice_label[rows.slice_label != UNKNOWN]
    said = {UNKNOWN: "no label", 0: "negative", 1: "positive"}[label]
    if len(slice_labels):
        said += f", {int((slice_labels == 1).sum())} of {len(slice_labels)} slices positive"
    yield f"  patient {record.patient}, {said}"
    heights = [item["position_mm"] for item in record.slices]
    text = f"  {len(heights)} slices in {path}, from {heights[0]:.1f} to {heights[-1]:.1f} mm"
    if len(heights) > 1:
        steps = steps_of(heights)
        text += f", {median(steps):.2f} mm apart ({min(steps):.2f} to {max(steps):.2f})"
    if any(record.pixel_mm):
        text += f"; pixels of {record.pixel_mm[0]:.3f} x {record.pixel_mm[1]:.3f} mm"
    yield text
    n_sources = [len(item["sources"]) for item in record.slices]
    if max(n_sources) > 1:
        yield f"  each is the mean of {min(n_sources)} to {max(n_sources)} thin slices"
    yield f"  lowest {record.slices[0]['sources'][0]}, highest {record.slices[-1]['sources'][-1]}"


def _lines(code: Code, lines: Sequence[dict[str, str]], *, shown: int) -> Iterator[str]:
    """Report lines for the first `shown` ledger lines of one code."""
    for line in lines[:shown]:
        # the detail of a refusal already names the file
        file = "" if not line["file"] or line["detail"].startswith(line["file"]) else f"{line['file']}: "
        yield f"    {code}: {file}{line['detail']}"
    if len(lines) > shown:
        yield f"    {code}: and {len(lines) - shown} more"
