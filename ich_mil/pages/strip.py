"""Layout of the strip chart: probability and 95 % interval of each slice along the scan, with runs and gaps.

Coordinates are in the units of an SVG of `WIDTH` x 152, drawn by the template `strip.svg.j2`, the lowest
slice at the left. An inline SVG is clickable, accessible to screen readers, and sharp in print.
"""

from collections.abc import Collection
from typing import NamedTuple

from ich_mil.ledger import THRESHOLD, Code, gap_steps
from ich_mil.model.predictions import ScanPrediction
from ich_mil.pages.page import interval, percent
from ich_mil.pages.words import numbers, span
from ich_mil.study.geometry.planes import find_gaps, spaces_between, steps_of

WIDTH = 1000.0
LEFT, RIGHT = 58.0, 992.0
TOP, BOTTOM = 34.0, 108.0
"""y of 100 % and of 0 %."""
TICKS = 12
"""Largest number of slice numbers under the strip besides slice 1."""
CHARACTER = 7.6
"""Width of a character in the label of a run."""


class _Column(NamedTuple):
    """One slice: left edge x, distance to the next, y of the probability and of the ends of its interval."""

    slice: int
    x: float
    width: float
    y: float
    high: float
    low: float
    positive: bool
    mapped: bool
    labelled: bool
    text: str


class _Bracket(NamedTuple):
    """A run of positive slices, from `left` to `right`; `name` is empty where its text does not fit."""

    left: float
    right: float
    name: str


class Strip(NamedTuple):
    """Coordinates of the strip: y of `THRESHOLD`, ticks (x, slice number), and gaps (x, text)."""

    columns: list[_Column]
    brackets: list[_Bracket]
    ticks: list[tuple[float, int]]
    gaps: list[tuple[float, str]]
    threshold: float
    text: str


def make_strip(scan: ScanPrediction, mapped: Collection[int] = ()) -> Strip:
    """Compute the layout; `mapped` are the indices of the slices with heatmaps."""
    n = len(scan.slices)
    width = (RIGHT - LEFT) / n
    columns = []
    for slice_ in scan.slices:
        low, high = slice_.interval_95
        text = f"Slice {slice_.slice + 1}: {percent(slice_.probability)}, "
        text += f"95 % interval {interval(slice_.interval_95)}"
        ends = (height_of(slice_.probability), height_of(high), height_of(low))
        marks = (slice_.probability >= THRESHOLD, slice_.slice in mapped, slice_.label == 1)
        columns.append(_Column(slice_.slice, LEFT + slice_.slice * width, width, *ends, *marks, text))
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, n) if n <= TICKS * step or step == n)
    marked = [1, *(k for k in range(step, n + 1, step) if k > max(1, step / 2))]
    ticks = [(LEFT + (k - 0.5) * width, k) for k in marked]
    positive = [span(run.first, run.last) for run in scan.runs]
    reached = f"at or above {percent(THRESHOLD)}: {', '.join(positive) or 'none'}"
    gaps = [(LEFT + (i + 1) * width, text) for i, text in _gaps(scan)]
    return Strip(
        columns,
        _brackets(scan, width),
        ticks,
        gaps,
        height_of(THRESHOLD),
        f"Probability of each of {n} slices; {reached}.",
    )


def height_of(probability: float) -> float:
    """The y coordinate of a probability."""
    return BOTTOM - (BOTTOM - TOP) * probability


def _gaps(scan: ScanPrediction) -> list[tuple[int, str]]:
    """Index of the slice below each gap, and a description; empty if a position is unknown."""
    positions = [slice_.position_mm for slice_ in scan.slices if slice_.position_mm is not None]
    if all(entry.code != Code.GAP for entry in scan.ledger) or len(positions) < len(scan.slices):
        return []
    steps, gaps = steps_of(positions), {*find_gaps(positions, [None] * len(positions))}
    if all(entry.code != Code.AVERAGED for entry in scan.ledger):
        of_all = [entry for entry in scan.ledger if "between slices" in entry.detail]
        for _, _, thickness in gap_steps(of_all):
            gaps |= spaces_between(positions, [thickness] * len(positions))
    return [(i, f"{steps[i]:.1f} mm between slices {i + 1} and {i + 2}") for i in sorted(gaps)]


def _brackets(scan: ScanPrediction, width: float) -> list[_Bracket]:
    brackets: list[_Bracket] = []
    taken = 0.0  # right end of the last label
    for run in scan.runs:
        left, right = LEFT + run.first * width, LEFT + (run.last + 1) * width
        name = numbers(run.first, run.last)
        half = CHARACTER * len(name) / 2
        middle = (left + right) / 2
        if middle - half < taken + CHARACTER or not half <= middle <= WIDTH - half:
            name = ""
        else:
            taken = middle + half
        brackets.append(_Bracket(left, right, name))
    return brackets
