"""Explanation of one prepared scan: a text report of its result, choices, refusals and corrections.

The report is compiled from `scans/<scan>.json`, `slices.csv` and `ledger.csv`; no DICOM file is read.
"""

from difflib import get_close_matches
from pathlib import Path
from statistics import median

from ich_mil.errors import DataError
from ich_mil.ledger import CHOICES, CORRECTED, REFUSED, Code
from ich_mil.progress import printable
from ich_mil.sets.labels import UNKNOWN
from ich_mil.sets.preparation.record import need_record
from ich_mil.sets.scan_names import ScanNames, folder_names
from ich_mil.sets.store import PreparedSet, open_prepared, scan_file
from ich_mil.study.geometry.planes import steps_of

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
    if scan in prepared.scans.index:
        story = [scan, *_result(prepared, scan)]
    elif lines:
        story = [scan, "  left out"]
    else:
        names = sorted({*prepared.scans.index, *prepared.ledger_by_scan} - {""})
        near = ", ".join(get_close_matches(scan, names, n=3, cutoff=0.0))
        raise DataError(f"{folder}: has no scan {scan!r}; similar names are {near}")
    rest = frozenset(Code) - REFUSED - CORRECTED - CHOICES
    groups = {"chosen": CHOICES, "refused": REFUSED, "corrected": CORRECTED, "noted": rest}
    for title, codes in groups.items():
        by_code = {code: [line for line in lines if line["code"] == code] for code in Code if code in codes}
        story += [f"  {title}"] if any(by_code.values()) else []
        shown = 1 if title == "corrected" else SHOWN  # a correction usually applies to most slices alike
        for code, entries in by_code.items():
            for line in entries[:shown]:
                # the detail of a refusal already names the file
                file = "" if line["detail"].startswith(line["file"]) else f"{line['file']}: "
                story.append(f"    {code}: {file}{line['detail']}")
            if (more := len(entries) - shown) > 0:
                story.append(f"    {code}: and {more} more")
    return "\n".join(map(printable, story))


def _result(prepared: PreparedSet, scan: str) -> list[str]:
    """Report lines on the result: patient, label, slices, spacing, source files."""
    record, rows = need_record(prepared.folder, scan), prepared.slices(scan)
    slice_labels = rows.slice_label[rows.slice_label != UNKNOWN]
    label = {UNKNOWN: "no label", 0: "negative", 1: "positive"}[int(rows.scan_label.iloc[0])]
    if len(slice_labels):
        label += f", {int((slice_labels == 1).sum())} of {len(slice_labels)} slices positive"
    heights = [item["position_mm"] for item in record.slices]
    path, first, last = scan_file(prepared.folder, scan), heights[0], heights[-1]
    text = f"  {len(heights)} slices in {path}, from {first:.1f} to {last:.1f} mm"
    if len(heights) > 1:
        steps = steps_of(heights)
        text += f", {median(steps):.2f} mm apart ({min(steps):.2f} to {max(steps):.2f})"
    if any(record.pixel_mm):
        text += f"; pixels of {record.pixel_mm[0]:.3f} x {record.pixel_mm[1]:.3f} mm"
    sources = [item["sources"] for item in record.slices]
    least, most = min(map(len, sources)), max(map(len, sources))
    means = [f"  each is the mean of {least} to {most} thin slices"] if most > 1 else []
    ends = f"  lowest {sources[0][0]}, highest {sources[-1][-1]}"
    return [f"  patient {record.patient}, {label}", text, *means, ends]
