"""Where slices lie in space: normals, angles, tilts, heights.

Source: DICOM PS3.3 C.7.6.2.1.1 (position and orientation: the normal is row x column, patient axes are LPS).
"""

import math
from collections.abc import Sequence

import numpy as np

from ich_mil.dicom.header import SliceHeader

# Positions closer than this are the same position: scanners write at least 0.01 mm.
SAME_POSITION_MM = 0.01
# Orientations that differ by less are the same.
SAME_ORIENTATION_DEGREES = 0.5
TILT_DEGREES = 1.0
AXIAL_DEGREES = 45.0


def normal_of(header: SliceHeader) -> np.ndarray:
    """Unit normal of the slice (3,), pointing along the patient axis that it is nearest to."""
    normal = unit(np.cross(header.orientation[:3], header.orientation[3:]))
    return normal if normal[np.argmax(np.abs(normal))] > 0 else -normal


def turned_by(a: SliceHeader, b: SliceHeader) -> float:
    """The larger of the angles between the row and the column directions of two slices, degrees."""
    cosines = [np.dot(a.orientation[part], b.orientation[part]) for part in (slice(0, 3), slice(3, 6))]
    return math.degrees(math.acos(max(-1.0, min(1.0, *cosines))))


def tilt_degrees(header: SliceHeader) -> float:
    """Angle between the slice normal and the feet-head axis, degrees."""
    return math.degrees(math.acos(min(1.0, abs(float(normal_of(header)[2])))))


def heights_along(slab: Sequence[SliceHeader], axis: np.ndarray) -> list[float]:
    """Where the centres of slices of one orientation lie along the unit vector `axis` (3,), mm."""
    first = slab[0]
    across = np.multiply(first.orientation[:3], first.spacing[1] * (first.columns - 1) / 2)
    down = np.multiply(first.orientation[3:], first.spacing[0] * (first.rows - 1) / 2)
    to_centre = float(np.dot(across + down, axis))
    return [float(np.dot(header.position, axis)) + to_centre for header in slab]


def unit(vector: np.ndarray) -> np.ndarray:
    """`vector` divided by its length."""
    return vector / np.linalg.norm(vector)
