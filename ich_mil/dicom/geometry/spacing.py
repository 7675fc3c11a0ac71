"""Regularity and gaps of the distances between neighbouring slices.

In: positions and thickness of the slices of a series, mm. Out: runs of equal steps, and steps with missing
slices.

Legend: `n` slices of a series; steps are the n - 1 distances between neighbours, mm.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

# Absolute and relative tolerance for equal steps, added: rounding (0.6, 0.7 for 0.625 mm) and one tenth.
STEP_TOLERANCE_MM = 0.1
STEP_TOLERANCE = 0.1
# Minimum number of equal steps that form a slab rather than an irregularity.
SLAB_STEPS = 3
# A step longer than the adjacent regular step by this factor lacks at least one slice.
GAP_FACTOR = 1.5
# Slices abut if their step is at most the thickness times this factor: a thicker slab, not a gap.
ABUTTING_FACTOR = 1.2


def steps_of(positions: Sequence[float]) -> list[float]:
    """Steps (n - 1) between n ordered positions, mm."""
    return [b - a for a, b in pairwise(positions)]


def alike(a: float, b: float) -> bool:
    """Whether two steps (mm) are equal within tolerance."""
    return abs(a - b) <= STEP_TOLERANCE_MM + STEP_TOLERANCE * min(a, b)


def runs_of(steps: Sequence[float], *, skip: Iterable[int] = ()) -> list[tuple[float, list[int]]]:
    """Runs of equal consecutive steps, ignoring the indices in `skip`.

    Returns:
        (median step in mm, indices of the steps) for each run.
    """
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
    """Find steps with at least one missing slice.

    Three or more equal steps form a slab and are regular. Any other step is compared with the slab that it
    interrupts, if at least one equal step follows on its other side. Otherwise it is compared with the larger
    of the two adjacent slabs, or with the median step if there are no slabs. A step is not a gap if the
    slices are thick enough to abut.

    Args:
        positions: n positions in order, mm.
        thickness: thickness of the n slices, mm; None if unknown.

    Returns:
        Index of the slice before each gap -> the regular step there, mm.
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
    """Find steps much longer than the slice thickness, regular or not, as if every second slice were missing.

    Args:
        positions: n positions in order, mm.
        thickness: thickness of the n slices, mm; None if unknown.

    Returns:
        Index of the slice before each such step -> mean thickness of the two slices, mm. Steps between slices
        of unknown thickness are omitted.
    """
    spaces: dict[int, float] = {}
    for i, step in enumerate(steps_of(positions)):
        mean = _mean_thickness(thickness, i)
        if mean is not None and step > GAP_FACTOR * mean:
            spaces[i] = mean
    return spaces


def _mean_thickness(thickness: Sequence[float | None], i: int) -> float | None:
    """Mean thickness of slices i and i + 1, mm; None if either is unknown."""
    here, after = thickness[i], thickness[i + 1]
    return None if here is None or after is None else (here + after) / 2
