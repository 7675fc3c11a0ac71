"""DICOM files to a prepared set: the first step of the pipeline.

In: a folder in one of the known layouts. Out: `ich_mil.data.store.PreparedSet`. Each scan is ordered, its
series chosen, its slices read to int16 HU and written as one file; scans run in parallel over the cores. A
second run does only what is missing or has changed; a killed run leaves whole scans only.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from ich_mil.data.collection import Collection
from ich_mil.data.cq500 import Cq500Collection
from ich_mil.data.features import UNKNOWN
from ich_mil.data.folder import FolderCollection
from ich_mil.data.index import index_files, refused_entries
from ich_mil.data.rsna import RsnaCollection
from ich_mil.data.store import FORMAT, PreparedSet, open_prepared, scan_file
from ich_mil.dicom.read import SliceHeader, read_slice
from ich_mil.dicom.series import average_groups, choose_series, group_series
from ich_mil.errors import DataError, DicomError
from ich_mil.files import digest, whole_file, write_array, write_json
from ich_mil.ledger import Code, LedgerEntry, count_codes, write_ledger
from ich_mil.progress import progress, say

Layout = Literal["rsna", "cq500", "folder", "unlabelled"]
"""`folder` needs a labels.csv; `unlabelled` is a folder to predict on."""


def open_collection(layout: Layout, root: Path) -> Collection:
    """The files and labels below `root`. `DataError` if the folder or its label file cannot be used."""
    match layout:
        case "rsna":
            return RsnaCollection(root)
        case "cq500":
            return Cq500Collection(root)
        case "folder" | "unlabelled":
            return FolderCollection(root, labelled=layout == "folder")


@dataclass(frozen=True)
class ScanRecord:
    """What `scans/<scan>.json` says of one prepared scan.

    Attributes:
        fingerprint: digest of the names, sizes and times of the files it was made from.
        patient: pseudonymous patient key, the scan id where the files name none.
        slices: for each slice `sources` (paths relative to the root), `sop`, `position_mm`, `corrections`.
        entries: ledger lines of the scan.
    """

    fingerprint: str
    patient: str
    slices: list[dict[str, Any]]
    entries: list[LedgerEntry]


def prepare(layout: Layout, root: Path, out: Path, *, jobs: int) -> PreparedSet:
    """Prepare every scan below `root` into the folder `out`.

    Args:
        layout: how the files and labels are laid out.
        root: the folder to read.
        out: the folder to write; an earlier result for the same root is completed.
        jobs: worker processes.

    Returns:
        The prepared set.

    Raises:
        DataError: labels that do not match, no usable slice at all, a full disk, or `out` made from another
            root.
    """
    _check_target(out, layout, root)
    collection = open_collection(layout, root)
    index = index_files(collection.files(), root, out / "index.jsonl", jobs=jobs)
    stamps = {item.path: item.stamp for item in index}
    entries = refused_entries(index)
    scans: dict[str, list[SliceHeader]] = defaultdict(list)
    for item in index:
        if item.header is not None:
            header = replace(item.header, path=str(root / item.path))
            scans[collection.scan_id(header)].append(header)
    if not scans:
        raise DataError(
            f"{root}: none of its {len(index)} files is a CT slice; the first: {entries[0].detail}"
        )
    collection.check(scans)

    records: dict[str, ScanRecord] = {}
    todo = []
    for scan in sorted(scans):
        names = [_relative(header.path, root) for header in scans[scan]]
        files = sorted((name, stamps[name]) for name in names)
        fingerprint = digest(FORMAT.encode(), json.dumps(files).encode())
        record = _read_record(out, scan)
        if record is not None and record.fingerprint == fingerprint:
            records[scan] = record
        else:
            todo.append((scan, scans[scan], fingerprint))
    if todo:
        jobs = min(jobs, len(todo))
        work = Parallel(n_jobs=jobs, return_as="generator_unordered")(
            delayed(_prepare_scan)(scan, headers, fingerprint, root, out)
            for scan, headers, fingerprint in todo
        )
        for scan, record in progress(work, total=len(todo), what="prepare"):
            records[scan] = record

    for scan in sorted(records):
        entries.extend(records[scan].entries)
    entries.extend(collection.entries)
    with whole_file(out / "ledger.csv") as temporary:
        write_ledger(entries, temporary)
    table = _table(records, scans, collection, root)
    if table.empty:
        raise DataError(f"{root}: no scan has a usable slice; {out / 'ledger.csv'} says why for each file")
    with whole_file(out / "slices.csv") as temporary:
        table.to_csv(temporary, index=False)
    about = {
        "format": FORMAT,
        "layout": layout,
        "root": str(root.resolve()),
        "files": digest(*(records[scan].fingerprint.encode() for scan in sorted(records))),
    }
    write_json(out / "prepared.json", about)
    prepared = open_prepared(out)
    _summary(prepared, entries, len(index), len(todo))
    return prepared


def _check_target(out: Path, layout: Layout, root: Path) -> None:
    about = out / "prepared.json"
    if about.is_file():
        try:
            old = json.loads(about.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(
                f"{about}: is damaged ({error}); delete it and run the same command again"
            ) from error
        if (old.get("root"), old.get("layout")) != (str(root.resolve()), layout):
            raise DataError(
                f"{out}: was prepared from {old.get('root')} ({old.get('layout')}), "
                f"not from {root} ({layout}); "
                "choose another folder for the prepared set"
            )


def _relative(path: str, root: Path) -> str:
    return Path(path).relative_to(root).as_posix()


def _prepare_scan(
    scan: str, headers: Sequence[SliceHeader], fingerprint: str, root: Path, out: Path
) -> tuple[str, ScanRecord]:
    """Order, choose, read and write one scan; runs in a worker process."""
    every_series = [series for group in group_series(headers).values() for series in group]
    series, reason, left_out = choose_series(every_series)
    entries = [*left_out, *series.entries]
    if len(every_series) > 1:
        entries.append(
            LedgerEntry(scan, "", Code.SERIES_CHOSEN, f"{series.description or series.series_uid}: {reason}")
        )
    stack: list[np.ndarray] = []
    slices: list[dict[str, Any]] = []
    for group in average_groups(series):
        pictures, members, heights = [], [], []
        corrections: set[Code] = set()
        for i in group:
            header = series.headers[i]
            try:
                hu, corrected = read_slice(Path(header.path))
            except DicomError as error:
                entries.append(LedgerEntry(scan, header.path, Code(error.code), str(error)))
                continue
            notes = [*header.notes, *corrected]
            entries.extend(LedgerEntry(scan, header.path, code, detail) for code, detail in notes)
            corrections.update(code for code, _ in notes)
            pictures.append(hu)
            members.append(header)
            heights.append(series.positions[i])
        if not pictures:
            continue
        middle = members[len(members) // 2]
        if len(pictures) > 1:
            corrections.add(Code.AVERAGED)
        stack.append(
            pictures[0] if len(pictures) == 1 else np.rint(np.mean(pictures, axis=0)).astype(np.int16)
        )
        slices.append(
            {
                "sources": [_relative(header.path, root) for header in members],
                "sop": middle.sop_uid,
                "position_mm": float(np.mean(heights)),
                "corrections": sorted(corrections),
            }
        )
    if len(slices) < len(series.headers) and any(len(item["sources"]) > 1 for item in slices):
        detail = f"{len(series.headers)} thin slices averaged to {len(slices)} of about 5 mm"
        entries.append(LedgerEntry(scan, "", Code.AVERAGED, detail))
    if not slices:
        entries.append(
            LedgerEntry(scan, "", Code.SCAN_EMPTY, "none of its slices could be read; the scan is left out")
        )
    entries = [replace(entry, scan=scan, file=_shorten(entry.file, root)) for entry in entries]
    patient = next((header.patient_id for header in headers if header.patient_id), "") or scan
    record = ScanRecord(fingerprint, patient, slices, entries)
    path = scan_file(out, scan)
    if stack:
        write_array(path, np.stack(stack))
    write_json(path.with_suffix(".json"), {"format": FORMAT, **asdict(record)})
    return scan, record


def _shorten(file: str, root: Path) -> str:
    return _relative(file, root) if file and Path(file).is_relative_to(root) else file


def _read_record(out: Path, scan: str) -> ScanRecord | None:
    """The record of a scan prepared earlier; None where there is none, or one of another version."""
    path = scan_file(out, scan)
    try:
        row = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if row.pop("format", None) != FORMAT or (row["slices"] and not path.is_file()):
        return None
    entries = [LedgerEntry(**{**entry, "code": Code(entry["code"])}) for entry in row.pop("entries")]
    return ScanRecord(**row, entries=entries)


def _table(
    records: dict[str, ScanRecord], scans: dict[str, list[SliceHeader]], collection: Collection, root: Path
) -> pd.DataFrame:
    """`slices.csv`: labels are joined here, so that a corrected label file needs no pixel read again."""
    rows = []
    for scan, record in sorted(records.items()):
        headers = {_relative(header.path, root): header for header in scans[scan]}
        label = collection.scan_label(scan, scans[scan])
        heights = [item["position_mm"] for item in record.slices]
        span = (max(heights) - min(heights)) if heights else 0.0
        for index, item in enumerate(record.slices):
            labels = [collection.slice_label(headers[source]) for source in item["sources"]]
            rows.append(
                {
                    "scan": scan,
                    "index": index,
                    "patient": record.patient,
                    "position_mm": round(item["position_mm"], 3),
                    "position": round((item["position_mm"] - heights[0]) / span, 5) if span else 0.5,
                    "scan_label": label,
                    "slice_label": max(labels, default=UNKNOWN),
                    "sop": item["sop"],
                    "source": "|".join(item["sources"]),
                    "corrections": "|".join(item["corrections"]),
                }
            )
    return pd.DataFrame(rows)


def _summary(prepared: PreparedSet, entries: Sequence[LedgerEntry], files: int, new: int) -> None:
    scans = prepared.scans
    known = int((scans.label != UNKNOWN).sum())
    positive = int((scans.label == 1).sum())
    say(
        f"{prepared.folder}: {len(scans)} scans ({positive} positive of {known} labelled), "
        f"{len(prepared.table)} slices from {files} files, {new} scans prepared now"
    )
    counts = count_codes(entries)
    if counts:
        say("  ledger: " + ", ".join(f"{code} {n}" for code, n in counts.items()))
