"""Figures of the report: transparent background, grey text, line styles that differ in colour and dashes.

A figure may be placed on a light or a dark page. Text from outside is never parsed as mathematics.
"""

import io
import warnings
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ich_mil.pages.canvas import GREY, ORANGE, SKY, VERMILION
from ich_mil.pages.text import printable

GREEN, BLUE = "#009e73", "#0072b2"
STYLES = (
    (VERMILION, "-"),
    (BLUE, "--"),
    (GREEN, "-."),
    ("#cc79a7", ":"),
    (SKY, (0, (5, 1))),
    (ORANGE, (0, (3, 1, 1, 1))),
)


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
        # the default metadata contain a web address
        figure.savefig(buffer, format="png", dpi=150, transparent=True, metadata={"Software": None})
    return buffer.getvalue()
