"""Slice headers to ordered series, and the choice of one series for each study.

In: `SliceHeader`s in any order, from any number of studies. Out: for each study its series, ordered along
the slice normal, with one ledger entry for each file that takes no part and each irregularity; then the
series that stands for the study, with the reason in words, and the groups of thin slices to be averaged.

Source: DICOM PS3.3 C.7.6.2.1.1 (position and orientation: the normal is row x column, patient axes are LPS).
Legend: `n` slices of a series; steps are the n - 1 distances between neighbours.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from ich_mil.dicom.read import SliceHeader
from ich_mil.ledger import Code, LedgerEntry

# Positions closer than this are the same position: scanners write at least 0.01 mm.
SAME_POSITION_MM = 0.01
# Steps that differ by less belong together: 0.1 mm of rounding (0.6, 0.7 for 0.625 mm), or a tenth.
STEP_TOLERANCE_MM = 0.1
STEP_TOLERANCE = 0.1
# So many equal steps are a slab of their own rather than an irregularity.
SLAB_STEPS = 3
# A step this much longer than the regular one beside it lacks at least one slice.
GAP_FACTOR = 1.5
# Slices meet or nearly meet when the step is no more than their thickness times this: a thicker slab, no gap.
ABUTTING_FACTOR = 1.2
# Orientations that differ by less are the same.
SAME_ORIENTATION_DEGREES = 0.5
TILT_DEGREES = 1.0
AXIAL_DEGREES = 45.0
# Which series stands for a study (DATA.md, CQ500): plain, 2.5-5 mm, at least 100 mm, even.
COVER_MM = 100.0
STUB_MM = 60.0  # less than half a head: timing and test scans
THICK_MM = (2.4, 5.5)  # 2.5-5 mm with room for rounding
THICKEST_MM = 7.5
AVERAGE_TO_MM = 5.0
# Slices of this fraction of the wanted thickness are left alone: 2.5 mm is thick enough for 5 mm.
ALREADY_THICK = 0.48

_REFUSED = {Code.DUPLICATE, Code.OTHER_SHAPE, Code.OTHER_ORIENTATION}
_DEFECTS = _REFUSED | {Code.GAP, Code.SPACING_CHANGES}
# Descriptions and kernels are makers' free text. Sharp kernels by name: GE BONE*, EDGE; Philips D, E, YD;
# Toshiba FC30-39 and FC80-89; Siemens B/H/U... with 60 or more (H60s, Hr64).
_BONE = re.compile(r"bone|knochen|osseous|temporal|petrous|\biac\b", re.IGNORECASE)
_BONE_KERNEL = re.compile(
    r".*(bone|edge|lung).*|d|e|yd|fc[38]\d|(?!fc)[a-z]{1,2}[6-9]\d[a-z]?(\\.*)?", re.IGNORECASE
)
_CONTRAST = re.compile(
    r"contrast|\bce\b|\+c\b|\bc\+|\bpost\b(?!\W*(fossa|op|trauma))|\bcta\b|angio|venous|arterial|perfusion|enhanced",
    re.IGNORECASE,
)
_NO_CONTRAST = re.compile(
    r"(\b(pre|non?|without|w/?o|before)|un|non)[\s_-]*(iv[\s_-]*)?(contrast|enhanced|ce\b)|\bncct\b|\bplain\b|-c\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Series:
    """One series in order.

    Args:
        study_uid: StudyInstanceUID.
        series_uid: SeriesInstanceUID.
        description: SeriesDescription of the first slice.
        headers: n slices of one shape and one orientation, lowest position first. The normal points along
            the patient axis it is nearest to: from feet to head for axial slices, however the patient lay.
        positions: n positions along the normal, mm, strictly rising.
        entries: files of the series that take no part, and what is irregular; `scan` is the study UID.
    """

    study_uid: str
    series_uid: str
    description: str
    headers: tuple[SliceHeader, ...]
    positions: tuple[float, ...]
    entries: tuple[LedgerEntry, ...]

    @property
    def spacing(self) -> float:
        """Median step between neighbours, mm; 0.0 for one slice."""
        return median(b - a for a, b in pairwise(self.positions)) if len(self.positions) > 1 else 0.0

    @property
    def extent(self) -> float:
        """Distance from the first to the last slice, mm."""
        return self.positions[-1] - self.positions[0]


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
        studies[study_uid].append(_order(members))
    return dict(studies)


def choose_series(series: Sequence[Series]) -> tuple[Series, str, list[LedgerEntry]]:
    """The series that stands for a study.

    What counts, in this order: at least 60 mm (a shorter one is a timing or test scan); plain, else bone,
    else post-contrast, else not axial; at least 100 mm; no gap; steps of 2.5-5 mm, else up to 7.5 mm, else
    thin (to be averaged), else thicker; fewer defects; more slices; the series UID, so that the choice does
    not depend on the order given.

    Args:
        series: all series of one study, at least one.

    Returns:
        The chosen series, the reason in words, and one entry for each series that was not chosen.

    Raises:
        ValueError: no series was given.
    """
    if not series:
        raise ValueError("a study needs at least one series to choose from; got none")
    chosen = min(series, key=_rank)
    reason = _describe(chosen)
    n_unwanted = sum(_unwanted(one) > 0 for one in series)
    if len(series) == 1:
        reason += "; the only series"
    elif n_unwanted:
        reason += f"; {n_unwanted} of {len(series)} series are post-contrast, bone or not axial"
    else:
        reason += f"; all {len(series)} series are plain"
    if _unwanted(chosen) and n_unwanted < len(series):
        reason += f", and the plain ones cover less than {STUB_MM:.0f} mm"
    entries = []
    for one in series:
        if one is not chosen:
            files = len(one.headers) + sum(entry.code in _REFUSED for entry in one.entries)
            detail = f"series {_text(one)!r} ({one.series_uid}), {files} files: {_describe(one)}"
            entries.append(LedgerEntry(one.study_uid, "", Code.SERIES_NOT_CHOSEN, detail))
    return chosen, reason, entries


def average_groups(series: Series, *, thickness: float = AVERAGE_TO_MM) -> list[tuple[int, ...]]:
    """Which slices are averaged into each output slice.

    A stretch without gap and with one spacing s is cut into consecutive groups of about round(thickness / s)
    slices, as equal in size as they can be; where s is above 0.48 * thickness every slice is its own group.

    Args:
        series: an ordered series.
        thickness: of the output slices, mm.

    Returns:
        Groups of indices into `series.headers`, each index once, in order.

    Raises:
        ValueError: `thickness` is not positive.
    """
    if not thickness > 0:
        raise ValueError(f"thickness must be positive; got {thickness} mm")
    groups: list[tuple[int, ...]] = []
    for stretch in _stretches(series):
        steps = [series.positions[j] - series.positions[i] for i, j in pairwise(stretch)]
        spacing = median(steps) if steps else math.inf
        factor = 1 if spacing > ALREADY_THICK * thickness else max(round(thickness / spacing), 1)
        n_groups = max(round(len(stretch) / factor), 1)
        groups += [tuple(int(i) for i in part) for part in np.array_split(stretch, n_groups)]
    return groups


def _order(members: list[SliceHeader]) -> Series:
    """Order the files of one series and write down what does not belong or is irregular."""
    entries: list[LedgerEntry] = []

    def refuse(header: SliceHeader, code: Code, detail: str) -> None:
        entries.append(LedgerEntry(header.study_uid, header.path, code, detail))

    members = sorted(members, key=_file_order)
    by_sop: dict[str, SliceHeader] = {}
    for header in members:
        first = by_sop.setdefault(header.sop_uid, header)
        if first is not header:
            refuse(header, Code.DUPLICATE, f"same SOP Instance UID as {first.path}")
    kept = list(by_sop.values())

    shapes = Counter((header.rows, header.columns) for header in kept)
    shape, n_shape = shapes.most_common(1)[0]
    for header in kept:
        if (header.rows, header.columns) != shape:
            here, there = f"{header.rows} x {header.columns}", f"{shape[0]} x {shape[1]}"
            detail = f"{here} pixels; {n_shape} slices of the series have {there}"
            refuse(header, Code.OTHER_SHAPE, detail)
    kept = [header for header in kept if (header.rows, header.columns) == shape]

    clusters: list[list[SliceHeader]] = []
    for header in kept:
        for cluster in clusters:
            if _angle(header, cluster[0]) <= SAME_ORIENTATION_DEGREES:
                cluster.append(header)
                break
        else:
            clusters.append([header])
    kept = max(clusters, key=len)
    for cluster in clusters:
        for header in cluster if cluster is not kept else []:
            detail = (
                f"turned by {_angle(header, kept[0]):.1f} degrees against {len(kept)} slices of the series"
            )
            refuse(header, Code.OTHER_ORIENTATION, detail)

    normal = _normal(kept[0])
    placed: list[tuple[float, SliceHeader]] = []
    by_position = sorted(
        ((float(np.dot(header.position, normal)), header) for header in kept), key=lambda p: p[0]
    )
    for position, header in by_position:
        if placed and position - placed[-1][0] <= SAME_POSITION_MM:
            first = min(placed[-1][1], header, key=_file_order)
            second = header if first is placed[-1][1] else placed[-1][1]
            refuse(second, Code.DUPLICATE, f"same position as {first.path} ({position:.2f} mm)")
            placed[-1] = (placed[-1][0], first)
        else:
            placed.append((position, header))

    ordered = tuple(header for _, header in placed)
    positions = tuple(position for position, _ in placed)
    entries += _irregularities(ordered, positions, normal)
    head = members[0]
    return Series(head.study_uid, head.series_uid, ordered[0].description, ordered, positions, tuple(entries))


def _file_order(header: SliceHeader) -> tuple[float, str, str]:
    """By instance number, those without one last; then SOP UID and path."""
    number = math.inf if header.instance_number is None else header.instance_number
    return number, header.sop_uid, header.path


def _angle(a: SliceHeader, b: SliceHeader) -> float:
    """The larger of the angles between the row and the column directions of two slices, degrees."""
    cosines = [np.dot(a.orientation[part], b.orientation[part]) for part in (slice(0, 3), slice(3, 6))]
    return math.degrees(math.acos(max(-1.0, min(1.0, *cosines))))


def _normal(header: SliceHeader) -> np.ndarray:
    """Unit normal of the slice (3,), pointing along the patient axis that it is nearest to."""
    normal = np.cross(header.orientation[:3], header.orientation[3:])
    normal = normal / np.linalg.norm(normal)
    return normal if normal[np.argmax(np.abs(normal))] > 0 else -normal


def _tilt(header: SliceHeader) -> float:
    """Angle between the slice normal and the feet-head axis, degrees."""
    return math.degrees(math.acos(min(1.0, abs(float(_normal(header)[2])))))


def _irregularities(
    headers: Sequence[SliceHeader], positions: Sequence[float], normal: np.ndarray
) -> list[LedgerEntry]:
    """Gaps, changes of spacing and tilt of an ordered series."""
    study, uid = headers[0].study_uid, headers[0].series_uid
    entries = []
    gaps = _gaps(headers, positions)
    for i in sorted(gaps):
        step = positions[i + 1] - positions[i]
        detail = f"{step:.2f} mm between this slice and {headers[i + 1].path}, {gaps[i]:.2f} mm is regular"
        entries.append(LedgerEntry(study, headers[i].path, Code.GAP, detail))
    runs = _runs([b - a for a, b in pairwise(positions)], skip=gaps.keys())
    lengths = [length for length, _ in runs]
    if runs and not _alike(min(lengths), max(lengths)):
        shown = ", ".join(f"{len(steps)} x {length:.2f}" for length, steps in runs[:8])
        detail = f"series {uid}: steps in mm are {shown}{', ...' if len(runs) > 8 else ''}"
        entries.append(LedgerEntry(study, "", Code.SPACING_CHANGES, detail))
    tilt = _tilt(headers[0])
    if TILT_DEGREES <= tilt <= AXIAL_DEGREES:
        detail = f"series {uid}: slices are tilted by {tilt:.1f} degrees; ordered along their normal"
        entries.append(LedgerEntry(study, "", Code.TILTED, detail))
    return entries


def _alike(a: float, b: float) -> bool:
    """Whether two steps (mm) differ by no more than rounding."""
    return abs(a - b) <= STEP_TOLERANCE_MM + STEP_TOLERANCE * min(a, b)


def _runs(steps: Sequence[float], *, skip: Iterable[int] = ()) -> list[tuple[float, list[int]]]:
    """Stretches of alike steps, without those in `skip`: (median step in mm, indices of the steps)."""
    left_out = set(skip)
    runs: list[list[int]] = []
    for i, step in enumerate(steps):
        if i in left_out:
            continue
        if runs and _alike(step, median(steps[j] for j in runs[-1])):
            runs[-1].append(i)
        else:
            runs.append([i])
    return [(median(steps[i] for i in run), run) for run in runs]


def _gaps(headers: Sequence[SliceHeader], positions: Sequence[float]) -> dict[int, float]:
    """Steps that lack a slice: index of the slice before -> the regular step there, mm.

    Three or more alike steps are a slab and regular. Any other step is measured against the larger of the two
    slabs beside it (or, without slabs, against the median step), and is no gap where the slices are so thick
    that they meet.
    """
    steps = [b - a for a, b in pairwise(positions)]
    runs = _runs(steps)
    slabs = [(length, run) for length, run in runs if len(run) >= SLAB_STEPS]
    gaps: dict[int, float] = {}
    for _, run in runs:
        if len(run) >= SLAB_STEPS or len(steps) == 1:
            continue
        before = [length for length, slab in slabs if slab[-1] < run[0]][-1:]
        after = [length for length, slab in slabs if slab[0] > run[-1]][:1]
        regular = max(before + after, default=median(steps))
        for i in run:
            thickness = [headers[i].thickness, headers[i + 1].thickness]
            known = [value for value in thickness if value is not None]
            meets = len(known) == 2 and steps[i] <= ABUTTING_FACTOR * sum(known) / 2
            if steps[i] > GAP_FACTOR * regular and not meets:
                gaps[i] = regular
    return gaps


def _stretches(series: Series) -> list[list[int]]:
    """Slices of one spacing with no gap between them, as lists of indices."""
    steps = [b - a for a, b in pairwise(series.positions)]
    gaps = _gaps(series.headers, series.positions)
    stretches = [[0]]
    for i, step in enumerate(steps):
        inside = [steps[j] for j in stretches[-1][:-1]]
        if i in gaps or (inside and not _alike(step, median(inside))):
            stretches.append([i + 1])
        else:
            stretches[-1].append(i + 1)
    return stretches


def _text(series: Series) -> str:
    """What a person called the series: its description, else the folder it lies in."""
    text = series.description or Path(series.headers[0].path).parent.name
    return text.replace("_", " ")  # to a word pattern 'POST_5MM' is one word


def _is_contrast(series: Series) -> bool:
    """A contrast agent in most headers, or a description that says so."""
    with_agent = sum(header.contrast for header in series.headers)
    text = _text(series)
    return 2 * with_agent > len(series.headers) or bool(_CONTRAST.search(_NO_CONTRAST.sub(" ", text)))


def _is_bone(series: Series) -> bool:
    """A sharp kernel, or a description that says bone."""
    return bool(_BONE_KERNEL.fullmatch(series.headers[0].kernel) or _BONE.search(_text(series)))


def _unwanted(series: Series) -> int:
    """0 for a plain axial series; else higher the less it resembles one."""
    not_axial = _tilt(series.headers[0]) > AXIAL_DEGREES
    return 4 * not_axial + 2 * _is_contrast(series) + _is_bone(series)


def _rank(series: Series) -> tuple[bool, int, bool, bool, int, int, int, str]:
    """Sorts the best series of a study first (`choose_series` states the order)."""
    codes = [entry.code for entry in series.entries]
    spacing = series.spacing
    if THICK_MM[0] <= spacing <= THICK_MM[1]:
        step_class = 0
    elif THICK_MM[1] < spacing <= THICKEST_MM:
        step_class = 1
    else:
        step_class = 2 if 0 < spacing < THICK_MM[0] else 3
    return (
        series.extent < STUB_MM,
        _unwanted(series),
        series.extent < COVER_MM,
        Code.GAP in codes,
        step_class,
        sum(code in _DEFECTS for code in codes),
        -len(series.headers),
        series.series_uid,
    )


def _describe(series: Series) -> str:
    """Kind, step, number of slices, extent and defects, in words."""
    kinds = [
        word
        for word, holds in (
            ("not axial", _tilt(series.headers[0]) > AXIAL_DEGREES),
            ("post-contrast", _is_contrast(series)),
            ("bone", _is_bone(series)),
        )
        if holds
    ]
    n = len(series.headers)
    parts = [" ".join(kinds) or "plain"]
    if n > 1:
        parts.append(f"{series.spacing:.1f} mm")
    parts += [f"{n} slice{'s' if n > 1 else ''}", f"{series.extent:.0f} mm"]
    counts = Counter(entry.code for entry in series.entries if entry.code in _DEFECTS)
    parts += [f"{count} {code}" for code, count in counts.items()]
    return ", ".join(parts)
