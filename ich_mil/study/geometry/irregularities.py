"""Ledger entries for gaps and other irregularities of an ordered series.

In: the slices of one series in order with their heights, and the slices left out. Out: a ledger entry per gap
and per irregularity. The series itself is not changed.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from ich_mil.ledger import Code, LedgerEntry
from ich_mil.study.files.header import SliceHeader, slice_entry, slice_name
from ich_mil.study.geometry.planes import (
    AXIAL_DEGREES,
    SAME_ORIENTATION_DEGREES,
    SAME_POSITION_MM,
    TILT_DEGREES,
    TILTS_APART_DEGREES,
    alike,
    by_orientation,
    centre_moves,
    find_gaps,
    heights_along,
    mean_normal,
    normal_of,
    runs_of,
    same_spacing,
    spaces_between,
    steps_of,
    turned_by,
)
from ich_mil.study.geometry.upright import Upright

# Names of the directions +x, -x; +y, -y; +z, -z (PS3.3 C.7.6.2.1.1).
_COURSES = (
    ("right to left", "left to right"),
    ("front to back", "back to front"),
    ("feet to head", "head to feet"),
)
# Maximum number of step runs listed in an entry.
_MOST_RUNS = 8


def irregularities(
    series_uid: str,
    headers: Sequence[SliceHeader],
    positions: Sequence[float],
    tilts: Sequence[tuple[int, float]],
) -> list[LedgerEntry]:
    """Ledger entries for the irregularities of an ordered series: gaps by height, then all others.

    Args:
        series_uid: SeriesInstanceUID for the texts.
        headers: n slices in order.
        positions: n heights along the normal, mm, strictly increasing.
        tilts: (number of slices, degrees) of each gantry tilt.
    """
    gaps = find_gaps(positions, [header.thickness for header in headers])
    entries = _gaps(headers, positions, gaps)

    def note(code: Code, words: str) -> None:
        if words:
            entries.append(LedgerEntry(headers[0].study_uid, "", code, f"series {series_uid}: {words}"))

    note(Code.SPACING_CHANGES, _step_runs(positions, gaps))
    note(Code.TILTED, _tilts(tilts))
    for code, words in turn_notes(headers[0]):
        note(code, words)
    note(Code.CENTRE_MOVES, _moves(headers, positions))
    entries += _other_rescales(headers)
    note(Code.SOP_REPEATED, _repeated_sops(headers))
    return entries


def turn_notes(header: SliceHeader) -> list[tuple[Code, str]]:
    """Codes and details of the changes that `Upright` makes to the pictures of a series."""
    notes = ((Code.FLIPPED, _flips(header)), (Code.PIXELS_NOT_SQUARE, _sides(header)))
    return [(code, words) for code, words in notes if words]


def unseen_entries(
    left_out: Sequence[SliceHeader], headers: Sequence[SliceHeader], positions: Sequence[float]
) -> list[LedgerEntry]:
    """Ledger entry for anatomy that only left-out slices show.

    Counted are left-out slices beyond the ends of the series, and parallel slices between its positions, for
    example if every second slice has another field of view. Slices in between are counted only if a slice
    thickness is unknown; otherwise the thickness itself reveals the spaces (`spaces_between`).

    Ignored are orientations that a gantry cannot reach (sagittal, coronal), and other orientations that cover
    the whole series with less than half of their slices beyond its ends: reformats of the same head.

    Returns:
        One entry, or none if the left-out slices add no anatomy to the n `headers` at n `positions`, mm.
    """
    if not left_out:
        return []
    slabs = by_orientation(headers)
    axis = mean_normal(slabs)
    margin = median(steps_of(positions)) / 2 if len(positions) > 1 else SAME_POSITION_MM
    untold = any(header.thickness is None for header in headers)
    n_below = n_between = n_above = 0
    for group in by_orientation(left_out):
        if np.dot(normal_of(group[0]), axis) < math.cos(math.radians(TILTS_APART_DEGREES)):
            continue
        heights = [heights_along([header], axis)[0] for header in group]  # per slice: image sizes may differ
        below = sum(height < positions[0] - margin for height in heights)
        above = sum(height > positions[-1] + margin for height in heights)
        covers = min(heights) <= positions[0] + margin and max(heights) >= positions[-1] - margin
        turned = all(turned_by(group[0], slab[0]) > SAME_ORIENTATION_DEGREES for slab in slabs)
        if turned and covers and below + above < len(group) / 2:
            continue
        n_below, n_above = n_below + below, n_above + above
        if untold and not turned:
            inside = [height for height in heights if positions[0] < height < positions[-1]]
            n_between += sum(min(abs(height - at) for at in positions) > margin / 2 for height in inside)
    if not n_below + n_between + n_above:
        return []
    where = f"below this one, {n_between} between those used and {n_above} above {slice_name(headers[-1])}"
    detail = f"{n_below} slices {where} are not used"
    return [LedgerEntry(headers[0].study_uid, headers[0].path, Code.GAP, detail)]


def _gaps(
    headers: Sequence[SliceHeader], positions: Sequence[float], gaps: dict[int, float]
) -> list[LedgerEntry]:
    """One entry per gap, and one for all steps that exceed the slice thickness."""
    steps = steps_of(positions)
    entries = []
    for i in sorted(gaps):
        before = "this slice" if headers[i].pixels.frames == 1 else f"frame {headers[i].frame}"
        after, regular = slice_name(headers[i + 1]), f"{gaps[i]:.2f} mm is regular"
        detail = f"{steps[i]:.2f} mm between {before} and {after}, {regular}"
        entries.append(LedgerEntry(headers[i].study_uid, headers[i].path, Code.GAP, detail))
    thickness = [header.thickness for header in headers]
    if spaces := spaces_between(positions, thickness) - gaps.keys():
        first, widest = headers[min(spaces)], max(steps[i] for i in spaces)
        thick = "of unknown thickness" if first.thickness is None else f"{first.thickness:g} mm thick"
        detail = f"{len(spaces)} steps of up to {widest:.2f} mm between slices {thick}"
        entries.append(slice_entry(first, Code.GAP, f"{detail}: the anatomy between them is not seen"))
    return entries


def _step_runs(positions: Sequence[float], gaps: Iterable[int]) -> str:
    """Runs of equal steps in words; '' if the steps are regular."""
    runs = runs_of(steps_of(positions), skip=gaps)
    lengths = [length for length, _ in runs]
    if not runs or alike(min(lengths), max(lengths)):
        return ""
    shown = ", ".join(f"{len(steps)} x {length:.2f}" for length, steps in runs[:_MOST_RUNS])
    return f"steps in mm are {shown}{', ...' if len(runs) > _MOST_RUNS else ''}"


def _tilts(tilts: Sequence[tuple[int, float]]) -> str:
    """Gantry tilts of axial slices in words; '' without tilt."""
    if len(tilts) > 1:
        shown = ", ".join(f"{n} by {tilt:.1f}" for n, tilt in tilts)
        return f"slices have several tilts: {shown} degrees; ordered by their centres"
    ((_, tilt),) = tilts
    if TILT_DEGREES <= tilt <= AXIAL_DEGREES:
        return f"slices are tilted by {tilt:.1f} degrees; ordered along their normal"
    return ""


def _flips(header: SliceHeader) -> str:
    """Unusual row and column directions of an axial slice in words; '' for the usual directions.

    Patient axes are LPS: x from right to left, y from front to back. Usually rows run along +x (the patient's
    left is at the right of the picture) and columns along +y.
    """
    upright = Upright.of(header)
    if not upright.transposed and min(upright.down, upright.across) > 0:
        return ""
    flips = []
    for name, usual in (("rows", 0), ("columns", 1)):
        direction = header.orientation[3 * usual :][:3]
        axis = int(np.argmax(np.abs(direction)))
        if axis != usual or direction[axis] < 0:
            flips.append(f"{name} run from {_COURSES[axis][int(direction[axis] < 0)]}")
    return f"{', '.join(flips)}; the pictures were turned"


def _sides(header: SliceHeader) -> str:
    """Row and column spacing in words; '' if pixels are square."""
    down, across = header.spacing
    if same_spacing([down], [across]):
        return ""
    return f"rows are {down:g} mm apart, columns {across:g} mm; averaged to the coarser spacing"


def _moves(headers: Sequence[SliceHeader], positions: Sequence[float]) -> str:
    """Number and maximum size of in-plane shifts of the picture centre in words; '' without shifts."""
    moves = centre_moves(headers, positions)
    if not moves:
        return ""
    first, furthest = slice_name(headers[min(moves)]), max(moves.values())
    how = f"{len(moves)} times, by up to {furthest:.1f} mm, first after {first}"
    return f"the picture centre moves in the plane {how}"


def _other_rescales(headers: Sequence[SliceHeader]) -> list[LedgerEntry]:
    """One entry per slice whose rescale differs from the majority; none without a majority."""
    rescales = [f"slope {h.pixels.slope:g} and intercept {h.pixels.intercept:g} HU" for h in headers]
    usual, n_usual = Counter(rescales).most_common(1)[0]
    if 2 * n_usual <= len(headers):
        return []
    return [
        slice_entry(header, Code.OTHER_RESCALE, f"{rescale}; {n_usual} slices of the series have {usual}")
        for header, rescale in zip(headers, rescales, strict=True)
        if rescale != usual
    ]


def _repeated_sops(headers: Sequence[SliceHeader]) -> str:
    """Number of slices with a repeated SOP Instance UID in words; '' if there are none."""
    sops = Counter((header.sop_uid, header.frame) for header in headers)
    n_repeated = sum(n for n in sops.values() if n > 1)
    return f"{n_repeated} slices share a SOP Instance UID at different positions" if n_repeated else ""
