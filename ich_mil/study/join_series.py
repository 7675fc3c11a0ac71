"""Join series that are parts of one scan stored under several series UIDs.

In: the ordered series of one study. Out: the same series, with parts joined if one continues where another
ends, or if they interleave. Repeats, other reconstructions and other protocols stay separate.
"""

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Literal

from ich_mil.ledger import Code, LedgerEntry
from ich_mil.study.geometry.irregularities import unseen_entries
from ich_mil.study.geometry.order import LEFT_OUT, Series, order_slices
from ich_mil.study.geometry.planes import (
    ABUTTING_FACTOR,
    GAP_FACTOR,
    SAME_ORIENTATION_DEGREES,
    SAME_POSITION_MM,
    alike,
    height_of,
    normal_of,
    runs_of,
    steps_of,
    turned_by,
)

# Series numbers and UIDs in a folder name do not describe the series.
_NO_LETTERS = re.compile(r"[\W\d_]+")


def join_series(series: Sequence[Series]) -> list[Series]:
    """Join the ordered series of one study that are parts of one scan; all series, sorted by series UID."""
    groups: list[tuple[Hashable, list[Series]]] = []
    for part in series:
        kind = _kind(part)
        for other, group in groups:
            same = turned_by(part.headers[0], group[0].headers[0]) <= SAME_ORIENTATION_DEGREES
            if kind is not None and kind == other and same:
                group.append(part)
                break
        else:
            groups.append((kind, [part]))
    joined = [part for _, group in groups for part in _continued(_interleaved(group))]
    return sorted(joined, key=lambda part: (part.series_uid, part.headers[0].kernel, part.headers[0].path))


def _kind(series: Series) -> Hashable:
    """Attributes common to the parts of one scan, except orientation; None if they vary within the series."""
    first = series.headers[0]
    kinds = {
        (
            (h.rows, h.columns, *(round(mm, 3) for mm in h.spacing)),
            (h.kernel, h.contrast, h.body_part, None if h.thickness is None else round(h.thickness, 2)),
            h.description or _NO_LETTERS.sub(" ", Path(h.path).parent.name).strip(),
            turned_by(h, first) <= SAME_ORIENTATION_DEGREES,
        )
        for h in series.headers
    }
    return kinds.pop() if len(kinds) == 1 else None


def _spans(group: Sequence[Series]) -> list[tuple[float, float, Series]]:
    """First and last position (mm) of each series along a common normal, sorted."""
    normal = normal_of(group[0].headers[0])
    spans = [(height_of(s.headers[0], normal), height_of(s.headers[-1], normal), s) for s in group]
    return sorted(spans, key=lambda span: span[:2])


def _interleaved(group: Sequence[Series]) -> list[Series]:
    """Join series that overlap in position and fill each other's spaces."""
    bundles: list[list[Series]] = []
    top = -math.inf
    for low, high, part in _spans(group):
        if low <= top:
            bundles[-1].append(part)
        else:
            bundles.append([part])
        top = max(top, high)
    return [part for bundle in bundles for part in _union(bundle, "interleaved")]


def _continued(group: Sequence[Series]) -> list[Series]:
    """Join a series to the series it continues, if the match is unique on both sides.

    Halves of repeated scans match more than once and stay separate.
    """
    spans = _spans(group)
    chains: list[list[Series]] = []
    for low, _, part in spans:
        before = [span for span in spans if _goes_on(span[2], part, low - span[1])]
        if len(before) == 1 and sum(_goes_on(before[0][2], b, c - before[0][1]) for c, _, b in spans) == 1:
            next(chain for chain in chains if chain[-1] is before[0][2]).append(part)
        else:
            chains.append([part])
    return [part for chain in chains for part in _union(chain, "continued")]


def _goes_on(first: Series, second: Series, step: float) -> bool:
    """Whether `second` can continue `first`, starting `step` mm above its last slice."""
    if step <= SAME_POSITION_MM:
        return False
    spacings = [part.spacing for part in (first, second) if part.spacing > 0]
    if len(spacings) == 2:
        return alike(*spacings) and step <= GAP_FACTOR * max(spacings)
    # A single slice has no step of its own, so it must lie where the next slice is expected.
    regular = spacings[0] if spacings else first.headers[0].thickness
    return regular is not None and alike(step, regular)


def _union(parts: Sequence[Series], how: Literal["interleaved", "continued"]) -> list[Series]:
    """Join `parts` into one series.

    An interleaved scan has regular steps and slices that do not overlap. A repeat shifted by a fraction of a
    step has slices thicker than the joint step. Without slice thickness (absent or 0) the two cases cannot
    be distinguished, and the parts stay separate.

    Returns:
        The joined series, or `parts` if slices would be left out or the parts are repeats.
    """
    if len(parts) == 1:
        return list(parts)
    whole = order_slices([header for part in parts for header in part.headers])
    if any(entry.code in LEFT_OUT for entry in whole.entries):
        return list(parts)
    if how == "interleaved":
        steps, thickness = steps_of(whole.positions), whole.headers[0].thickness
        side_by_side = thickness is not None and 0 < thickness <= ABUTTING_FACTOR * median(steps)
        if len(runs_of(steps)) != 1 or not side_by_side:
            return list(parts)
    refused = [entry for part in parts for entry in part.entries if entry.code in LEFT_OUT]
    left_out = tuple(header for part in parts for header in part.left_out)
    refused += unseen_entries(left_out, whole.headers, whole.positions)
    files: dict[str, set[str]] = defaultdict(set)
    for header in whole.headers:
        files[header.series_uid].add(header.path)
    shown = ", ".join(f"{uid} ({len(paths)} files)" for uid, paths in sorted(files.items()))
    under = f"{len(files)} series UIDs" if len(files) > 1 else f"{len(parts)} passes"
    detail = f"one scan under {under}, {how}: {shown}"
    joined = LedgerEntry(whole.study_uid, "", Code.SERIES_JOINED, detail)
    return [replace(whole, entries=(*refused, *whole.entries, joined), left_out=left_out)]
