"""What all figures share: a transparent ground, grey text, colours and line styles.

Figures sit on a light and on a dark page. Colours are those of Okabe and Ito (2008), which the colour-blind
tell apart; line styles differ besides. No text given from outside is read as mathematics, no state is shared
between figures, and the user's matplotlibrc has no part in them.
"""

import io
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ich_mil.report.text import printable

ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7"
GREY = "#727986"
"""Text and axes: contrast above 4.2 : 1 against both grounds of a page, white and near-black."""

_DPI = 150
METADATA: Any = {"Software": None}  # the default names a web address
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
"""Decorates what draws: matplotlib's defaults in place of the user's settings, such as `text.usetex`."""


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of width x height inches with grey, open axes side by side."""
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
"""Height of a line of a legend in inches."""


def add_legend(ax: Axes, handles: Sequence, names: Sequence[str], *, loc: Any) -> None:
    """A legend that shows every name as it is: also one that starts with _ or holds a dollar sign.

    `loc` is matplotlib's, or 'above' the axes, for which the figure needs a `ROW` for each name.
    """
    lines = [printable(name).replace("\n", " ").replace("\t", " ") for name in names]
    short = [line if len(line) <= 36 else line[:35] + "…" for line in lines]
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1)} if loc == "above" else {"loc": loc}
    legend = ax.legend(handles, [""] * len(short), frameon=False, fontsize=8.5, labelcolor=GREY, **place)
    for text, name in zip(legend.get_texts(), short, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def to_png(figure: Figure) -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # a name in a script the font lacks is drawn as boxes; the page beside it holds the name itself
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="png", dpi=_DPI, transparent=True, metadata=METADATA)
    return buffer.getvalue()
