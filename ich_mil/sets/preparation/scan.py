"""Preparation of one scan: choose a series, order its slices, read them as HU and write one file.

Series are tried in the order of `rank_series` until one shows a head. An unreadable slice is removed and the
rest are ordered again, so that a duplicate can replace it and a gap is reported.

Legend: `n` slices of the scan, `H, W` pixels of its turned pictures (`ich_mil.study.geometry.upright`).
"""

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from ich_mil.errors import DicomError
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.sets.preparation.record import ScanRecord, write_record
from ich_mil.sets.preparation.stack import Names, PreparedSlice, names_of, read_stack
from ich_mil.sets.store import scan_file
from ich_mil.sets.stored_hu import write_hu
from ich_mil.study.anatomy import head_cut_off, head_refusal
from ich_mil.study.contrast import SitePhrases
from ich_mil.study.files.header import SliceHeader, slice_entry, slice_name
from ich_mil.study.files.nifti import SYNTAX
from ich_mil.study.geometry.order import Series
from ich_mil.study.geometry.planes import AXIAL_DEGREES, tilt_degrees
from ich_mil.study.geometry.upright import Upright
from ich_mil.study.pixels.read import read_slice
from ich_mil.study.pixels.sharpness import sharpness
from ich_mil.study.pixels.volume import read_volume
from ich_mil.study.series import MOST_TRIED, average_groups, group_series, study_refusal
from ich_mil.study.series_choice import kind_entries, not_chosen, rank_series, reason_for


class ScanTask(NamedTuple):
    """One scan to read.

    Attributes:
        scan: scan id.
        headers: headers of all slices of the scan; paths are relative to `root`.
        thickness_mm: thin slices are averaged to about this thickness in mm; 0 leaves them unchanged.
        root: folder of the DICOM files.
        site: contrast words of the site.
        fingerprint: digest of the inputs (`ich_mil.sets.preparation.record.scan_fingerprint`).
    """

    scan: str
    headers: list[SliceHeader]
    thickness_mm: float
    root: Path
    site: SitePhrases
    fingerprint: str = ""


def prepare_scans(tasks: Sequence[ScanTask], out: Path) -> int:
    """Prepare scans into the set `out`. Returns their number. A scan is written while the next is read."""
    with ThreadPoolExecutor(1) as writer:
        writing: list[Future[None]] = []
        for task in tasks:
            prepared = read_scan(task)
            for earlier in writing:
                earlier.result()  # limits memory to two scans, and raises the error of a full disk
            writing = [writer.submit(write_scan, out, task.scan, *prepared)]
        for last in writing:
            last.result()
    return len(tasks)


def write_scan(out: Path, scan: str, record: ScanRecord, stack: np.ndarray | None) -> None:
    """Write the HU (n, H, W) of a scan, then its record. `stack` is None if no slice can be used."""
    path = scan_file(out, scan)
    if stack is None:
        path.unlink(missing_ok=True)
    else:
        write_hu(path, stack)
        record = replace(record, n_bytes=path.stat().st_size)
    write_record(out, scan, record)


def read_scan(task: ScanTask) -> tuple[ScanRecord, np.ndarray | None]:
    """Record and HU (n, H, W) of a scan, lowest slice first. The HU are None if no slice can be used."""
    entries: list[LedgerEntry] = []
    reason = study_refusal(task.headers)
    volumes = {} if reason else _read_volumes(task, entries)
    usable = [h for h in task.headers if h.pixels.syntax != SYNTAX or h.path in volumes]
    if not usable:
        reason = entries[0].detail
    choice = (None, None, []) if reason else _choose_and_read(task._replace(headers=usable), entries, volumes)
    series, stack, rows = choice
    if series is None:
        no_head = next((entry.detail for entry in entries if entry.code == Code.NO_HEAD), "")
        detail = reason or f"none of its series ({MOST_TRIED} are tried) shows a head that can be read"
        detail += f"; the likeliest: {no_head}" if no_head else ""
        entries.append(LedgerEntry(task.scan, "", Code.SCAN_EMPTY, detail))
    # With two patients under one study UID, the head of one may be in a series that was not chosen.
    chosen = series.headers if series else ()
    patients = list(dict.fromkeys([*_patients(chosen), *_patients(task.headers)]))
    if len(patients) > 1:
        detail = f"its files are of {len(patients)} patients: {', '.join(patients)}; the first stands for it"
        entries.append(LedgerEntry(task.scan, "", Code.SEVERAL_PATIENTS, detail))
    if not patients:
        detail = "none of its files has a PatientID; it counts as a patient of its own"
        entries.append(LedgerEntry(task.scan, "", Code.PATIENT_MISSING, detail))
    record = ScanRecord(
        fingerprint=task.fingerprint,
        n_bytes=0,  # set by write_scan
        patient=patients[0] if patients else task.scan,
        pixel_mm=Upright.of(series.headers[0]).spacing if series else (0.0, 0.0),
        slices=rows,
        entries=[replace(entry, scan=task.scan) for entry in entries],
    )
    return record, stack


def _read_volumes(task: ScanTask, entries: list[LedgerEntry]) -> dict[str, np.ndarray]:
    """Values of the NIfTI files of a scan by path; files that cannot be read have a ledger line instead."""
    volumes = {}
    for path in sorted({header.path for header in task.headers if header.pixels.syntax == SYNTAX}):
        try:
            volumes[path], notes = read_volume(task.root / path)
        except DicomError as error:
            notes = ((Code(error.code), str(error).removeprefix(f"{task.root}{os.sep}")),)
        entries += [LedgerEntry(task.scan, path, *note) for note in notes]
    return volumes


def _patients(headers: Sequence[SliceHeader]) -> list[str]:
    """Sorted distinct patient keys of the headers."""
    return sorted({header.patient_id for header in headers if header.patient_id})


def _choose_and_read(
    task: ScanTask, entries: list[LedgerEntry], volumes: Mapping[str, np.ndarray]
) -> tuple[Series | None, np.ndarray | None, list[dict[str, Any]]]:
    """Series that shows a head, HU of its slices (n, H, W), their rows of the record; None if no series does.

    The ledger lines of the scan are appended to `entries`.
    """
    headers = list(task.headers)
    no_heads: set[Names] = set()
    sharp: dict[Names, str] = {}
    done: dict[Names, PreparedSlice] = {}
    while True:
        every_series = [series for study in group_series(headers).values() for series in study]
        candidates = [
            replace(series, sharp=sharp.get(names_of(series.headers), ""))
            for series in every_series
            if names_of(series.headers) not in no_heads
        ]
        if not candidates or len(no_heads) == MOST_TRIED:
            return None, None, []
        series = rank_series(candidates, task.site)[0]
        groups: list[tuple[SliceHeader, ...]] = [(header,) for header in series.headers]
        if task.thickness_mm:
            averaged = average_groups(series, thickness=task.thickness_mm)
            groups = [tuple(series.headers[i] for i in group) for group in averaged]
        upright = Upright.of(series.headers[0])
        stack, unreadable = read_stack(upright, groups, task.root, done, volumes)
        if unreadable:
            entries += unreadable.values()
            headers = [header for header in headers if slice_name(header) not in unreadable]
            continue
        slices = [done[names_of(group)] for group in groups]
        no_head = head_refusal(stack, spacing=upright.spacing)
        names = names_of(series.headers)
        if no_head is None and names not in sharp:
            sharp[names] = sharpness(stack, spacing=upright.spacing)
            if sharp[names]:  # a softer series may come before it now
                continue
        if no_head is None:
            break
        no_head += _positions_lost(series)
        detail = (
            f"series {series.description!r} ({series.series_uid}), {len(series.headers)} slices: {no_head}"
        )
        entries += [slice_entry(series.headers[0], Code.NO_HEAD, detail), *series.entries]
        no_heads.add(names)
        done.clear()
    entries += [
        *not_chosen(series, candidates, task.site),
        *kind_entries(series, task.site, candidates),
        *series.entries,
        *_other_pictures(series, task.root, volumes),
    ]

    def note(code: Code, detail: str) -> None:
        entries.append(LedgerEntry(task.scan, "", code, detail))

    is_axial = tilt_degrees(series.headers[0]) <= AXIAL_DEGREES
    if is_axial and (cut_off := head_cut_off(stack, spacing=upright.spacing)):
        note(Code.PART_OF_HEAD, cut_off)
    if len(every_series) > 1:
        reason = reason_for(series, candidates, task.site)
        note(Code.SERIES_CHOSEN, f"{series.description or series.series_uid}: {reason}")
    n_all, n_used = len(series.headers), sum(map(len, groups))
    if n_used < n_all:
        detail = f"{n_all - n_used} of {n_all} slices left out: thick ones overlap, one stands for several"
        note(Code.THINNED, detail)
    if len(slices) < n_used:
        detail = f"{n_used} thin slices averaged to {len(slices)} of about {task.thickness_mm:g} mm"
        note(Code.AVERAGED, detail)
    entries += [entry for item in slices for entry in item.entries]
    # Heights of an earlier ordering would not fit: in a series with two gantry tilts, removing a slice may
    # change the axis along which heights are measured.
    heights = dict(zip(names_of(series.headers), series.positions, strict=True))
    rows = [s.row | {"position_mm": fmean(heights[name] for name in s.row["sources"])} for s in slices]
    return series, stack, rows


def _positions_lost(series: Series) -> str:
    """Addition to the reason of a series that shows no head: most of its slices lie at one position."""
    n, n_doubles = len(series.headers), sum(entry.code == Code.DUPLICATE for entry in series.entries)
    if n_doubles <= n:
        return ""
    positions = "one position" if n == 1 else f"{n} positions"
    return f"; {n + n_doubles} slices lie at {positions}: their positions were lost, export the study again"


def _other_pictures(series: Series, root: Path, volumes: Mapping[str, np.ndarray]) -> list[LedgerEntry]:
    """Ledger lines for duplicates whose pixels differ from those of the slice used at the same position."""
    doubles = {entry.file for entry in series.entries if entry.code == Code.DUPLICATE}
    entries = []
    for header in series.left_out:
        if header.path not in doubles:
            continue
        used = min(series.headers, key=lambda head: math.dist(head.position, header.position))
        try:
            dropped, kept = (read_slice(h, root=root, volumes=volumes)[0] for h in (header, used))
            same = np.array_equal(dropped, kept)
        except DicomError:  # unreadable pixels cannot be compared
            continue
        if not same:
            detail = f"its picture is not that of {slice_name(used)}, which is in the same place"
            entries.append(slice_entry(header, Code.OTHER_PICTURE, detail))
    return entries
