"""Slice headers to the series of each study, and thin slices to groups that are averaged.

In: `SliceHeader`s in any order, from any number of studies. Out: for each study its ordered series
(`ich_mil.dicom.order`). A series UID that holds several reconstructions of the same slices, or a scan and its
repeat, is divided; a scan that was stored under several series UIDs is joined (`ich_mil.dicom.join`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

import numpy as np

from ich_mil.dicom.header import SliceHeader
from ich_mil.dicom.join import join_series
from ich_mil.dicom.order import Series, order_slices
from ich_mil.dicom.planes import SAME_ORIENTATION_DEGREES, centre_moves, height_of, normal_of, turned_by
from ich_mil.dicom.steps import ABUTTING_FACTOR, SLAB_STEPS, alike, find_gaps, runs_of, steps_of

# Most head CT is read in slices of 5 mm.
AVERAGE_TO_MM = 5.0
# Slices of this fraction of the wanted thickness are left alone: 2.5 mm is thick enough for 5 mm.
ALREADY_THICK = 0.48


def group_series(headers: Iterable[SliceHeader]) -> dict[str, list[Series]]:
    """Sort headers into studies and ordered series.

    Args:
        headers: slices in any order.

    Returns:
        Study UID -> its series, by series UID. Every header is in one series, or named in its `entries`.
    """
    by_series: dict[tuple[str, str], list[SliceHeader]] = defaultdict(list)
    for header in headers:
        by_series[header.study_uid, header.series_uid].append(header)
    studies: dict[str, list[Series]] = defaultdict(list)
    for (study_uid, _), members in sorted(by_series.items(), key=lambda item: item[0]):
        for part in _reconstructions(members):
            studies[study_uid] += [order_slices(one) for one in _passes(part)]
    return {study_uid: join_series(series) for study_uid, series in studies.items()}


def average_groups(series: Series, *, thickness: float = AVERAGE_TO_MM) -> list[tuple[int, ...]]:
    """Which slices make each output slice: several that are averaged, or one.

    A stretch without gap and with one spacing s is cut into consecutive parts of about round(thickness / s)
    slices, as equal in size as they can be; where s is above 0.48 * thickness every slice is its own part.
    Thin slices of a part are averaged. Slices that are thick enough already (SliceThickness t of at least
    0.48 * thickness) overlap where s is small, and their mean would smear: parts have about
    round(min(t, thickness) / s) slices, and the middle one stands for each.

    Args:
        series: an ordered series.
        thickness: of the output slices, mm.

    Returns:
        Groups of indices into `series.headers`, in order, each index at most once. Where thick slices
        overlap, those that do not stand for their part are in no group.

    Raises:
        ValueError: `thickness` is not positive.
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


def _reconstructions(members: list[SliceHeader]) -> list[list[SliceHeader]]:
    """Files of one series UID, apart by kernel and contrast where these show the same slices twice."""
    parts: dict[tuple[str, bool], list[SliceHeader]] = defaultdict(list)
    for header in members:
        parts[header.kernel, header.contrast].append(header)
    if len(parts) == 1:
        return [members]
    places = [{round(height_of(h, normal_of(h)), 1) for h in part} for part in parts.values()]
    ties = sum(len(one) for one in places) - len(set().union(*places))
    return [parts[key] for key in sorted(parts)] if 2 * ties >= min(map(len, places)) else [members]


def _passes(members: list[SliceHeader]) -> list[list[SliceHeader]]:
    """Slices of one series UID, apart by acquisition numbers where these cover the same slices again.

    Acquisition numbers may count passes over the head or, in sequential scans, table positions. So the
    numbers are taken in order, and a new pass begins where most slices of one overlap slices of the pass so
    far (or most of that, if it is the shorter): their distance is less than their thickness / 1.2. Each pass
    has to be regular by itself.
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
        so_far = np.array([height for height, _ in passes[-1]])
        reaches = [header.thickness / ABUTTING_FACTOR for _, header in slices if header.thickness]
        overlapping = sum(
            bool(np.any(np.abs(so_far - height) < reach))
            for (height, _), reach in zip(slices, reaches, strict=True)
        )
        if 2 * overlapping > min(len(slices), len(passes[-1])):
            passes.append([])
        passes[-1] += slices
    for one in passes:
        heights = sorted(height for height, _ in one)
        if len(one) <= SLAB_STEPS or len(runs_of(steps_of(heights))) != 1:
            return [members]
    return [[header for _, header in one] for one in passes]


def _stretches(series: Series) -> list[list[int]]:
    """Slices of one scan, tilt, field of view and spacing with no gap between them, as lists of indices."""
    headers = series.headers
    steps = steps_of(series.positions)
    thickness = [header.thickness for header in headers]
    cuts = {*find_gaps(series.positions, thickness), *centre_moves(headers, series.positions)}
    last = {header.series_uid: i for i, header in enumerate(headers)}
    reach = 0
    for i, (here, after) in enumerate(pairwise(headers)):
        reach = max(reach, last[here.series_uid])
        # A joint: no series UID lies on both sides. Interleaved series have none.
        if reach == i or turned_by(here, after) > SAME_ORIENTATION_DEGREES:
            cuts.add(i)
    stretches = [[0]]
    for i, step in enumerate(steps):
        inside = [steps[j] for j in stretches[-1][:-1]]
        if i in cuts or (inside and not alike(step, median(inside))):
            stretches.append([i + 1])
        else:
            stretches[-1].append(i + 1)
    return stretches
