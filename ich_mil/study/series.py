"""Grouping of slice headers into studies and series, and of thin slices for averaging.

In: `SliceHeader`s in any order, from any number of studies. Out: the ordered series of each study
(`dicom.geometry.order`). A series UID with several reconstructions of the same slices, or with a scan and its
repeat, is split. A scan stored under several series UIDs is joined (`ich_mil.study.join_series`).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from ich_mil.study.files.header import SliceHeader
from ich_mil.study.geometry.order import Series, order_slices
from ich_mil.study.geometry.planes import (
    ABUTTING_FACTOR,
    GAP_FACTOR,
    SAME_ORIENTATION_DEGREES,
    SLAB_STEPS,
    alike,
    centre_moves,
    find_gaps,
    height_of,
    normal_of,
    runs_of,
    steps_of,
    turned_by,
)
from ich_mil.study.join_series import join_series
from ich_mil.study.series_words import spectral_kind

# Default output slice thickness: most head CT is read in slices of 5 mm.
AVERAGE_TO_MM = 5.0
# Slices above this fraction of the output thickness are not averaged: 2.5 mm is thick enough for 5 mm.
ALREADY_THICK = 0.48


MOST_SLICES, MOST_SERIES = 1 << 14, 1 << 10
"""Maximum number of slices and series of a study. A perfusion has 10,000 slices, some anonymisers give each
slice a series; the time of ordering grows with the square."""
EVEN = 0.8
"""Share of equal steps of a volume, which may lack a few slices or change its spacing once."""
MOST_TRIED = 32
"""Maximum number of series of a study in which a head is looked for, the likeliest first."""


def study_refusal(headers: Sequence[SliceHeader]) -> str:
    """Why a study is too large to be ordered; '' if it is not."""
    n, n_series = len(headers), len({header.series_uid for header in headers})
    if n <= MOST_SLICES and n_series <= MOST_SERIES:
        return ""
    return f"it has {n} slices in {n_series} series; {MOST_SLICES} in {MOST_SERIES} are allowed"


def group_series(headers: Iterable[SliceHeader]) -> dict[str, list[Series]]:
    """Group headers in any order into studies and ordered series.

    Returns:
        Study UID -> its series, sorted by series UID. Every header is in one series or in its `left_out`.
    """
    by_series: dict[tuple[str, str], list[SliceHeader]] = defaultdict(list)
    for header in headers:
        by_series[header.study_uid, header.series_uid].append(header)
    studies: dict[str, list[Series]] = defaultdict(list)
    for (study_uid, _), members in sorted(by_series.items(), key=lambda item: item[0]):
        for part in _reconstructions(members):
            studies[study_uid] += [order_slices(slices) for slices in _passes(part)]
    return {study_uid: join_series(series) for study_uid, series in studies.items()}


def average_groups(series: Series, *, thickness: float = AVERAGE_TO_MM) -> list[tuple[int, ...]]:
    """Group the slices of a series into output slices of a given thickness.

    Each stretch without a gap and with one spacing s is cut into consecutive groups of about
    round(thickness / s) slices, of equal size as far as possible. If s is above 0.48 * thickness, every slice
    is its own group. The slices of a group are averaged by the caller.

    Thick slices (SliceThickness t of at least 0.48 * thickness) overlap if s is small, and their mean would
    be blurred. They are cut into groups of about round(min(t, thickness) / s) slices, of which only the
    middle slice is kept.

    Returns:
        Groups of indices into `series.headers`, in order, each index at most once. Overlapping thick slices
        that are not the middle of their group are in no group.

    Raises:
        ValueError: `thickness` (mm) is not positive.
    """
    if not thickness > 0:
        raise ValueError(f"thickness must be positive; got {thickness} mm")
    groups: list[tuple[int, ...]] = []
    for stretch in _stretches(series):
        steps = steps_of([series.positions[i] for i in stretch])
        spacing = median(steps) if steps else math.inf
        known = [mm for i in stretch if (mm := series.headers[i].thickness) is not None]
        slice_mm = median(known) if known else 0.0
        thick = slice_mm >= ALREADY_THICK * thickness
        wanted = min(slice_mm, thickness) if thick else thickness
        factor = 1 if spacing > ALREADY_THICK * thickness else max(round(wanted / spacing), 1)
        n_groups = max(round(len(stretch) / factor), 1)
        for part in np.array_split(stretch, n_groups):
            group = tuple(int(i) for i in part)
            groups.append((group[len(group) // 2],) if thick else group)
    return groups


_APART: tuple[tuple[Callable[[SliceHeader], Hashable], bool], ...] = (
    (lambda header: (header.kernel, header.contrast), True),
    (lambda header: header.kvp, True),
    (lambda header: spectral_kind(header.image_type, header.description), True),
    (lambda header: header.image_type, False),
    (lambda header: header.exposure, False),
)
"""Attributes that separate volumes under one series UID, the most reliable first, and whether they do so at
any positions: ImageType and exposure may change from slice to slice of one volume."""


def _reconstructions(members: list[SliceHeader]) -> list[list[SliceHeader]]:
    """Split slices of one series UID by kernel and contrast, tube voltage, ImageType or exposure.

    The parts must show the same slices: they share at least half of the positions of the smallest part, and
    are no more than the slices at one position. Parts that differ in a reliable attribute may also be even
    volumes of the same anatomy with positions of their own. Otherwise the slices stay together.
    """
    heights = {id(header): round(height_of(header, normal_of(header)), 1) for header in members}
    most = max(Counter(heights.values()).values())
    for attribute, is_reliable in _APART:
        parts: dict[str, list[SliceHeader]] = defaultdict(list)
        for header in members:
            parts[repr(attribute(header))].append(header)
        covered = [{heights[id(header)] for header in part} for part in parts.values()]
        ties = sum(map(len, covered)) - len(set().union(*covered))
        same_slices = len(parts) <= most and 2 * ties >= min(map(len, covered))
        if len(parts) > 1 and (same_slices or (is_reliable and _are_volumes(parts.values()))):
            return [whole for key in sorted(parts) for whole in _reconstructions(parts[key])]
    return [members]


def _are_volumes(parts: Collection[list[SliceHeader]]) -> bool:
    """Whether parts are even, about as thick as their steps, and have half of the shortest in common."""
    ends = []
    for headers in parts:
        heights = sorted({round(height_of(header, normal_of(header)), 1) for header in headers})
        steps, thickness = steps_of(heights), [header.thickness or math.inf for header in headers]
        if len(steps) < SLAB_STEPS or sum(alike(step, median(steps)) for step in steps) < EVEN * len(steps):
            return False
        if GAP_FACTOR * median(thickness) < median(steps):  # every second slice of one volume
            return False
        ends.append((heights[0], heights[-1]))
    common = min(high for _, high in ends) - max(low for low, _ in ends)
    return 2 * common >= min(high - low for low, high in ends)


def _passes(members: list[SliceHeader]) -> list[list[SliceHeader]]:
    """Split slices of one series UID into passes over the same anatomy, by acquisition number.

    Acquisition numbers count passes over the head or, in sequential scans, table positions. They are
    processed in ascending order. A new pass begins if more than half of the slices of a number overlap the
    current pass (half of the pass, if it is shorter). Slices overlap if their distance is less than the
    thickness / 1.2.

    The slices stay together if an acquisition number or a thickness is absent, if orientations differ, or if
    a pass has irregular steps.
    """
    first = members[0]
    by_number: dict[int, list[tuple[float, SliceHeader]]] = defaultdict(list)
    normal = normal_of(first)
    for header in members:
        same = turned_by(header, first) <= SAME_ORIENTATION_DEGREES
        if header.acquisition is None or not header.thickness or not same:
            return [members]
        by_number[header.acquisition].append((height_of(header, normal), header))
    if len(by_number) == 1:
        return [members]
    passes: list[list[tuple[float, SliceHeader]]] = [[]]
    for _, slices in sorted(by_number.items()):
        so_far = [height for height, _ in passes[-1]]
        reach = [(height, (header.thickness or 0.0) / ABUTTING_FACTOR) for height, header in slices]
        overlapping = sum(any(abs(other - height) < mm for other in so_far) for height, mm in reach)
        if 2 * overlapping > min(len(slices), len(passes[-1])):
            passes.append([])
        passes[-1] += slices
    for slices in passes:
        heights = sorted(height for height, _ in slices)
        if len(slices) <= SLAB_STEPS or len(runs_of(steps_of(heights))) != 1:
            return [members]
    return [[header for _, header in slices] for slices in passes]


def _stretches(series: Series) -> list[list[int]]:
    """Lists of consecutive slice indices with one source series, tilt, field of view and spacing."""
    headers = series.headers
    steps = steps_of(series.positions)
    thickness = [header.thickness for header in headers]
    cuts = {*find_gaps(series.positions, thickness), *centre_moves(headers, series.positions)}
    last = {header.series_uid: i for i, header in enumerate(headers)}
    reach = 0
    for i, (header, after) in enumerate(pairwise(headers)):
        reach = max(reach, last[header.series_uid])
        # Cut between joined series: no series UID occurs on both sides. Interleaved series have no such cut.
        if reach == i or turned_by(header, after) > SAME_ORIENTATION_DEGREES:
            cuts.add(i)
    stretches = [[0]]
    for i, step in enumerate(steps):
        inside = [steps[j] for j in stretches[-1][:-1]]
        if i in cuts or (inside and not alike(step, median(inside))):
            stretches.append([i + 1])
        else:
            stretches[-1].append(i + 1)
    return stretches
