"""The slices of one series in order, and what is wrong with them.

In: `SliceHeader`s of one series in any order. Out: a `Series`, ordered along the slice normal, with one
ledger entry for each file that takes no part and for each irregularity.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median

import numpy as np

from ich_mil.dicom.header import SliceHeader
from ich_mil.dicom.planes import (
    AXIAL_DEGREES,
    SAME_ORIENTATION_DEGREES,
    SAME_POSITION_MM,
    TILT_DEGREES,
    centre_moves,
    heights_along,
    normal_of,
    tilt_degrees,
    turned_by,
    unit,
)
from ich_mil.dicom.steps import alike, find_gaps, runs_of, spaces_between
from ich_mil.ledger import Code, LedgerEntry

# Two gantry tilts in one scan, skull base and cerebrum: a gantry turns by 30 degrees at most, both one way.
# Their planes converge, so the centres may pass each other, but not by half of a slab.
TILTS_APART_DEGREES = 35.0
TILT_SLICES = 3
TILT_OVERLAP = 0.5
# Pixel spacings (and with them fields of view) that differ by no more are the same: makers round to 3 digits.
# Those of rows and of columns too: such pixels are square.
SAME_SPACING = 0.01

# Along x, y and z, and against them (PS3.3 C.7.6.2.1.1).
_COURSES = (
    ("right to left", "left to right"),
    ("front to back", "back to front"),
    ("feet to head", "head to feet"),
)

LEFT_OUT = {Code.DUPLICATE, Code.OTHER_SHAPE, Code.OTHER_ORIENTATION}
"""Codes of the entries that stand for a slice which takes no part."""


@dataclass(frozen=True)
class Series:
    """One series in order.

    Args:
        study_uid: StudyInstanceUID.
        series_uid: SeriesInstanceUID; of a joined scan the one that sorts first, the headers keep theirs.
        description: SeriesDescription of the first slice.
        headers: n slices of one shape and pixel spacing, lowest position first, of one orientation or of
            several gantry tilts. The normal points along the patient axis it is nearest to: from feet to head
            for axial slices, however the patient lay.
        positions: n positions along the normal, mm, strictly rising; of several tilts those of the slice
            centres along the mean normal.
        entries: files of the series that take no part, and what is irregular; `scan` is the study UID.
        left_out: the headers of those files.
    """

    study_uid: str
    series_uid: str
    description: str
    headers: tuple[SliceHeader, ...]
    positions: tuple[float, ...]
    entries: tuple[LedgerEntry, ...]
    left_out: tuple[SliceHeader, ...]

    @property
    def spacing(self) -> float:
        """Median step between neighbours, mm; 0.0 for one slice."""
        return median(b - a for a, b in pairwise(self.positions)) if len(self.positions) > 1 else 0.0

    @property
    def extent(self) -> float:
        """Distance from the first to the last slice, mm."""
        return self.positions[-1] - self.positions[0]


def order_slices(members: Sequence[SliceHeader]) -> Series:
    """Order the slices of one series and write down what does not belong or is irregular."""
    members = sorted(members, key=_file_order)
    kept, repeated = _each_once(members)
    kept, of_other_shape = _of_one_shape(kept)
    kept, of_other_spacing = _of_one_spacing(kept)
    slabs, turned = _slabs(kept)
    axis = _mean_normal(slabs)
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
        # Planes of two tilts may cross in their centres: both are kept, and the positions still rise.
        positions.append(max(position, positions[-1] + SAME_POSITION_MM) if positions else position)
        ordered.append(header)

    uid = min(header.series_uid for header in members)
    entries = repeated + of_other_shape + of_other_spacing + turned + in_the_same_place
    taken = {id(header) for header in ordered}
    left_out = tuple(header for header in members if id(header) not in taken)
    entries += beyond_entries(left_out, ordered, positions)
    entries += _irregularities(uid, ordered, positions, tilts)
    return Series(
        study_uid=members[0].study_uid,
        series_uid=uid,
        description=ordered[0].description,
        headers=tuple(ordered),
        positions=tuple(positions),
        entries=tuple(entries),
        left_out=left_out,
    )


def slice_name(header: SliceHeader) -> str:
    """How the ledger names a slice: its path, and of a multi-frame file the frame, counted from 0."""
    return header.path if header.pixels.frames == 1 else f"{header.path} frame {header.frame}"


def slice_file(root: Path, name: str) -> tuple[Path, int]:
    """The file below `root` and the frame in it that `slice_name` named."""
    found = re.fullmatch(r"(.*) frame (\d+)", name, re.DOTALL)
    if found and not (root / name).exists():
        return root / found[1], int(found[2])
    return root / name, 0


def slice_entry(header: SliceHeader, code: Code, detail: str) -> LedgerEntry:
    """A ledger line about one slice."""
    frame = "" if header.pixels.frames == 1 else f"frame {header.frame}: "
    return LedgerEntry(header.study_uid, header.path, code, frame + detail)


def beyond_entries(
    left_out: Sequence[SliceHeader], headers: Sequence[SliceHeader], positions: Sequence[float]
) -> list[LedgerEntry]:
    """An entry if slices that take no part lie beyond those that do: what they show is not seen.

    Those whose planes a gantry could not have, sagittal and coronal ones, are left aside, and so are those of
    one orientation that cover all the others besides: a reformat of the same head reaches further than it.

    Args:
        left_out: slices that take no part.
        headers: n slices in order.
        positions: n heights along the normal, mm, strictly rising.
    """
    if not left_out:
        return []
    slabs = _by_orientation(headers)
    axis = _mean_normal(slabs)
    margin = median(b - a for a, b in pairwise(positions)) / 2 if len(positions) > 1 else SAME_POSITION_MM
    n_below = n_above = 0
    for group in _by_orientation(left_out):
        if np.dot(normal_of(group[0]), axis) < math.cos(math.radians(TILTS_APART_DEGREES)):
            continue
        heights = [heights_along([header], axis)[0] for header in group]  # centres of pictures of any size
        below = sum(height < positions[0] - margin for height in heights)
        above = sum(height > positions[-1] + margin for height in heights)
        covers = min(heights) <= positions[0] + margin and max(heights) >= positions[-1] - margin
        turned = all(turned_by(group[0], slab[0]) > SAME_ORIENTATION_DEGREES for slab in slabs)
        if turned and covers and below + above < len(group) / 2:
            continue
        n_below, n_above = n_below + below, n_above + above
    if not n_below + n_above:
        return []
    detail = f"{n_below} slices below this one and {n_above} above {slice_name(headers[-1])} take no part"
    return [LedgerEntry(headers[0].study_uid, headers[0].path, Code.GAP, detail)]


_Placed = tuple[float, SliceHeader]
"""A slice and its position along the axis of its series, mm."""


def _each_once(headers: Sequence[SliceHeader]) -> tuple[list[SliceHeader], list[LedgerEntry]]:
    """The first of each SOP instance and frame, and entries for the others.

    Some anonymisers give every file the same UID: at another position it is another slice.
    """
    first_of: dict[tuple[str, int, tuple[float, ...]], SliceHeader] = {}
    refused = []
    for header in headers:
        place = tuple(round(mm / SAME_POSITION_MM) for mm in header.position)
        first = first_of.setdefault((header.sop_uid, header.frame, place), header)
        if first is not header:
            detail = f"same SOP Instance UID as {slice_name(first)}"
            refused.append(slice_entry(header, Code.DUPLICATE, detail))
    return list(first_of.values()), refused


def _of_one_shape(headers: Sequence[SliceHeader]) -> tuple[list[SliceHeader], list[LedgerEntry]]:
    """The slices of the commonest number of rows and columns, and entries for the others."""
    shapes = Counter((header.rows, header.columns) for header in headers)
    shape, n_shape = shapes.most_common(1)[0]
    kept, refused = [], []
    for header in headers:
        if (header.rows, header.columns) == shape:
            kept.append(header)
        else:
            here, there = f"{header.rows} x {header.columns}", f"{shape[0]} x {shape[1]}"
            detail = f"{here} pixels; {n_shape} slices of the series have {there}"
            refused.append(slice_entry(header, Code.OTHER_SHAPE, detail))
    return kept, refused


def _of_one_spacing(headers: Sequence[SliceHeader]) -> tuple[list[SliceHeader], list[LedgerEntry]]:
    """The slices of the commonest pixel spacing, and entries for the others."""
    spacings = Counter(header.spacing for header in headers)
    n_like = {one: sum(n for other, n in spacings.items() if _same_spacing(one, other)) for one in spacings}
    spacing = max(n_like, key=n_like.__getitem__)
    kept, refused = [], []
    for header in headers:
        if _same_spacing(header.spacing, spacing):
            kept.append(header)
        else:
            here, there = (" x ".join(f"{mm:.3f}" for mm in both) for both in (header.spacing, spacing))
            detail = f"pixels of {here} mm; {n_like[spacing]} slices of the series have {there} mm"
            refused.append(slice_entry(header, Code.OTHER_SHAPE, detail))
    return kept, refused


def _slabs(headers: Sequence[SliceHeader]) -> tuple[list[list[SliceHeader]], list[LedgerEntry]]:
    """The slices of each gantry tilt, the most first, and entries for those turned in another way."""
    slabs: list[list[SliceHeader]] = []
    refused = []
    for cluster in sorted(_by_orientation(headers), key=len, reverse=True):
        if all(_is_other_tilt(cluster, slab) for slab in slabs):
            slabs.append(cluster)
            continue
        for header in cluster:
            angle = turned_by(header, slabs[0][0])
            detail = f"turned by {angle:.1f} degrees against {len(slabs[0])} slices of the series"
            refused.append(slice_entry(header, Code.OTHER_ORIENTATION, detail))
    return slabs, refused


def _mean_normal(slabs: Sequence[Sequence[SliceHeader]]) -> np.ndarray:
    """The unit normal of slices of several orientations together."""
    return unit(np.sum([len(slab) * normal_of(slab[0]) for slab in slabs], axis=0))


def _by_orientation(headers: Sequence[SliceHeader]) -> list[list[SliceHeader]]:
    """The slices of each orientation."""
    clusters: list[list[SliceHeader]] = []
    for header in headers:
        for cluster in clusters:
            if turned_by(header, cluster[0]) <= SAME_ORIENTATION_DEGREES:
                cluster.append(header)
                break
        else:
            clusters.append([header])
    return clusters


def _along(axis: np.ndarray, slab: Sequence[SliceHeader]) -> tuple[list[_Placed], list[LedgerEntry]]:
    """The slices of one tilt in order along `axis`, one at each position, and entries for the others."""
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
    """By instance number, those without one last; then SOP UID, path and frame."""
    number = math.inf if header.instance_number is None else header.instance_number
    return number, header.sop_uid, header.path, header.frame


def _same_spacing(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Whether two pixel spacings (mm) differ by no more than rounding."""
    return all(math.isclose(one, other, rel_tol=SAME_SPACING) for one, other in zip(a, b, strict=True))


def _is_other_tilt(cluster: Sequence[SliceHeader], slab: Sequence[SliceHeader]) -> bool:
    """Whether `cluster` goes on where `slab` ends, with the gantry turned about the row direction."""
    a, b = cluster[0], slab[0]
    same_row = math.cos(math.radians(SAME_ORIENTATION_DEGREES))
    if np.dot(a.orientation[:3], b.orientation[:3]) < same_row or min(len(cluster), len(slab)) < TILT_SLICES:
        return False
    axis = unit(normal_of(a) + normal_of(b))
    (low, high), (bottom, top) = (
        (min(heights), max(heights)) for heights in (heights_along(cluster, axis), heights_along(slab, axis))
    )
    overlap = min(high, top) - max(low, bottom)
    return turned_by(a, b) <= TILTS_APART_DEGREES and overlap <= TILT_OVERLAP * min(high - low, top - bottom)


def _irregularities(
    uid: str, headers: Sequence[SliceHeader], positions: Sequence[float], tilts: Sequence[tuple[int, float]]
) -> list[LedgerEntry]:
    """What is irregular in an ordered series, whose tilts are given as (slices, degrees)."""
    study = headers[0].study_uid
    entries = []
    gaps = find_gaps(headers, positions)
    for i in sorted(gaps):
        step, after = positions[i + 1] - positions[i], slice_name(headers[i + 1])
        here = "this slice" if headers[i].pixels.frames == 1 else f"frame {headers[i].frame}"
        detail = f"{step:.2f} mm between {here} and {after}, {gaps[i]:.2f} mm is regular"
        entries.append(LedgerEntry(study, headers[i].path, Code.GAP, detail))
    if spaces := spaces_between(headers, positions).keys() - gaps.keys():
        first = headers[min(spaces)]
        widest = max(positions[i + 1] - positions[i] for i in spaces)
        detail = f"{len(spaces)} steps of up to {widest:.2f} mm between slices {first.thickness:g} mm thick"
        entries.append(slice_entry(first, Code.GAP, f"{detail}: what lies between is not seen"))
    runs = runs_of([b - a for a, b in pairwise(positions)], skip=gaps.keys())
    lengths = [length for length, _ in runs]
    if runs and not alike(min(lengths), max(lengths)):
        shown = ", ".join(f"{len(steps)} x {length:.2f}" for length, steps in runs[:8])
        detail = f"series {uid}: steps in mm are {shown}{', ...' if len(runs) > 8 else ''}"
        entries.append(LedgerEntry(study, "", Code.SPACING_CHANGES, detail))
    if len(tilts) > 1:
        shown = ", ".join(f"{n} by {tilt:.1f}" for n, tilt in tilts)
        detail = f"series {uid}: slices have several tilts: {shown} degrees; ordered by their centres"
        entries.append(LedgerEntry(study, "", Code.TILTED, detail))
    elif TILT_DEGREES <= tilts[0][1] <= AXIAL_DEGREES:
        detail = f"series {uid}: slices are tilted by {tilts[0][1]:.1f} degrees; ordered along their normal"
        entries.append(LedgerEntry(study, "", Code.TILTED, detail))
    if flips := _flips(headers[0]):
        detail = f"series {uid}: {flips}; the pixels are left as they are"
        entries.append(LedgerEntry(study, "", Code.FLIPPED, detail))
    down, across = headers[0].spacing
    if not math.isclose(down, across, rel_tol=SAME_SPACING):
        detail = f"series {uid}: rows are {down:g} mm apart, columns {across:g} mm; the pixels are left as"
        entries.append(LedgerEntry(study, "", Code.PIXELS_NOT_SQUARE, f"{detail} they are"))
    if moves := centre_moves(headers, positions):
        at, furthest = slice_name(headers[min(moves)]), max(moves.values())
        detail = f"series {uid}: the picture centre moves in the plane {len(moves)} times, by up to"
        detail = f"{detail} {furthest:.1f} mm, first after {at}"
        entries.append(LedgerEntry(study, "", Code.CENTRE_MOVES, detail))
    entries += _other_rescales(headers)
    sops = Counter((header.sop_uid, header.frame) for header in headers)
    if n_repeated := sum(n for n in sops.values() if n > 1):
        detail = (
            f"series {uid}: {n_repeated} slices share a SOP Instance UID with another at another position"
        )
        entries.append(LedgerEntry(study, "", Code.SOP_REPEATED, detail))
    return entries


def _other_rescales(headers: Sequence[SliceHeader]) -> list[LedgerEntry]:
    """An entry for each slice whose rescale is not that of most others; none where each may have its own."""
    rescales = [f"slope {h.pixels.slope:g} and intercept {h.pixels.intercept:g} HU" for h in headers]
    usual, n_usual = Counter(rescales).most_common(1)[0]
    if 2 * n_usual <= len(headers):
        return []
    return [
        slice_entry(header, Code.OTHER_RESCALE, f"{rescale}; {n_usual} slices of the series have {usual}")
        for header, rescale in zip(headers, rescales, strict=True)
        if rescale != usual
    ]


def _flips(header: SliceHeader) -> str:
    """How the rows and columns of an axial slice run, in words; empty where they run as is usual.

    Patient axes are LPS: x from right to left, y from front to back. Usual are rows along x (the patient's
    left at the right of the picture) and columns along y.
    """
    if tilt_degrees(header) > AXIAL_DEGREES:
        return ""
    flips = []
    for name, usual, direction in (
        ("rows", 0, header.orientation[:3]),
        ("columns", 1, header.orientation[3:]),
    ):
        axis = int(np.argmax(np.abs(direction)))
        if axis != usual or direction[axis] < 0:
            flips.append(f"{name} run from {_COURSES[axis][int(direction[axis] < 0)]}")
    return ", ".join(flips)
