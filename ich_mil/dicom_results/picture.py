"""Pictures of the Secondary Capture images: a summary page, and one page for each slice with maps.

No patient name, date or identifier is drawn; they are in the attributes of the study.

Shapes: n slices, k slices with maps, H, W pixels.
"""

import textwrap
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from ich_mil.ledger import LOOK, NEGATIVE, NOTICE, POSITIVE, THRESHOLD, decision_words, problems
from ich_mil.model.maps import ScanMaps
from ich_mil.model.predictions import Provenance, ScanPrediction
from ich_mil.network.windows import apply_windows, resize
from ich_mil.pages.canvas import GREY, ORANGE, SKY, VERMILION, own_style
from ich_mil.pages.page import percent
from ich_mil.pages.pictures import LOCATION, UNCERTAINTY, WINDOWS, Shades
from ich_mil.pages.text import printable
from ich_mil.pages.words import unlike
from ich_mil.study.geometry.planes import Edges

_WHITE, _GREY, _BLACK = "#f2f2f2", "#b4bac4", "#101418"
_DPI = 100
_COLOURS = {POSITIVE: VERMILION, NEGATIVE: SKY, LOOK: ORANGE}
_OPACITY = 0.6
"""Largest opacity of an overlay."""
_MARK_INSET = 12
"""Distance from the edge of a picture to the centre of its letter, pixels."""


@own_style
def summary_picture(
    scan: ScanPrediction,
    model: Provenance,
    decided_by: str,
    hu: np.ndarray,
    maps: ScanMaps | None,
    edges: Sequence[Edges | None],
    shown: Sequence[int],
) -> np.ndarray:
    """Draw the summary page: decision, probability, strip of slices, and up to eight slices (`shown`).

    Args:
        scan: result of the scan.
        model: provenance of the model.
        decided_by: description of the decision rule.
        hu: (n, H, W) HU.
        maps: (k, H, W) on the pixel grid of the slices, if any.
        edges: sides of the patient at the edges of each slice's picture; None: not marked.
        shown: indices of the slices.

    Returns:
        (1024, 1024, 3) uint8 RGB.
    """
    figure = _page(10.24, 10.24)
    low, high = scan.interval_95
    _say(figure, 0.965, "Intracranial hemorrhage: result of a model", 15)
    _say(figure, 0.925, decision_words(decided_by)[scan.decision], 24, colour=_COLOURS[scan.decision])
    text = f"probability {percent(scan.probability)}, 95 % interval {percent(low)} to {percent(high)}, "
    _say(figure, 0.89, text + f"standard deviation {percent(scan.std)}", 13)
    wrong = "; ".join(problems(scan.ledger)) or "no problem"
    slices = "1 slice" if len(scan.slices) == 1 else f"{len(scan.slices)} slices"
    notes = [
        *_lines(figure, unlike(scan), 9, most=1),
        *_lines(figure, f"Input: {slices}; {wrong}", 9, most=2),
        *_lines(figure, f"Decided by: {decided_by}", 9, most=2 if unlike(scan) else 3),
    ]
    for number, line in enumerate(notes):
        _say(figure, 0.868 - 0.0155 * number, line, 9, colour=_GREY)
    _strip(figure.add_axes((0.07, 0.655, 0.89, 0.145)), scan, shown)
    pictures = _grey(hu, shown)
    for cell, i in enumerate(shown):
        corner = (32 + 244 * (cell % 4), 340 - 282 * (cell // 4))
        title = f"slice {i + 1}: {percent(scan.slices[i].probability)}"
        picture = _coloured(pictures[cell], _map_of(maps, i), LOCATION)
        _show(figure, picture, corner, 228, title, edges[i])
    _say(figure, 0.044, f"{NOTICE} The original images are unchanged: look at the full study.", 11)
    warm = "" if maps is None else f"Colours: likely location of a bleed, {_scale(LOCATION)}. "
    footer = f"{warm}Slices count from below. {model.name}, version {model.version}, weights {model.weights}"
    _say(figure, 0.024, footer, 8, colour=_GREY)
    _say(figure, 0.009, f"Trained on {model.trained_on}", 8, colour=_GREY)
    return _pixels(figure)


@own_style
def slice_picture(
    scan: ScanPrediction, index: int, hu: np.ndarray, maps: ScanMaps, edges: Edges | None
) -> np.ndarray:
    """Draw slice `index` beside the likely location of a bleed and its standard deviation.

    Arguments as for `summary_picture`. Returns (480, 1200, 3) uint8 RGB.
    """
    figure = _page(12.0, 4.8)
    slice_ = scan.slices[index]
    (picture,) = _grey(hu, [index])
    at = int(np.searchsorted(maps.slices, index))
    panels = (
        ("the slice", _coloured(picture, None, LOCATION)),
        (f"likely location of a bleed, {_scale(LOCATION)}", _coloured(picture, maps.mean[at], LOCATION)),
        (f"its uncertainty, {_scale(UNCERTAINTY)}", _coloured(picture, maps.std[at], UNCERTAINTY)),
    )
    for i, (title, panel) in enumerate(panels):
        _show(figure, panel, (10 + 398 * i, 30), 384, title, edges)
    low, high = slice_.interval_95
    _say(
        figure,
        0.955,
        f"Intracranial hemorrhage: slice {index + 1} of {len(scan.slices)} from below, probability "
        f"{percent(slice_.probability)}, "
        f"95 % interval {percent(low)} to {percent(high)}",
        13,
    )
    _say(figure, 0.03, f"{NOTICE} The original images are unchanged.", 10)
    return _pixels(figure)


def _page(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor=_BLACK)
    FigureCanvasAgg(figure)
    return figure


def _say(figure: Figure, y: float, text: str, size: float, *, colour: str = _WHITE) -> None:
    """Draw one centred line, truncated to the width of the figure and not parsed as mathematics."""
    short = "".join(_lines(figure, text, size, most=1))
    figure.text(0.5, y, short, color=colour, fontsize=size, ha="center", va="center", parse_math=False)


def _lines(figure: Figure, text: str, size: float, *, most: int) -> list[str]:
    width = int(figure.get_figwidth() * 120 / size)
    return textwrap.wrap(" ".join(printable(text).split()), width, max_lines=most, placeholder=" …")


def _strip(ax: Axes, scan: ScanPrediction, shown: Sequence[int]) -> None:
    """Bar chart of slice probabilities with intervals; triangles mark the shown slices.

    Only the triangles of slices that reach the threshold have the colour of an alarm.
    """
    x = np.arange(1, len(scan.slices) + 1)
    low, high = np.array([slice_.interval_95 for slice_ in scan.slices]).T
    ax.set_facecolor(_BLACK)
    ax.bar(x, [slice_.probability for slice_ in scan.slices], width=0.86, color=SKY, alpha=0.75, linewidth=0)
    ax.vlines(x, low, high, color=_WHITE, linewidth=min(3.0, 150 / len(x)))
    ax.axhline(THRESHOLD, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    for i in shown:
        colour = VERMILION if scan.slices[i].probability >= THRESHOLD else _GREY
        ax.plot(i + 1, 1.08, "v", color=colour, markersize=6, clip_on=False)
    ax.set(xlim=(0.3, len(x) + 0.7), ylim=(0, 1.12))
    ax.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.tick_params(colors=_WHITE, labelsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.set_xlabel("slice, from the lowest to the highest", color=_WHITE, fontsize=9)


def _grey(hu: np.ndarray, indices: Sequence[int]) -> np.ndarray:
    return apply_windows(torch.from_numpy(hu[list(indices)]), (WINDOWS["brain"],))[:, 0].numpy()


def _map_of(maps: ScanMaps | None, index: int) -> np.ndarray | None:
    if maps is None or index not in maps.slices:
        return None
    return maps.mean[int(np.searchsorted(maps.slices, index))]


def _coloured(grey: np.ndarray, values: np.ndarray | None, shades: Shades) -> np.ndarray:
    """Blend a map over a grey slice (H, W). Returns (H, W, 3)."""
    picture = np.repeat(grey[..., None], 3, axis=2)
    if values is None:
        return picture
    strength = np.clip(np.nan_to_num(values) / shades.top, 0, 1)
    share = _OPACITY * shades.opacity(strength)[..., None]
    return (1 - share) * picture + share * shades.colours(strength)[..., :3]


def _scale(shades: Shades) -> str:
    """Values of the first and of the last colour in words."""
    return f"{100 * shades.clear * shades.top:g} to {100 * shades.top:g} %"


def _show(
    figure: Figure, picture: np.ndarray, corner: tuple[int, int], side: int, title: str, edges: Edges | None
) -> None:
    """Draw a picture (H, W, 3) as a square with a title above and the sides of the patient at its edges.

    `corner` is the lower left corner (x, y) in pixels; `edges` of None draws no letters.
    """
    x, y = corner
    square = resize(torch.from_numpy(picture).movedim(2, 0)[None].float(), side)[0]  # (3, side, side)
    figure.figimage(square.movedim(0, 2).clamp(0, 1).numpy(), x, y, origin="upper")
    width, height = figure.get_size_inches() * _DPI
    at = ((x + side / 2) / width, (y + side + 14) / height)
    figure.text(*at, title, color=_WHITE, fontsize=11, ha="center", va="center", parse_math=False)
    half, inset = side / 2, _MARK_INSET
    marks = {"left": (inset, half), "right": (side - inset, half), "top": (half, side - inset)}
    marks["bottom"] = (half, inset)
    for edge, letter in edges._asdict().items() if edges else ():
        right, up = marks[edge]
        figure.text(
            (x + right) / width,
            (y + up) / height,
            letter,
            color=_WHITE,
            fontsize=11,
            fontweight="bold",
            ha="center",
            va="center",
            path_effects=[withStroke(linewidth=3, foreground="black")],
        )


def _pixels(figure: Figure) -> np.ndarray:
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
