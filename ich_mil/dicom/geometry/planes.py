"""Geometry of slice planes: normals, angles, tilts, heights, picture centres and patient sides.

In: `SliceHeader`s or their orientations. Out: vectors in patient coordinates and lengths [mm], angles
[degrees], and the letters of patient directions.

Source: DICOM PS3.3 C.7.6.2.1.1 (position and orientation: the normal is row x column, patient axes are LPS),
C.7.6.1.1.1 (Patient Orientation: letters of directions).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ich_mil.dicom.files.header import SliceHeader

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
    normal = unit(np.cross(header.orientation[:3], header.orientation[3:]))
    return normal if normal[np.argmax(np.abs(normal))] > 0 else -normal


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


def same_spacing(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two pixel spacings (mm) are equal up to rounding."""
    return all(math.isclose(one, other, rel_tol=SAME_SPACING) for one, other in zip(a, b, strict=True))


def centre_moves(headers: Sequence[SliceHeader], positions: Sequence[float]) -> dict[int, float]:
    """In-plane shifts of the picture centre between neighbouring slices.

    With a tilted gantry the centre drifts in the plane by a constant amount per mm of height. The median
    drift is subtracted.

    Args:
        headers: n slices in order.
        positions: n heights along the normal, mm, strictly increasing.

    Returns:
        Index of the slice before a shift -> its size, mm, for shifts above `CENTRE_MOVES_MM`; empty for fewer
        than three slices or several orientations.
    """
    first = headers[0]
    if len(headers) < 3 or any(turned_by(h, first) > SAME_ORIENTATION_DEGREES for h in headers):
        return {}
    plane = np.array([first.orientation[:3], first.orientation[3:]])  # (2, 3)
    places = [plane @ np.add(header.position, _to_centre(header)) for header in headers]
    steps = np.diff(places, axis=0)  # (n - 1, 2)
    rises = np.diff(positions)[:, None]  # (n - 1, 1)
    moves = np.linalg.norm(steps - np.median(steps / rises, axis=0) * rises, axis=1)  # (n - 1,)
    return {int(i): float(moves[i]) for i in np.flatnonzero(moves > CENTRE_MOVES_MM)}


def _to_centre(header: SliceHeader) -> np.ndarray:
    """Vector from the first pixel of a slice to its picture centre (3,), mm."""
    across = np.multiply(header.orientation[:3], header.spacing[1] * (header.columns - 1) / 2)
    down = np.multiply(header.orientation[3:], header.spacing[0] * (header.rows - 1) / 2)
    return across + down


def unit(vector: np.ndarray) -> np.ndarray:
    """Normalize a vector to unit length."""
    return vector / np.linalg.norm(vector)
