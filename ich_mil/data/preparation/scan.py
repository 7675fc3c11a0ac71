"""Preparation of one scan: choose a series, order its slices, read them as HU and write one file.

In: the headers of all slices of a scan. Out: `scans/<scan>.npy` and, written last, `scans/<scan>.json`
(`data.preparation.record`). Series are tried in the order of `rank_series` until one shows a head. An
unreadable slice is removed and the rest are ordered again, so that a duplicate can replace it and a gap is
reported.

Legend: `n` slices of the scan, `H, W` pixels.
"""

import math
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from ich_mil.data.preparation.record import ScanRecord, write_record
from ich_mil.data.store import scan_file
from ich_mil.dicom.anatomy import head_cut_off, head_refusal
from ich_mil.dicom.contrast_words import SitePhrases
from ich_mil.dicom.files.header import SliceHeader, slice_entry, slice_name
from ich_mil.dicom.geometry.order import Series
from ich_mil.dicom.geometry.planes import AXIAL_DEGREES, tilt_degrees
from ich_mil.dicom.pixels.read import read_slice
from ich_mil.dicom.series import average_groups, group_series
from ich_mil.dicom.series_choice import kind_entries, not_chosen, rank_series, reason_for
from ich_mil.errors import DicomError
from ich_mil.files import digest, write_array
from ich_mil.ledger import Code, LedgerEntry


class ScanTask(NamedTuple):
    """Input of a worker: one scan to prepare.

    Attributes:
        scan: scan id.
        headers: headers of all slices of the scan; paths are relative to `root`.
        fingerprint: digest of the inputs (`ich_mil.data.preparation.record.scan_fingerprint`).
        thickness_mm: thin slices are averaged to about this thickness in mm; 0 leaves them unchanged.
        root: folder of the DICOM files.
        out: folder of the prepared set.
        site: contrast words of the site.
    """

    scan: str
    headers: list[SliceHeader]
    fingerprint: str
    thickness_mm: float
    root: Path
    out: Path
    site: SitePhrases = ()


def prepare_scans(tasks: Sequence[ScanTask]) -> int:
    """Prepare several scans, in a worker process. Returns their number.

    Each scan is written in a second thread while the next scan is read.
    """
    with ThreadPoolExecutor(1) as writer:
        writing: Future[None] | None = None
        for task in tasks:
            record, stack = _prepare(task)
            if writing is not None:
                writing.result()  # limits memory to two scans, and raises the error of a full disk
            writing = writer.submit(write_scan, task, record, stack)
        if writing is not None:
            writing.result()
    return len(tasks)


def write_scan(task: ScanTask, record: ScanRecord, stack: np.ndarray | None) -> None:
    """Write the HU (n, H, W) of a scan, then its record. `stack` is None if no slice can be used."""
    path = scan_file(task.out, task.scan)
    if stack is None:
        path.unlink(missing_ok=True)
    else:
        write_array(path, stack)
        record = replace(record, n_bytes=path.stat().st_size)
    write_record(task.out, task.scan, record)


def _prepare(task: ScanTask) -> tuple[ScanRecord, np.ndarray | None]:
    """Record and HU (n, H, W) of a scan, lowest slice first. The HU are None if no slice can be used."""
    chosen, entries = _choose_and_read(task)
    if chosen is None:
        detail = "none of its series shows a head that can be read; the scan is left out"
        entries.append(LedgerEntry(task.scan, "", Code.SCAN_EMPTY, detail))
    # With two patients under one study UID, the head of one may be in a series that was not chosen.
    patients = _patients(chosen.series.headers if chosen else ())
    patients += [key for key in _patients(task.headers) if key not in patients]
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
        pixel_mm=chosen.series.headers[0].spacing if chosen else (0.0, 0.0),
        slices=chosen.rows if chosen else [],
        entries=[LedgerEntry(task.scan, entry.file, entry.code, entry.detail) for entry in entries],
    )
    return record, chosen.stack if chosen else None


def _patients(headers: Sequence[SliceHeader]) -> list[str]:
    """Sorted distinct patient keys of the headers."""
    return sorted({header.patient_id for header in headers if header.patient_id})


class _Slice(NamedTuple):
    """One prepared slice: HU (H, W), row of the record without `position_mm`, ledger lines."""

    picture: np.ndarray
    row: dict[str, Any]
    entries: list[LedgerEntry]


class _Chosen(NamedTuple):
    """The series chosen for a scan, the HU of its slices (n, H, W), and their rows of the record."""

    series: Series
    stack: np.ndarray
    rows: list[dict[str, Any]]


class _UnreadableError(Exception):
    """A slice whose pixels cannot be read or are refused."""

    def __init__(self, header: SliceHeader, entry: LedgerEntry) -> None:
        super().__init__()
        self.header = header
        self.entry = entry


def _choose_and_read(task: ScanTask) -> tuple[_Chosen | None, list[LedgerEntry]]:
    """Choose and read a series; None if no series shows a head. Also returns all ledger lines."""
    refused: list[LedgerEntry] = []
    headers = list(task.headers)
    no_heads: set[tuple[str, ...]] = set()
    done: dict[tuple[str, ...], _Slice] = {}
    while True:
        every_series = [series for study in group_series(headers).values() for series in study]
        candidates = [series for series in every_series if _names(series.headers) not in no_heads]
        if not candidates:
            return None, refused
        series = rank_series(candidates, task.site)[0]
        groups = _groups(series, task.thickness_mm)
        stack, unreadable = _read(series, groups, task, done)
        if unreadable:
            refused += [error.entry for error in unreadable]
            lost = {slice_name(error.header) for error in unreadable}
            headers = [header for header in headers if slice_name(header) not in lost]
            continue
        slices = [done[_names(group)] for group in groups]
        no_head = head_refusal(stack, spacing=series.headers[0].spacing)
        if no_head is None:
            break
        detail = (
            f"series {series.description!r} ({series.series_uid}), {len(series.headers)} slices: {no_head}"
        )
        refused += [slice_entry(series.headers[0], Code.NO_HEAD, detail), *series.entries]
        no_heads.add(_names(series.headers))
        done.clear()
    entries = [*refused, *not_chosen(series, candidates, task.site)]
    entries += [*kind_entries(series, task.site), *series.entries]
    entries += _other_pictures(series, task.root)
    is_axial = tilt_degrees(series.headers[0]) <= AXIAL_DEGREES
    if is_axial and (cut_off := head_cut_off(stack, spacing=series.headers[0].spacing)):
        entries.append(LedgerEntry(task.scan, "", Code.PART_OF_HEAD, cut_off))
    if len(every_series) > 1:
        reason = f"{series.description or series.series_uid}: {reason_for(series, candidates, task.site)}"
        entries.append(LedgerEntry(task.scan, "", Code.SERIES_CHOSEN, reason))
    n_used = sum(len(item.row["sources"]) for item in slices)
    if n_used < len(series.headers):
        n_left, n_all = len(series.headers) - n_used, len(series.headers)
        detail = f"{n_left} of {n_all} slices left out: thick ones overlap, one stands for several"
        entries.append(LedgerEntry(task.scan, "", Code.THINNED, detail))
    if len(slices) < n_used:
        detail = f"{n_used} thin slices averaged to {len(slices)} of about {task.thickness_mm:g} mm"
        entries.append(LedgerEntry(task.scan, "", Code.AVERAGED, detail))
    entries += [entry for item in slices for entry in item.entries]
    return _Chosen(series, stack, _rows(series, slices)), entries


def _rows(series: Series, slices: Sequence[_Slice]) -> list[dict[str, Any]]:
    """Rows of the record, with heights from the final series.

    Heights of an earlier ordering would not fit: in a series with two gantry tilts, removing a slice may
    change the axis along which heights are measured.
    """
    heights = dict(zip(_names(series.headers), series.positions, strict=True))
    return [
        item.row | {"position_mm": fmean(heights[name] for name in item.row["sources"])} for item in slices
    ]


def _other_pictures(series: Series, root: Path) -> list[LedgerEntry]:
    """Ledger lines for duplicates whose pixels differ from those of the slice used at the same position."""
    doubles = {entry.file for entry in series.entries if entry.code == Code.DUPLICATE}
    entries = []
    for header in series.left_out:
        if header.path not in doubles:
            continue
        used = min(series.headers, key=lambda one: math.dist(one.position, header.position))
        try:
            same = np.array_equal(read_slice(header, root=root)[0], read_slice(used, root=root)[0])
        except DicomError:  # unreadable pixels cannot be compared
            continue
        if not same:
            detail = f"its picture is not that of {slice_name(used)}, which is in the same place"
            entries.append(slice_entry(header, Code.OTHER_PICTURE, detail))
    return entries


def _names(headers: Sequence[SliceHeader]) -> tuple[str, ...]:
    return tuple(slice_name(header) for header in headers)


def _groups(series: Series, thickness_mm: float) -> list[tuple[SliceHeader, ...]]:
    """Group the slices that are averaged to one output slice, lowest group first."""
    if not thickness_mm:
        return [(header,) for header in series.headers]
    groups = average_groups(series, thickness=thickness_mm)
    return [tuple(series.headers[i] for i in group) for group in groups]


def _read(
    series: Series,
    groups: Sequence[tuple[SliceHeader, ...]],
    task: ScanTask,
    done: dict[tuple[str, ...], _Slice],
) -> tuple[np.ndarray, list[_UnreadableError]]:
    """Read the slice groups of a series into one stack, and register them in the cache `done`.

    Groups in `done` are copied to the stack and not read again. Afterwards the pictures in `done` are views
    of this stack.

    Returns:
        HU (n, H, W), and the slices that could not be read. Their rows of the stack are undefined.
    """
    first = series.headers[0]
    # One large allocation gets large memory pages; separate allocations take as long as decoding.
    stack = np.empty((len(groups), first.rows, first.columns), dtype=np.int16)
    unreadable = []
    for picture, group in zip(stack, groups, strict=True):
        try:
            old = done.get(_names(group)) or _read_group(group, task)
        except _UnreadableError as error:
            unreadable.append(error)
        else:
            picture[:] = old.picture
            done[_names(group)] = old._replace(picture=picture)
    return stack, unreadable


def _read_group(group: Sequence[SliceHeader], task: ScanTask) -> _Slice:
    """Read the slices of a group and average them; a single slice is unchanged."""
    total: np.ndarray | None = None
    corrections: set[Code] = set()
    entries: list[LedgerEntry] = []
    place = np.mean([header.position for header in group], axis=0)  # (3,)
    for header in group:
        try:
            hu, notes = read_slice(header, root=task.root)
        except DicomError as error:
            reason = str(error).removeprefix(f"{task.root}{os.sep}")
            raise _UnreadableError(header, slice_entry(header, Code(error.code), reason)) from error
        for code, detail in [*header.notes, *notes]:
            corrections.add(code)
            entries.append(slice_entry(header, code, detail))
        hu = _in_place(hu, header, place) if len(group) > 1 else hu
        total = hu if total is None else np.add(total, hu, dtype=np.int32)
    assert total is not None, "a group has a slice"
    if len(group) > 1:
        corrections.add(Code.AVERAGED)
        total = np.rint(total / len(group)).astype(np.int16)
    middle = group[len(group) // 2]
    row = {
        "sources": list(_names(group)),
        "sops": [header.sop_uid for header in group],
        "sop": middle.sop_uid,
        "orientation": middle.orientation,
        "corrections": sorted(corrections),
        "content": digest(total.tobytes()),
    }
    return _Slice(total, row, entries)


def _in_place(hu: np.ndarray, header: SliceHeader, place: np.ndarray) -> np.ndarray:
    """Shift a slice in its plane by whole pixels, so that its first pixel aligns with `place` (3,), mm.

    With a tilted gantry, slices drift in their plane as the couch moves, by 1.6 mm per 5 mm at 20 degrees.
    Without the shift, the pixelwise mean would smear the skull over the brain. Edge pixels are repeated.
    """
    away = place - header.position
    down = round(float(away @ header.orientation[3:]) / header.spacing[0])
    across = round(float(away @ header.orientation[:3]) / header.spacing[1])
    if not (down or across):
        return hu
    rows, columns = (
        (np.arange(n) + by).clip(0, n - 1) for n, by in zip(hu.shape, (down, across), strict=True)
    )
    return hu[np.ix_(rows, columns)]
