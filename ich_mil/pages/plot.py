"""Line plots of the pages as inline SVG, drawn by matplotlib and coloured by the style sheet of the page.

An inline SVG has the colours of the page, dark or light, and is sharp at every size and in print. The page's
content security policy allows no style attributes: lines, bands and grid have classes instead.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ich_mil.pages.canvas import own_style

STYLES = 4
"""Number of line styles in `style.css`; further lines repeat them."""
WIDTH, HEIGHT = 600, 480
_AXES = (66 / WIDTH, 56 / HEIGHT, 520 / WIDTH, 410 / HEIGHT)
_METADATA = ("Date", "Creator", "Format", "Type")
_UNUSED = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->|<defs>\s*</defs>", re.DOTALL)


@dataclass(frozen=True)
class Plot:
    """A plot; `names` are those of its lines, `svg` is the content of its SVG of `WIDTH` x `HEIGHT`."""

    title: str
    note: str
    labels: tuple[str, str]
    names: Sequence[str]
    svg: Markup


@own_style
def make_plot(
    frames: Mapping[str, pd.DataFrame],
    *,
    title: str,
    labels: tuple[str, str],
    x: tuple[float, float] = (0, 1),
    y: tuple[float, float] = (0, 1),
    note: str = "",
    reference: Sequence[tuple[float, float]] = (),
    whole_x: bool = False,
) -> Plot:
    """Draw a plot.

    Args:
        frames: by name of the line, columns `x` and `y`, and its band `low` to `high`; NaN are left out.
        title: heading.
        labels: of the x-axis and the y-axis.
        x: range of the x-axis.
        y: range of the y-axis.
        note: explanation.
        reference: points (x, y) of a dashed line.
        whole_x: ticks of the x-axis are whole numbers.
    """
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ich_mil", "font.size": 16}):
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)
        figure.patch.set_visible(False)
        ax = figure.add_axes(_AXES, xlim=x, ylim=y, xlabel=labels[0], ylabel=labels[1], frame_on=False)
        ax.tick_params(length=0, pad=8)
        for axis, whole in ((ax.xaxis, whole_x), (ax.yaxis, False)):
            axis.set_major_locator(MaxNLocator(5, integer=whole, min_n_ticks=1))
            axis.set_major_formatter(lambda value, _: f"{value:.6g}")
            axis.grid(visible=True, gid="grid", clip_on=False)
        bands = [(number, frame.dropna()) for number, frame in enumerate(frames.values()) if "low" in frame]
        for number, band in bands:
            low, high = band.low.clip(*y), band.high.clip(*y)
            ax.fill_between(band.x, low, high, gid=f"band line{number % STYLES}", clip_on=False)
        ax.plot([p[0] for p in reference], [p[1] for p in reference], gid="reference", clip_on=False)
        for number, frame in reversed([*enumerate(frames.values())]):
            line = frame[frame.y >= y[0]]  # no NaN
            line = pd.concat([line, line]) if len(line) == 1 else line  # round caps: a dot
            ax.plot(line.x, line.y, gid=f"curve line{number % STYLES}", clip_on=False)
        figure.savefig(buffer := io.StringIO(), format="svg", metadata=dict.fromkeys(_METADATA))
    return Plot(title, note, labels, [str(name) for name in frames], _without_styles(buffer.getvalue()))


def _without_styles(svg: str) -> Markup:
    """Content of the SVG of a figure: classes in place of styles and ids, without metadata."""
    svg = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    svg = _UNUSED.sub("", svg)
    svg = re.sub(r'<g id="(grid|reference|(?:band|curve) line\d)">', r'<g class="\1">', svg)
    svg = re.sub(r' id="[^"]*"', "", svg)
    svg = re.sub(r' style="[^"]*(text-anchor): (\w+)[^"]*"', r' \1="\2"', svg)
    return Markup(re.sub(r' style="[^"]*"', "", svg))
