"""Figures of the report pages as PNG bytes.

In: arrays. Out: PNG, drawn as `ich_mil.report.canvas` says.

Shapes: n slices of one scan, B scans, H, W pixels.
"""

import base64
import io
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import imsave
from matplotlib.ticker import MaxNLocator
from scipy.ndimage import zoom
from sklearn.metrics import roc_auc_score, roc_curve

from ich_mil.evaluate.metrics import CALIBRATION_BINS, THRESHOLD, calibration_bins
from ich_mil.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    METADATA,
    SKY,
    STYLES,
    VERMILION,
    add_legend,
    new_figure,
    to_png,
)

MEAN_COLOURS = LinearSegmentedColormap.from_list("mean", [VERMILION, "#ffb000", "#fff3c4"])
"""Overlay of a mean map: warm, lighter where it is stronger."""
STD_COLOURS = LinearSegmentedColormap.from_list("std", ["#2a5fd0", SKY, "#e2f6ff"])
"""Overlay of an uncertainty map: cold, lighter where it is stronger."""

PICTURE_PIXELS = 256
"""Longest side of a picture in the page; twelve of them stay well under 2 MB."""
MAX_CURVES = 6
"""Curves in one ROC or reliability figure; the first models given are drawn."""

_OPACITY = 0.85
"""Opacity of an overlay where its map is largest."""


def data_uri(png: bytes) -> str:
    """PNG bytes as an address that holds the picture itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def slice_strip(
    probability: np.ndarray,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
    *,
    shown: Sequence[int] = (),
    labels: np.ndarray | None = None,
) -> bytes:
    """Probability of each slice from the lowest to the highest, with a line from `low` to `high`.

    Args:
        probability: (n,) in [0, 1].
        low: (n,) lower end of the uncertainty; None draws none.
        high: (n,) upper end.
        shown: places (from 0) of the slices whose pictures the page shows; they are marked.
        labels: (n,) slice labels; positive slices are marked under the curve. None or unknown marks nothing.
    """
    figure, (ax,) = new_figure(8.6, 2.5)
    place = np.arange(1, len(probability) + 1)
    ax.bar(place, probability, width=0.86, color=SKY, alpha=0.75, linewidth=0)
    if low is not None and high is not None:
        width = min(3.0, 150 / len(place))  # points; lines of neighbours never touch
        ax.vlines(place, np.clip(low, 0, 1), np.clip(high, 0, 1), color=BLUE, linewidth=width)
    ax.axhline(THRESHOLD, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    marked = np.asarray(shown, dtype=int)
    ax.plot(place[marked], np.full(len(marked), 1.07), "v", color=VERMILION, markersize=6, clip_on=False)
    if labels is not None and (np.asarray(labels) == 1).any():
        positive = place[np.asarray(labels) == 1]
        ax.plot(positive, np.full(len(positive), -0.055), "s", color=GREEN, markersize=4, clip_on=False)
    ax.set(xlim=(0.3, len(place) + 0.7), ylim=(-0.09, 1.12), xlabel="slice, from the lowest to the highest")
    ax.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return to_png(figure)


def roc_curves(labels: np.ndarray, scores: Mapping[str, np.ndarray]) -> bytes:
    """ROC curves of the first `MAX_CURVES` scores over the scans whose label is known.

    Args:
        labels: (B,) in {0, 1} or unknown (-1), with both classes present.
        scores: (B,) of each model by name.
    """
    figure, (ax,) = new_figure(4.2, 4.0)
    known = labels >= 0
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    handles, names = [], []
    for (name, score), (colour, style) in zip(scores.items(), STYLES, strict=False):
        false, true, _ = roc_curve(labels[known], score[known])
        handles += ax.plot(false, true, color=colour, linestyle=style, linewidth=2)
        names.append(f"{roc_auc_score(labels[known], score[known]):.3f}  {name}")
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xlabel="false positive rate", ylabel="true positive rate")
    ax.set_aspect("equal")
    add_legend(ax, handles, names, loc="lower right")
    return to_png(figure)


def reliability(labels: np.ndarray, probabilities: Mapping[str, np.ndarray]) -> bytes:
    """Fraction of positives against mean probability, in the bins of the calibration error.

    Args:
        labels: (B,) in {0, 1} or unknown (-1), at least one known.
        probabilities: (B,) of each model by name; the first `MAX_CURVES` are drawn.
    """
    figure, (ax,) = new_figure(4.2, 4.0)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    handles = []
    for probability, (colour, style) in zip(probabilities.values(), STYLES, strict=False):
        mean, fraction, _ = calibration_bins(labels, probability)
        handles += ax.plot(mean, fraction, "o", color=colour, linestyle=style, linewidth=1.6, markersize=4.5)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="fraction positive")
    ax.set_xlabel(f"probability given (mean of up to {CALIBRATION_BINS} bins)")
    ax.set_aspect("equal")
    add_legend(ax, handles, list(probabilities)[:MAX_CURVES], loc="upper left")
    return to_png(figure)


def training_curves(curves: pd.DataFrame) -> bytes:
    """Curves over epochs: losses left, everything else right; missing values are bridged.

    Args:
        curves: index = epoch, one column a curve; columns with 'loss' in their name are losses.
    """
    losses = [name for name in curves if "loss" in str(name)]
    others = [name for name in curves if "loss" not in str(name)]
    groups = [group for group in (losses, others) if group]
    figure, axes = new_figure(8.6 if len(groups) == 2 else 4.6, 2.9, columns=len(groups))
    for ax, group in zip(axes, groups, strict=True):
        handles, names = [], []
        for number, name in enumerate(group):
            colour, style = STYLES[number % len(STYLES)]
            known = curves[name].dropna()
            marker = "o" if len(known) == 1 else None
            handles += ax.plot(
                known.index, known.to_numpy(), color=colour, linestyle=style, linewidth=1.8, marker=marker
            )
            names.append(str(name))
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        add_legend(ax, handles, names, loc="best")
    return to_png(figure)


def _shrink(array: np.ndarray) -> np.ndarray:
    """Mean over blocks, so that no side is longer than `PICTURE_PIXELS`; the last block may be smaller."""
    step = -(-max(array.shape) // PICTURE_PIXELS)
    if step == 1:
        return array
    rows, columns = (np.arange(0, size, step) for size in array.shape)
    sums = np.add.reduceat(np.add.reduceat(array, rows, axis=0), columns, axis=1)
    ones = np.ones(array.shape)
    return sums / np.add.reduceat(np.add.reduceat(ones, rows, axis=0), columns, axis=1)


def slice_picture(
    image: np.ndarray,
    overlay: np.ndarray | None = None,
    *,
    colours: LinearSegmentedColormap = MEAN_COLOURS,
    top: float = 1.0,
) -> bytes:
    """One slice in grey, with a map over it whose opacity grows with its value.

    Args:
        image: (H, W) in [0, 1].
        overlay: map of the same field of view at any resolution, spread over the image bilinearly; values of
            0, below 0 and NaN stay clear. None shows the slice alone.
        colours: colours of the map, `MEAN_COLOURS` or `STD_COLOURS`.
        top: value of the map at full strength; the same for all pictures that are to be compared.
    """
    grey = np.clip(_shrink(np.asarray(image, dtype=np.float64)), 0, 1)  # (H, W)
    picture = np.repeat(grey[..., None], 3, axis=2)  # (H, W, 3)
    if overlay is not None:
        clean = np.clip(np.nan_to_num(np.asarray(overlay, dtype=np.float64), nan=0.0), 0, None)
        factors = np.array(grey.shape) / clean.shape
        spread = zoom(clean, factors, order=1, mode="nearest", grid_mode=True)  # (H, W)
        strength = np.clip(spread / top if top > 0 else 0 * spread, 0, 1)  # (H, W)
        opacity = _OPACITY * strength[..., None]  # (H, W, 1)
        picture = (1 - opacity) * picture + opacity * colours(strength)[..., :3]
    buffer = io.BytesIO()
    imsave(buffer, picture, format="png", metadata=METADATA, pil_kwargs={"optimize": True})
    return buffer.getvalue()


def colour_key(colours: LinearSegmentedColormap) -> bytes:
    """The colours of an overlay from clear to full strength, as a bar on mid-grey."""
    ramp = np.repeat(np.linspace(0, 1, 160)[None], 10, axis=0)
    return slice_picture(np.full_like(ramp, 0.35), ramp, colours=colours)
