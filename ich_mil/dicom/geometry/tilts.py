"""Grouping of slices by gantry tilt.

In: slices of one series. Out: the slices of each tilt, their mean normal, and a ledger entry for each slice
whose orientation differs from the tilts in another way.
"""

import math
from collections.abc import Sequence

import numpy as np

from ich_mil.dicom.files.header import SliceHeader
from ich_mil.dicom.files.slice_name import slice_entry
from ich_mil.dicom.geometry.planes import SAME_ORIENTATION_DEGREES, heights_along, normal_of, turned_by, unit
from ich_mil.ledger import Code, LedgerEntry

# A scan may have two gantry tilts, for skull base and cerebrum. A gantry tilts by at most 30 degrees, both
# times in the same direction. The planes converge, so the slabs may overlap, by at most half of a slab.
TILTS_APART_DEGREES = 35.0
TILT_SLICES = 3
TILT_OVERLAP = 0.5


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


def mean_normal(slabs: Sequence[Sequence[SliceHeader]]) -> np.ndarray:
    """Mean unit normal (3,) of slices with several orientations, weighted by their number."""
    return unit(np.sum([len(slab) * normal_of(slab[0]) for slab in slabs], axis=0))


def by_orientation(headers: Sequence[SliceHeader]) -> list[list[SliceHeader]]:
    """Group slices by orientation."""
    clusters: list[list[SliceHeader]] = []
    for header in headers:
        for cluster in clusters:
            if turned_by(header, cluster[0]) <= SAME_ORIENTATION_DEGREES:
                cluster.append(header)
                break
        else:
            clusters.append([header])
    return clusters


def _is_other_tilt(cluster: Sequence[SliceHeader], slab: Sequence[SliceHeader]) -> bool:
    """Whether `cluster` continues `slab` with another gantry tilt, a rotation about the row direction."""
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
