"""Common figure style of the reports: transparent background, grey text, colours and line styles.

A figure may be placed on a light or a dark page. Colours are those of Okabe and Ito (2008), which are
distinct for the colour-blind; curves also differ in line style. Text from outside is never parsed as
mathematics, and the user's matplotlibrc has no effect.
"""

import io
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ich_mil.pages.text import printable

ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7"
GREY = "#727986"
"""Colour of text and axes: contrast above 4.2 : 1 against both page backgrounds, white and near-black."""

_DPI = 150
METADATA: Any = {"Software": None}  # matplotlib's default contains a web address
STYLES = (
    (VERMILION, "-"),
    (BLUE, "--"),
    (GREEN, "-."),
    (PURPLE, ":"),
    (SKY, (0, (5, 1))),
    (ORANGE, (0, (3, 1, 1, 1))),
)


own_style = matplotlib.rc_context(
    {name: value for name, value in matplotlib.rcParamsDefault.items() if "backend" not in name}
)
"""Decorator for drawing functions: matplotlib's defaults instead of user settings such as `text.usetex`."""


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Create a figure of width x height inches with `columns` axes side by side."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
    for ax in axes:
        ax.patch.set_alpha(0)
        ax.tick_params(colors=GREY, labelsize=9)
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(GREY)
        ax.xaxis.label.set_color(GREY)
        ax.yaxis.label.set_color(GREY)
        ax.title.set_color(GREY)
    return figure, axes


ROW = 0.18
"""Height of a legend line, inches."""


def add_legend(ax: Axes, handles: Sequence, names: Sequence[str], *, loc: Any) -> None:
    """Add a legend that shows every name literally, including names with a leading '_' or a dollar sign.

    `loc` is matplotlib's, or 'above' the axes; the figure then needs an additional height of `ROW` per name.
    """
    lines = [printable(name).replace("\n", " ").replace("\t", " ") for name in names]
    short = [line if len(line) <= 36 else line[:35] + "…" for line in lines]
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1)} if loc == "above" else {"loc": loc}
    legend = ax.legend(handles, [""] * len(short), frameon=False, fontsize=8.5, labelcolor=GREY, **place)
    for text, name in zip(legend.get_texts(), short, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def to_png(figure: Figure) -> bytes:
    """Render a figure to PNG bytes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # glyphs missing from the font are drawn as boxes; the page contains the name as text
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="png", dpi=_DPI, transparent=True, metadata=METADATA)
    return buffer.getvalue()
