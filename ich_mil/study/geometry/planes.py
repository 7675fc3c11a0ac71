"""Geometry of slice planes: normals, gantry tilts, heights, steps and gaps, and patient sides.

In: `SliceHeader`s, their orientations, or their positions along an axis. Out: vectors in patient coordinates,
lengths [mm], angles [degrees], groups of slices by gantry tilt, steps with missing slices, and the letters of
patient directions.

Source: DICOM PS3.3 C.7.6.2.1.1 (position and orientation: the normal is row x column, patient axes are LPS),
C.7.6.1.1.1 (Patient Orientation: letters of directions).
Legend: `n` slices of a series in order; steps are the n - 1 distances between neighbours, mm.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from ich_mil.ledger import Code, LedgerEntry
from ich_mil.study.files.header import SliceHeader, slice_entry

# Tolerance for equal positions: scanners write at least 0.01 mm.
SAME_POSITION_MM = 0.01
# Tolerance for equal orientations.
SAME_ORIENTATION_DEGREES = 0.5
# Relative tolerance for equal pixel spacings, because manufacturers round to 3 digits. It also applies to row
# against column spacing, to decide whether pixels are square.
SAME_SPACING = 0.01
# Minimum tilt that is reported.
TILT_DEGREES = 1.0
# Maximum tilt of an axial slice.
AXIAL_DEGREES = 45.0
# Minimum in-plane shift of the picture centre that means another field of view: couch motion and rounding
# shift it by less than 1 mm.
CENTRE_MOVES_MM = 5.0
# A scan may have two gantry tilts, for skull base and cerebrum. A gantry tilts by at most 30 degrees, both
# times in the same direction. The planes converge, so the slabs may overlap, by at most half of a slab.
TILTS_APART_DEGREES = 35.0
TILT_SLICES = 3
TILT_OVERLAP = 0.5
# Absolute and relative tolerance for equal steps, added: rounding (0.6, 0.7 for 0.625 mm) and one tenth.
STEP_TOLERANCE_MM = 0.1
STEP_TOLERANCE = 0.1
# Minimum number of equal steps that form a slab rather than an irregularity.
SLAB_STEPS = 3
# A step longer than the adjacent regular step by this factor lacks at least one slice.
GAP_FACTOR = 1.5
# Slices abut if their step is at most the thickness times this factor: a thicker slab, not a gap.
ABUTTING_FACTOR = 1.2
# Slices of a head are at most so far apart: longer steps lack slices, unless the slices are as thick.
LONGEST_STEP_MM = 8.0
# Letters of the directions +x, -x (left, right); +y, -y (posterior, anterior); +z, -z (head, feet).
_LETTERS = (("L", "R"), ("P", "A"), ("H", "F"))


class Edges(NamedTuple):
    """Patient side at each edge of a picture: R, L, A, P, H or F."""

    left: str
    right: str
    top: str
    bottom: str


def edges_of(orientation: Sequence[float]) -> Edges | None:
    """Patient sides at the edges of a picture with the stored pixel order.

    Args:
        orientation: ImageOrientationPatient, six direction cosines: three of the rows, which run to the right
            edge, and three of the columns, which run to the bottom edge. An oblique direction gets the letter
            of its largest component.

    Returns:
        One letter per edge; None if `orientation` is invalid.
    """
    if len(orientation) != 6 or not all(map(math.isfinite, orientation)):
        return None
    row, column = orientation[:3], orientation[3:]
    if not any(row) or not any(column):
        return None
    (right, left), (bottom, top) = _letters(row), _letters(column)
    return Edges(left, right, top, bottom)


def _letters(direction: Sequence[float]) -> tuple[str, str]:
    """Patient sides that a direction points to and comes from."""
    axis = int(np.argmax(np.abs(direction)))
    along, against = _LETTERS[axis]
    return (along, against) if direction[axis] > 0 else (against, along)


def normal_of(header: SliceHeader) -> np.ndarray:
    """Unit normal of the slice (3,), signed to point along its nearest patient axis."""
    normal = _unit(np.cross(header.orientation[:3], header.orientation[3:]))
    return normal if normal[np.argmax(np.abs(normal))] > 0 else -normal


def mean_normal(slabs: Sequence[Sequence[SliceHeader]]) -> np.ndarray:
    """Mean unit normal (3,) of slices with several orientations, weighted by their number."""
    return _unit(np.sum([len(slab) * normal_of(slab[0]) for slab in slabs], axis=0))


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def turned_by(a: SliceHeader, b: SliceHeader) -> float:
    """Larger of the two angles between the row and the column directions of two slices, degrees."""
    if a.orientation == b.orientation:
        return 0.0
    cosines = [np.dot(a.orientation[part], b.orientation[part]) for part in (slice(0, 3), slice(3, 6))]
    return math.degrees(math.acos(max(-1.0, min(1.0, *cosines))))


def tilt_degrees(header: SliceHeader) -> float:
    """Angle between the slice normal and the feet-head axis, degrees."""
    return math.degrees(math.acos(min(1.0, abs(float(normal_of(header)[2])))))


def height_of(header: SliceHeader, axis: np.ndarray) -> float:
    """Position of the first pixel of a slice along the unit vector `axis` (3,), mm."""
    return float(np.dot(header.position, axis))


def heights_along(slab: Sequence[SliceHeader], axis: np.ndarray) -> list[float]:
    """Positions of the centres of slices with one orientation along the unit vector `axis` (3,), mm."""
    to_centre = float(np.dot(_to_centre(slab[0]), axis))
    return [height_of(header, axis) + to_centre for header in slab]


def _to_centre(header: SliceHeader) -> np.ndarray:
    """Vector from the first pixel of a slice to its picture centre (3,), mm."""
    across = np.multiply(header.orientation[:3], header.spacing[1] * (header.columns - 1) / 2)
    down = np.multiply(header.orientation[3:], header.spacing[0] * (header.rows - 1) / 2)
    return across + down


def same_spacing(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two pixel spacings (mm) are equal up to rounding."""
    return all(math.isclose(x, y, rel_tol=SAME_SPACING) for x, y in zip(a, b, strict=True))


def centre_moves(headers: Sequence[SliceHeader], positions: Sequence[float]) -> dict[int, float]:
    """In-plane shifts of the picture centre between neighbouring slices at n heights `positions`.

    With a tilted gantry the centre drifts in the plane by a constant amount per mm of height. The median
    drift is subtracted.

    Returns:
        Index of the slice before a shift -> its size, mm, for shifts above `CENTRE_MOVES_MM`; empty for fewer
        than three slices or several orientations.
    """
    first = headers[0]
    if len(headers) < 3 or any(turned_by(h, first) > SAME_ORIENTATION_DEGREES for h in headers):
        return {}
    plane = np.array([first.orientation[:3], first.orientation[3:]])  # (2, 3)
    centres = [plane @ np.add(header.position, _to_centre(header)) for header in headers]
    steps = np.diff(centres, axis=0)  # (n - 1, 2)
    rises = np.diff(positions)[:, None]  # (n - 1, 1)
    moves = np.linalg.norm(steps - np.median(steps / rises, axis=0) * rises, axis=1)  # (n - 1,)
    return {int(i): float(moves[i]) for i in np.flatnonzero(moves > CENTRE_MOVES_MM)}


def by_orientation(headers: Sequence[SliceHeader]) -> list[list[SliceHeader]]:
    """Group slices by orientation."""
    clusters: list[list[SliceHeader]] = []
    for header in headers:
        same = (group for group in clusters if turned_by(header, group[0]) <= SAME_ORIENTATION_DEGREES)
        if (cluster := next(same, None)) is None:
            clusters.append(cluster := [])
        cluster.append(header)
    return clusters


def slabs_of(headers: Sequence[SliceHeader]) -> tuple[list[list[SliceHeader]], list[LedgerEntry]]:
    """Group slices by gantry tilt, largest group first; ledger entries for all other orientations."""
    slabs: list[list[SliceHeader]] = []
    refused = []
    for cluster in sorted(by_orientation(headers), key=len, reverse=True):
        if all(_is_other_tilt(cluster, slab) for slab in slabs):
            slabs.append(cluster)
            continue
        for header in cluster:
            angle = turned_by(header, slabs[0][0])
            detail = f"turned by {angle:.1f} degrees against {len(slabs[0])} slices of the series"
            refused.append(slice_entry(header, Code.OTHER_ORIENTATION, detail))
    return slabs, refused


def _is_other_tilt(cluster: Sequence[SliceHeader], slab: Sequence[SliceHeader]) -> bool:
    """Whether `cluster` continues `slab` with another gantry tilt, a rotation about the row direction."""
    a, b = cluster[0], slab[0]
    same_row = math.cos(math.radians(SAME_ORIENTATION_DEGREES))
    if np.dot(a.orientation[:3], b.orientation[:3]) < same_row or min(len(cluster), len(slab)) < TILT_SLICES:
        return False
    axis = _unit(normal_of(a) + normal_of(b))
    spans = [
        (min(heights), max(heights)) for heights in (heights_along(group, axis) for group in (cluster, slab))
    ]
    overlap = min(top for _, top in spans) - max(bottom for bottom, _ in spans)
    shorter = min(top - bottom for bottom, top in spans)
    return turned_by(a, b) <= TILTS_APART_DEGREES and overlap <= TILT_OVERLAP * shorter


def steps_of(positions: Sequence[float]) -> list[float]:
    """Steps (n - 1) between n ordered positions, mm."""
    return [b - a for a, b in pairwise(positions)]


def alike(a: float, b: float) -> bool:
    """Whether two steps (mm) are equal within tolerance."""
    return abs(a - b) <= STEP_TOLERANCE_MM + STEP_TOLERANCE * min(a, b)


def runs_of(steps: Sequence[float], *, skip: Iterable[int] = ()) -> list[tuple[float, list[int]]]:
    """Runs of equal consecutive steps, ignoring the indices in `skip`: (median step in mm, indices)."""
    left_out = set(skip)
    runs: list[list[int]] = []
    for i, step in enumerate(steps):
        if i in left_out:
            continue
        if runs and alike(step, median(steps[j] for j in runs[-1])):
            runs[-1].append(i)
        else:
            runs.append([i])
    return [(median(steps[i] for i in run), run) for run in runs]


def find_gaps(positions: Sequence[float], thickness: Sequence[float | None]) -> dict[int, float]:
    """Find steps with at least one missing slice.

    Three or more equal steps form a slab and are regular. Any other step is compared with the slab that it
    interrupts, if at least one equal step follows on its other side. Otherwise it is compared with the larger
    of the two adjacent slabs, or with the median step if there are no slabs. A step is not a gap if the
    slices are thick enough to abut.

    Args:
        positions: n positions in order, mm.
        thickness: thickness of the n slices, mm; None if unknown.

    Returns:
        Index of the slice before each gap -> the regular step there, mm.
    """
    steps = steps_of(positions)
    runs = runs_of(steps)
    gaps: dict[int, float] = {}
    for k, (_, run) in enumerate(runs):
        if len(run) >= SLAB_STEPS:
            continue
        below, above = runs[:k], runs[k + 1 :]
        before = [length for length, slab in below if len(slab) >= SLAB_STEPS][-1:]
        after = [length for length, slab in above if len(slab) >= SLAB_STEPS][:1]
        inside = [step for step in before if any(alike(step, length) for length, _ in above[:1])]
        inside += [step for step in after if any(alike(step, length) for length, _ in below[-1:])]
        regular = max(inside or before + after, default=median(steps))
        for i in run:
            mean = _mean_thickness(thickness, i)
            meets = mean is not None and steps[i] <= ABUTTING_FACTOR * mean
            if steps[i] > GAP_FACTOR * regular and not meets:
                gaps[i] = regular
    return gaps


def spaces_between(positions: Sequence[float], thickness: Sequence[float | None]) -> set[int]:
    """Indices of steps much longer than the slice thickness, regular or not, as if slices were missing.

    `thickness` of the n slices is in mm; None if unknown: then a step is compared with `LONGEST_STEP_MM`.
    """
    spaces = set()
    for i, step in enumerate(steps_of(positions)):
        mean = _mean_thickness(thickness, i)
        if step > (LONGEST_STEP_MM if mean is None else GAP_FACTOR * mean):
            spaces.add(i)
    return spaces


def _mean_thickness(thickness: Sequence[float | None], i: int) -> float | None:
    """Mean thickness of slices i and i + 1, mm; None if either is unknown."""
    before, after = thickness[i], thickness[i + 1]
    return None if before is None or after is None else (before + after) / 2
