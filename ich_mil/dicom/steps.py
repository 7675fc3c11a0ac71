"""Distances between neighbouring slices: which are regular, and where a slice is missing.

Legend: `n` slices of a series; steps are the n - 1 distances between neighbours, mm.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

# Steps that differ by less belong together: 0.1 mm of rounding (0.6, 0.7 for 0.625 mm), or a tenth.
STEP_TOLERANCE_MM = 0.1
STEP_TOLERANCE = 0.1
# So many equal steps are a slab of their own rather than an irregularity.
SLAB_STEPS = 3
# A step this much longer than the regular one beside it lacks at least one slice.
GAP_FACTOR = 1.5
# Slices meet or nearly meet when the step is no more than their thickness times this: a thicker slab, no gap.
ABUTTING_FACTOR = 1.2


def steps_of(positions: Sequence[float]) -> list[float]:
    """The n - 1 steps between n positions in order, mm."""
    return [b - a for a, b in pairwise(positions)]


def alike(a: float, b: float) -> bool:
    """Whether two steps (mm) differ by no more than rounding."""
    return abs(a - b) <= STEP_TOLERANCE_MM + STEP_TOLERANCE * min(a, b)


def runs_of(steps: Sequence[float], *, skip: Iterable[int] = ()) -> list[tuple[float, list[int]]]:
    """Stretches of alike steps, without those in `skip`: (median step in mm, indices of the steps)."""
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
    """Steps that lack a slice: index of the slice before -> the regular step there, mm.

    Three or more alike steps are a slab and regular. Any other step is measured against the slab that it lies
    in, which goes on behind it if by one step only; else against the larger of the two slabs beside it (or,
    without slabs, against the median step). It is no gap where the slices are so thick that they meet.

    Args:
        positions: n positions in order, mm.
        thickness: of the n slices, mm; None where it is not told.
    """
    steps = steps_of(positions)
    runs = runs_of(steps)
    gaps: dict[int, float] = {}
    for place, (_, run) in enumerate(runs):
        if len(run) >= SLAB_STEPS:
            continue
        below, above = runs[:place], runs[place + 1 :]
        before = [length for length, slab in below if len(slab) >= SLAB_STEPS][-1:]
        after = [length for length, slab in above if len(slab) >= SLAB_STEPS][:1]
        inside = [one for one in before if any(alike(one, length) for length, _ in above[:1])]
        inside += [one for one in after if any(alike(one, length) for length, _ in below[-1:])]
        regular = max(inside or before + after, default=median(steps))
        for i in run:
            mean = _mean_thickness(thickness, i)
            meets = mean is not None and steps[i] <= ABUTTING_FACTOR * mean
            if steps[i] > GAP_FACTOR * regular and not meets:
                gaps[i] = regular
    return gaps


def spaces_between(positions: Sequence[float], thickness: Sequence[float | None]) -> dict[int, float]:
    """Steps much longer than the slices are thick, however regular: as if every second slice were missing.

    Args:
        positions: n positions in order, mm.
        thickness: of the n slices, mm; None where it is not told.

    Returns:
        Index of the slice before -> the mean thickness of the two, mm; nothing where no thickness is told.
    """
    spaces: dict[int, float] = {}
    for i, step in enumerate(steps_of(positions)):
        mean = _mean_thickness(thickness, i)
        if mean is not None and step > GAP_FACTOR * mean:
            spaces[i] = mean
    return spaces


def _mean_thickness(thickness: Sequence[float | None], i: int) -> float | None:
    """The mean thickness of a slice and the next, mm; None where one is not told."""
    here, after = thickness[i], thickness[i + 1]
    return None if here is None or after is None else (here + after) / 2
