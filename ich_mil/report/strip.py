"""The strip along a scan: where on the page each slice's probability, its interval and the runs are drawn.

In: a `ScanResult`. Out: places in the units of an SVG picture of `WIDTH` x 206; the template
`strip.svg.j2` draws them. An SVG in the page can be clicked and read aloud, and stays sharp on paper.

Shapes: n slices, from the lowest at the left to the highest.
"""

from collections.abc import Collection
from dataclasses import dataclass

from ich_mil.dicom.steps import find_gaps, steps_of
from ich_mil.evaluate.metrics import THRESHOLD
from ich_mil.ledger import Code
from ich_mil.predictions import ScanResult
from ich_mil.report.page import percent
from ich_mil.report.words import numbers, span

WIDTH = 1000.0
LEFT, RIGHT = 58.0, 992.0
TOP, BOTTOM = 34.0, 160.0
"""Where 100 % and 0 % are."""
TICKS = 12
"""Slice numbers under the strip, at most, beside 1."""
CHARACTER = 7.6
"""Width of a character of a run's name."""


@dataclass(frozen=True)
class Column:
    """One slice.

    Attributes:
        slice: place in the scan, from 0.
        x: its left edge.
        width: up to the next slice.
        y: of its probability.
        high: y of the upper end of its 95 % interval.
        low: y of the lower end.
        positive: whether it reaches `THRESHOLD`.
        mapped: whether it has heatmaps.
        labelled: whether the data set says that it shows a bleed.
        text: all of this in words.
    """

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


@dataclass(frozen=True)
class Bracket:
    """A run of positive slices, from `left` to `right`; `name` is empty where there is no room for it."""

    left: float
    right: float
    name: str


@dataclass(frozen=True)
class Strip:
    """The whole strip; `threshold` is the y of `THRESHOLD`.

    `ticks` are (x, number) under it, `gaps` (x, words) where slices side by side lie far apart.
    """

    columns: tuple[Column, ...]
    brackets: tuple[Bracket, ...]
    ticks: tuple[tuple[float, int], ...]
    gaps: tuple[tuple[float, str], ...]
    threshold: float
    text: str


def make_strip(scan: ScanResult, mapped: Collection[int] = ()) -> Strip:
    """Lay out the strip of a scan.

    Args:
        scan: at least one slice.
        mapped: the slices with heatmaps.
    """
    n = len(scan.slices)
    width = (RIGHT - LEFT) / n
    columns = []
    for one in scan.slices:
        low, high = one.interval_95
        text = f"Slice {one.slice + 1}: {percent(one.probability)}, "
        text += f"95 % interval {percent(low)} to {percent(high)}"
        columns.append(
            Column(
                slice=one.slice,
                x=LEFT + one.slice * width,
                width=width,
                y=height_of(one.probability),
                high=height_of(high),
                low=height_of(low),
                positive=one.probability >= THRESHOLD,
                mapped=one.slice in mapped,
                labelled=one.label == 1,
                text=text,
            )
        )
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, n) if n <= TICKS * step or step == n)
    marked = [1, *(k for k in range(step, n + 1, step) if k > max(1, step / 2))]
    ticks = tuple((LEFT + (k - 0.5) * width, k) for k in marked)
    positive = [span(run.first, run.last) for run in scan.runs]
    reached = f"at or above {percent(THRESHOLD)}: {', '.join(positive) or 'none'}"
    text = f"Probability of each of {n} slices; {reached}."
    gaps = tuple((LEFT + (i + 1) * width, words) for i, words in _gaps(scan))
    return Strip(tuple(columns), _brackets(scan, width), ticks, gaps, height_of(THRESHOLD), text)


def height_of(probability: float) -> float:
    """The y of a probability."""
    return BOTTOM - (BOTTOM - TOP) * probability


def _gaps(scan: ScanResult) -> list[tuple[int, str]]:
    """The slices, from 0, above which a gap lies, and its words; none where the ledger tells of none."""
    positions = [one.position_mm for one in scan.slices if one.position_mm is not None]
    if all(entry.code != Code.GAP for entry in scan.ledger) or len(positions) < len(scan.slices):
        return []
    steps = steps_of(positions)
    return [
        (i, f"{steps[i]:.1f} mm between slices {i + 1} and {i + 2}")
        for i in sorted(find_gaps(positions, [None] * len(positions)))
    ]


def _brackets(scan: ScanResult, width: float) -> tuple[Bracket, ...]:
    brackets: list[Bracket] = []
    taken = 0.0  # right end of the last name
    for run in scan.runs:
        left, right = LEFT + run.first * width, LEFT + (run.last + 1) * width
        name = numbers(run.first, run.last)
        half = CHARACTER * len(name) / 2
        middle = (left + right) / 2
        if middle - half < taken + CHARACTER or not half <= middle <= WIDTH - half:
            name = ""
        else:
            taken = middle + half
        brackets.append(Bracket(left, right, name))
    return tuple(brackets)
