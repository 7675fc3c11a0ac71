"""Explanation of one prepared scan: a text report of its result, choices, refusals and corrections.

The report is compiled from `scans/<scan>.json`, `slices.csv` and `ledger.csv`; no DICOM file is read.
"""

from collections import defaultdict
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from statistics import median

import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.data.preparation.record import ScanRecord, need_record
from ich_mil.data.scan_names import ScanNames, folder_names
from ich_mil.data.store import open_prepared, scan_file
from ich_mil.dicom.geometry.planes import steps_of
from ich_mil.errors import DataError
from ich_mil.ledger import CHOICES, CORRECTED, REFUSED, Code
from ich_mil.progress import printable

SHOWN = 5
"""Largest number of lines per code in the report; the ledger has all lines."""


def explain(folder: Path, scan: str) -> str:
    """Explain how one scan was prepared, in several lines of text.

    Args:
        folder: a prepared set.
        scan: the id or the source folder of a scan, which may have been left out.

    Raises:
        DataError: `folder` is no prepared set, the record or pixels of the scan are damaged, or the set has
            no such scan; the error names similar ids.
    """
    prepared = open_prepared(folder)
    fits = ScanNames(folder_names(prepared.in_folders)).find(scan)
    scan = next(iter(fits)) if len(fits) == 1 else scan
    lines = prepared.ledger_by_scan.get(scan, [])
    story = [scan]
    if scan in prepared.scans.index:
        story += _result(need_record(folder, scan), prepared.slices(scan), scan_file(folder, scan))
    elif lines:
        story.append("  left out")
    else:
        names = sorted({*prepared.scans.index, *prepared.ledger_by_scan} - {""})
        near = ", ".join(get_close_matches(scan, names, n=3, cutoff=0.0))
        raise DataError(f"{folder}: has no scan {scan!r}; similar names are {near}")
    by_code: dict[Code, list[str]] = defaultdict(list)
    for line in lines:
        # the detail of a refusal already names the file
        file = "" if not line["file"] or line["detail"].startswith(line["file"]) else f"{line['file']}: "
        by_code[Code(line["code"])].append(f"    {line['code']}: {file}{line['detail']}")
    rest = frozenset(Code) - REFUSED - CORRECTED - CHOICES
    groups = {"chosen": CHOICES, "refused": REFUSED, "corrected": CORRECTED, "noted": rest}
    for title, codes in groups.items():
        found = [code for code in Code if code in codes and code in by_code]
        story += [f"  {title}"] if found else []
        # a correction usually applies to most slices alike, so one line suffices
        shown = 1 if title == "corrected" else SHOWN
        for code in found:
            more = len(by_code[code]) - shown
            story += by_code[code][:shown] + ([f"    {code}: and {more} more"] if more > 0 else [])
    return "\n".join(map(printable, story))


def _result(record: ScanRecord, rows: pd.DataFrame, path: Path) -> Iterator[str]:
    """Report lines on the result: patient, label, slices, spacing, source files."""
    label, slice_labels = int(rows.scan_label.iloc[0]), rows.slice_label[rows.slice_label != UNKNOWN]
    labelled = {UNKNOWN: "no label", 0: "negative", 1: "positive"}[label]
    if len(slice_labels):
        labelled += f", {int((slice_labels == 1).sum())} of {len(slice_labels)} slices positive"
    yield f"  patient {record.patient}, {labelled}"
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
