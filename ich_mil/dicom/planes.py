"""Where slices lie in space: normals, angles, tilts, heights, picture centres, sides of the patient.

Source: DICOM PS3.3 C.7.6.2.1.1 (position and orientation: the normal is row x column, patient axes are LPS),
C.7.6.1.1.1 (Patient Orientation: the letters of directions).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ich_mil.dicom.header import SliceHeader

# Positions closer than this are the same position: scanners write at least 0.01 mm.
SAME_POSITION_MM = 0.01
# Orientations that differ by less are the same.
SAME_ORIENTATION_DEGREES = 0.5
# Pixel spacings (and with them fields of view) that differ by no more are the same: makers round to 3 digits.
# Those of rows and of columns too: such pixels are square.
SAME_SPACING = 0.01
TILT_DEGREES = 1.0
AXIAL_DEGREES = 45.0
# A picture centre that moves further in the plane than this is of another field of view: couches and rounding
# move it by less than 1 mm.
CENTRE_MOVES_MM = 5.0
# Along x, y and z, and against them: left and right, posterior and anterior, head and feet.
_LETTERS = (("L", "R"), ("P", "A"), ("H", "F"))


class Edges(NamedTuple):
    """Which side of the patient lies at each edge of a picture: R, L, A, P, H or F."""

    left: str
    right: str
    top: str
    bottom: str


def edges_of(orientation: Sequence[float]) -> Edges | None:
    """The sides of the patient at the edges of a picture whose pixels are as stored.

    Args:
        orientation: ImageOrientationPatient, six direction cosines: of the rows, which run to the right edge,
            and of the columns, which run to the lower one. An oblique direction has the letter of its
            largest component.

    Returns:
        A letter for each edge; None where the numbers are no orientation.
    """
    if len(orientation) != 6 or not all(map(math.isfinite, orientation)):
        return None
    row, column = orientation[:3], orientation[3:]
    if not any(row) or not any(column):
        return None
    (right, left), (bottom, top) = _letters(row), _letters(column)
    return Edges(left, right, top, bottom)


def _letters(direction: Sequence[float]) -> tuple[str, str]:
    """The side that a direction runs to, and the one it comes from."""
    axis = int(np.argmax(np.abs(direction)))
    along, against = _LETTERS[axis]
    return (along, against) if direction[axis] > 0 else (against, along)


def normal_of(header: SliceHeader) -> np.ndarray:
    """Unit normal of the slice (3,), pointing along the patient axis that it is nearest to."""
    normal = unit(np.cross(header.orientation[:3], header.orientation[3:]))
    return normal if normal[np.argmax(np.abs(normal))] > 0 else -normal


def turned_by(a: SliceHeader, b: SliceHeader) -> float:
    """The larger of the angles between the row and the column directions of two slices, degrees."""
    if a.orientation == b.orientation:
        return 0.0
    cosines = [np.dot(a.orientation[part], b.orientation[part]) for part in (slice(0, 3), slice(3, 6))]
    return math.degrees(math.acos(max(-1.0, min(1.0, *cosines))))


def tilt_degrees(header: SliceHeader) -> float:
    """Angle between the slice normal and the feet-head axis, degrees."""
    return math.degrees(math.acos(min(1.0, abs(float(normal_of(header)[2])))))


def height_of(header: SliceHeader, axis: np.ndarray) -> float:
    """Where the first pixel of a slice lies along the unit vector `axis` (3,), mm."""
    return float(np.dot(header.position, axis))


def heights_along(slab: Sequence[SliceHeader], axis: np.ndarray) -> list[float]:
    """Where the centres of slices of one orientation lie along the unit vector `axis` (3,), mm."""
    to_centre = float(np.dot(_to_centre(slab[0]), axis))
    return [height_of(header, axis) + to_centre for header in slab]


def same_spacing(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two pixel spacings (mm) differ by no more than rounding."""
    return all(math.isclose(one, other, rel_tol=SAME_SPACING) for one, other in zip(a, b, strict=True))


def centre_moves(headers: Sequence[SliceHeader], positions: Sequence[float]) -> dict[int, float]:
    """Where the picture centre leaves the line it runs along: index of the slice before -> how far, mm.

    The centres of a tilted gantry drift in the plane as the couch moves: by the same for each mm of height.

    Args:
        headers: n slices in order; of several orientations nothing is said.
        positions: n heights along the normal, mm, strictly rising.
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
    """From the first pixel of a slice to the centre of its picture (3,), mm."""
    across = np.multiply(header.orientation[:3], header.spacing[1] * (header.columns - 1) / 2)
    down = np.multiply(header.orientation[3:], header.spacing[0] * (header.rows - 1) / 2)
    return across + down


def unit(vector: np.ndarray) -> np.ndarray:
    """`vector` divided by its length."""
    return vector / np.linalg.norm(vector)
