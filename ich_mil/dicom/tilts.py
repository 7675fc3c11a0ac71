"""Slices by orientation: which are of another gantry tilt, and which are turned in another way.

In: slices of one series. Out: the slices of each tilt, the mean normal of them all, and a ledger entry for
each slice that is of none.
"""

import math
from collections.abc import Sequence

import numpy as np

from ich_mil.dicom.header import SliceHeader
from ich_mil.dicom.planes import SAME_ORIENTATION_DEGREES, heights_along, normal_of, turned_by, unit
from ich_mil.dicom.slice_name import slice_entry
from ich_mil.ledger import Code, LedgerEntry

# Two gantry tilts in one scan, skull base and cerebrum: a gantry turns by 30 degrees at most, both one way.
# Their planes converge, so the centres may pass each other, but not by half of a slab.
TILTS_APART_DEGREES = 35.0
TILT_SLICES = 3
TILT_OVERLAP = 0.5


def slabs_of(headers: Sequence[SliceHeader]) -> tuple[list[list[SliceHeader]], list[LedgerEntry]]:
    """The slices of each gantry tilt, the most first, and entries for those turned in another way."""
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
    """The unit normal of slices of several orientations together."""
    return unit(np.sum([len(slab) * normal_of(slab[0]) for slab in slabs], axis=0))


def by_orientation(headers: Sequence[SliceHeader]) -> list[list[SliceHeader]]:
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
