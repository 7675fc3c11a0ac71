"""Ordering of the slices of one series.

In: `SliceHeader`s of one series in any order. Out: a `Series`, ordered along the slice normal, with a ledger
entry for each slice left out (a duplicate, or another shape, pixel spacing or orientation) and the entries of
`ich_mil.study.geometry.irregularities`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import median

import numpy as np

from ich_mil.ledger import Code, LedgerEntry
from ich_mil.study.files.header import SliceHeader, slice_entry, slice_name
from ich_mil.study.geometry.irregularities import irregularities, unseen_entries
from ich_mil.study.geometry.planes import (
    SAME_POSITION_MM,
    heights_along,
    mean_normal,
    same_spacing,
    slabs_of,
    steps_of,
    tilt_degrees,
)

LEFT_OUT = {Code.DUPLICATE, Code.OTHER_SHAPE, Code.OTHER_ORIENTATION}
"""Ledger codes of slices that are left out of their series."""


@dataclass(frozen=True)
class Series:
    """One ordered series.

    Attributes:
        series_uid: SeriesInstanceUID; for a joined scan the first in sort order (headers keep their own).
        description: SeriesDescription of the first slice.
        headers: n slices with the same shape and pixel spacing, lowest position first, with one orientation
            or several gantry tilts. The normal points along its nearest patient axis: from feet to head for
            axial slices, whatever the patient's position.
        positions: n positions of the slice centres along the mean normal, mm, strictly increasing.
        entries: ledger entries for left-out slices and irregularities; their `scan` is the study UID.
        left_out: headers of the left-out slices.
        sharp: measured sharpness in words (`ich_mil.study.pixels.sharpness`); '' if soft or not measured.
    """

    study_uid: str
    series_uid: str
    description: str
    headers: tuple[SliceHeader, ...]
    positions: tuple[float, ...]
    entries: tuple[LedgerEntry, ...]
    left_out: tuple[SliceHeader, ...]
    sharp: str = ""

    @property
    def spacing(self) -> float:
        """Median distance between neighbouring slices, mm; 0.0 for one slice."""
        return median(steps_of(self.positions)) if len(self.positions) > 1 else 0.0

    @property
    def extent(self) -> float:
        """Distance from the first to the last slice, mm."""
        return self.positions[-1] - self.positions[0]


def order_slices(members: Sequence[SliceHeader]) -> Series:
    """Order the slices of one series, at least one, with ledger entries for exclusions and irregularities."""
    members = sorted(members, key=_file_order)
    kept, repeated = _each_once(members)
    kept, of_other_shape = _of_one_shape(kept)
    kept, of_other_spacing = _of_one_spacing(kept)
    slabs, turned = slabs_of(kept)
    axis = mean_normal(slabs)
    placed: list[_Placed] = []
    in_the_same_place: list[LedgerEntry] = []
    tilts: list[tuple[int, float]] = []
    for slab in slabs:
        in_slab, doubles = _along(axis, slab)
        placed += in_slab
        in_the_same_place += doubles
        tilts.append((len(in_slab), tilt_degrees(slab[0])))
    positions: list[float] = []
    ordered: list[SliceHeader] = []
    for position, header in sorted(placed, key=itemgetter(0)):
        # Slices of two tilts may have the same centre: keep both, with strictly increasing positions.
        positions.append(max(position, positions[-1] + SAME_POSITION_MM) if positions else position)
        ordered.append(header)

    uid = min(header.series_uid for header in members)
    entries = repeated + of_other_shape + of_other_spacing + turned + in_the_same_place
    taken = {id(header) for header in ordered}
    left_out = tuple(header for header in members if id(header) not in taken)
    entries += unseen_entries(left_out, ordered, positions)
    entries += irregularities(uid, ordered, positions, tilts)
    study, description = members[0].study_uid, ordered[0].description
    return Series(study, uid, description, tuple(ordered), tuple(positions), tuple(entries), left_out)


_Placed = tuple[float, SliceHeader]
"""Position of a slice along the axis of its series (mm), and its header."""


def _each_once(headers: Sequence[SliceHeader]) -> tuple[list[SliceHeader], list[LedgerEntry]]:
    """Keep the first of the slices with the same SOP instance, frame and position; entries for the others.

    The position is compared because some anonymisers give every file the same UID.
    """
    first_of: dict[tuple[str, int, tuple[float, ...]], SliceHeader] = {}
    refused = []
    for header in headers:
        position = tuple(round(mm / SAME_POSITION_MM) for mm in header.position)
        first = first_of.setdefault((header.sop_uid, header.frame, position), header)
        if first is not header:
            detail = f"same SOP Instance UID as {slice_name(first)}"
            refused.append(slice_entry(header, Code.DUPLICATE, detail))
    return list(first_of.values()), refused


def _of_one_shape(headers: Sequence[SliceHeader]) -> tuple[list[SliceHeader], list[LedgerEntry]]:
    """Keep the slices with the most frequent number of rows and columns; entries for the others."""
    shapes = Counter((header.rows, header.columns) for header in headers)
    shape, n_shape = shapes.most_common(1)[0]
    kept = [header for header in headers if (header.rows, header.columns) == shape]
    usual = f"{n_shape} slices of the series have {shape[0]} x {shape[1]}"
    return kept, [
        slice_entry(header, Code.OTHER_SHAPE, f"{header.rows} x {header.columns} pixels; {usual}")
        for header in headers
        if (header.rows, header.columns) != shape
    ]


def _of_one_spacing(headers: Sequence[SliceHeader]) -> tuple[list[SliceHeader], list[LedgerEntry]]:
    """Keep the slices with the most frequent pixel spacing; entries for the others."""
    spacings = Counter(header.spacing for header in headers)
    n_like = {a: sum(n for b, n in spacings.items() if same_spacing(a, b)) for a in spacings}
    spacing = max(n_like, key=n_like.__getitem__)
    kept, refused = [], []
    for header in headers:
        if same_spacing(header.spacing, spacing):
            kept.append(header)
        else:
            size, usual = (" x ".join(f"{mm:.3f}" for mm in both) for both in (header.spacing, spacing))
            detail = f"pixels of {size} mm; {n_like[spacing]} slices of the series have {usual} mm"
            refused.append(slice_entry(header, Code.OTHER_SHAPE, detail))
    return kept, refused


def _along(axis: np.ndarray, slab: Sequence[SliceHeader]) -> tuple[list[_Placed], list[LedgerEntry]]:
    """Order the slices of one tilt along `axis` and keep one per position; entries for the others."""
    placed: list[_Placed] = []
    refused = []
    for position, header in sorted(zip(heights_along(slab, axis), slab, strict=True), key=itemgetter(0)):
        if placed and position - placed[-1][0] <= SAME_POSITION_MM:
            first, second = sorted((placed[-1][1], header), key=_file_order)
            detail = f"same position as {slice_name(first)} ({position:.2f} mm)"
            refused.append(slice_entry(second, Code.DUPLICATE, detail))
            placed[-1] = (placed[-1][0], first)
        else:
            placed.append((position, header))
    return placed, refused


def _file_order(header: SliceHeader) -> tuple[float, str, str, int]:
    """Sort key: instance number (absent last), then SOP UID, path and frame."""
    number = math.inf if header.instance_number is None else header.instance_number
    return number, header.sop_uid, header.path, header.frame
