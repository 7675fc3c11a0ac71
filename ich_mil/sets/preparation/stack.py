"""Pixels of the slices of one series: read, averaged in groups and turned, with their rows of the record.

Legend: `n` slices of the scan, `H, W` pixels of its turned pictures (`ich_mil.study.geometry.upright`).
"""

import os
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ich_mil.errors import DicomError
from ich_mil.files import digest
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.study.files.header import SliceHeader, slice_entry, slice_name
from ich_mil.study.geometry.upright import Upright
from ich_mil.study.pixels.read import read_slice

Names = tuple[str, ...]
"""`slice_name` of the slices of a series or group."""


def slice_row(
    group: Sequence[SliceHeader], *, content: np.ndarray, codes: Set[Code], upright: Upright
) -> dict[str, Any]:
    """Row of the record, without `position_mm`, of a slice `content` (H, W): the mean of a group, turned."""
    middle = group[len(group) // 2]
    return {
        "sources": list(names_of(group)),
        "sops": [header.sop_uid for header in group],
        "sop": middle.sop_uid,
        "orientation": upright.orientation(middle.orientation),
        "corrections": sorted(codes),
        "content": digest(content.tobytes()),
    }


def names_of(headers: Sequence[SliceHeader]) -> Names:
    """Names of slices in the ledger."""
    return tuple(slice_name(header) for header in headers)


class PreparedSlice(NamedTuple):
    """One prepared slice: HU (H, W), row of the record without `position_mm`, ledger lines."""

    picture: np.ndarray
    row: dict[str, Any]
    entries: list[LedgerEntry]


def read_stack(
    upright: Upright, groups: Sequence[tuple[SliceHeader, ...]], root: Path, done: dict[Names, PreparedSlice]
) -> tuple[np.ndarray, dict[str, LedgerEntry]]:
    """Read the slice groups of a series into one stack (n, H, W), and ledger lines of unreadable slices.

    Groups in the cache `done` are copied. Afterwards the pictures in `done` are views of this stack.
    """
    # One large allocation gets large memory pages; separate allocations take as long as decoding.
    stack = np.empty((len(groups), *upright.shape), dtype=np.int16)
    unreadable: dict[str, LedgerEntry] = {}
    for picture, group in zip(stack, groups, strict=True):
        names = names_of(group)
        group_slice = done.get(names) or _read_group(group, root, upright)
        if isinstance(group_slice, dict):
            unreadable |= group_slice
        else:
            picture[:] = group_slice.picture
            done[names] = group_slice._replace(picture=picture)
    return stack, unreadable


def _read_group(
    group: Sequence[SliceHeader], root: Path, upright: Upright
) -> PreparedSlice | dict[str, LedgerEntry]:
    """Read, average and turn the slices of a group, or the ledger line by name of an unreadable slice."""
    pictures: list[np.ndarray] = []
    codes: set[Code] = set()
    entries: list[LedgerEntry] = []
    centre = np.mean([header.position for header in group], axis=0)  # (3,)
    for header in group:
        try:
            hu, notes = read_slice(header, root=root)
        except DicomError as error:
            detail = str(error).removeprefix(f"{root}{os.sep}")
            return {slice_name(header): slice_entry(header, Code(error.code), detail)}
        for code, detail in [*header.notes, *notes]:
            codes.add(code)
            entries.append(slice_entry(header, code, detail))
        pictures.append(hu)
    picture = pictures[0]
    if len(group) > 1:
        codes.add(Code.AVERAGED)
        moved = [_aligned(hu, header, centre) for hu, header in zip(pictures, group, strict=True)]
        picture = np.rint(np.sum(moved, axis=0, dtype=np.int32) / len(group)).astype(np.int16)
    picture = upright.picture(picture)
    return PreparedSlice(picture, slice_row(group, content=picture, codes=codes, upright=upright), entries)


def _aligned(hu: np.ndarray, header: SliceHeader, position: np.ndarray) -> np.ndarray:
    """Shift a slice in its plane by whole pixels, so that its first pixel aligns with `position` (3,), mm.

    With a tilted gantry, slices drift in their plane as the couch moves, by 1.6 mm per 5 mm at 20 degrees.
    Without the shift, the pixelwise mean would smear the skull over the brain. Edge pixels are repeated.
    """
    away = position - header.position
    down = round(float(away @ header.orientation[3:]) / header.spacing[0])
    across = round(float(away @ header.orientation[:3]) / header.spacing[1])
    if not (down or across):
        return hu
    rows, columns = (
        (np.arange(n) + by).clip(0, n - 1) for n, by in zip(hu.shape, (down, across), strict=True)
    )
    return hu[np.ix_(rows, columns)]
