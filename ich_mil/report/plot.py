"""Line plots of the pages: coordinates of an inline SVG, drawn by the template `plot.svg.j2`.

An inline SVG has the colours of the page, dark or light, and is sharp at every size and in print.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

LEFT, RIGHT, TOP, BOTTOM = 66.0, 586.0, 14.0, 424.0
"""Edges of the axes in an SVG of 600 x 480."""
STYLES = 4
"""Number of line styles in `style.css`; further lines repeat them."""


@dataclass(frozen=True)
class Line:
    """Points of a line and outline of its band as SVG coordinates; the outline is empty without a band."""

    name: str
    style: int
    points: str
    band: str


@dataclass(frozen=True)
class Plot:
    """A plot; ticks are (coordinate, text), `reference` are the points of a dashed line."""

    title: str
    note: str
    labels: tuple[str, str]
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    lines: Sequence[Line]
    reference: str


@dataclass(frozen=True)
class Axes:
    """Ranges of both axes, to SVG coordinates."""

    x: tuple[float, float] = (0, 1)
    y: tuple[float, float] = (0, 1)

    def across(self, x: np.ndarray) -> np.ndarray:
        """SVG coordinate of each x."""
        return LEFT + (RIGHT - LEFT) * (x - self.x[0]) / (self.x[1] - self.x[0])

    def down(self, y: np.ndarray) -> np.ndarray:
        """SVG coordinate of each y."""
        return BOTTOM - (BOTTOM - TOP) * (y - self.y[0]) / (self.y[1] - self.y[0])

    def points(self, x: np.ndarray, y: np.ndarray) -> str:
        """The attribute `points` of an SVG polyline."""
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(self.across(x), self.down(y), strict=True))


UNIT = Axes()
"""Axes of two proportions."""


def make_plot(
    frames: Mapping[str, pd.DataFrame],
    axes: Axes,
    *,
    title: str,
    labels: tuple[str, str],
    note: str = "",
    reference: Sequence[tuple[float, float]] = (),
    whole_x: bool = False,
) -> Plot:
    """Compute a plot.

    Args:
        frames: by name of the line, columns `x` and `y`, and its band `low` to `high` if any; points with a
            NaN or below the axes are left out.
        axes: ranges of the axes.
        title: heading.
        labels: of the x-axis and the y-axis.
        note: explanation.
        reference: points (x, y) of a dashed line.
        whole_x: ticks of the x-axis are whole numbers.
    """
    lines = []
    for number, (name, frame) in enumerate(frames.items()):
        line, band = frame[frame.y >= axes.y[0]], frame.dropna() if "low" in frame else frame[:0]
        if len(line) == 1:  # the round caps of a line without length are a dot
            line = pd.concat([line, line])
        outline = ""
        if len(band):
            there_and_back = pd.concat([band.assign(edge=band.low), band.assign(edge=band.high)[::-1]])
            outline = axes.points(there_and_back.x.to_numpy(), there_and_back.edge.clip(*axes.y).to_numpy())
        points = axes.points(line.x.to_numpy(), line.y.to_numpy())
        lines.append(Line(str(name), number % STYLES, points, outline))
    x_ticks, y_ticks = _ticks(*axes.x, whole=whole_x), _ticks(*axes.y)
    return Plot(
        title=title,
        note=note,
        labels=labels,
        x_ticks=[(float(x), f"{tick:.6g}") for x, tick in zip(axes.across(x_ticks), x_ticks, strict=True)],
        y_ticks=[(float(y), f"{tick:.6g}") for y, tick in zip(axes.down(y_ticks), y_ticks, strict=True)],
        lines=lines,
        reference=axes.points(*np.array(reference, dtype=float).reshape(-1, 2).T),
    )


def _ticks(low: float, high: float, *, whole: bool = False) -> np.ndarray:
    ticks = np.asarray(MaxNLocator(5, integer=whole, min_n_ticks=1).tick_values(low, high))
    ticks = ticks[(ticks >= low - 1e-9) & (ticks <= high + 1e-9)]
    return np.where(np.abs(ticks) < 1e-9, 0.0, ticks)
