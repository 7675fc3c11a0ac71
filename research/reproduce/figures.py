"""Figures of a benchmark protocol as PNG bytes, drawn from the tables of the report."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
import pandas as pd

from ich_mil.evaluate.sample import CALIBRATION_BINS
from ich_mil.pages.canvas import GREY, VERMILION, own_style
from research.reproduce.canvas import BLUE, GREEN, ROW, STYLES, add_legend, new_figure, to_png

LEAST_SPAN = 0.02
"""Minimum span of the AUC axis, so that small differences look small."""
MARKS = ("o", "s", "^")
"""Markers, in turn, for heads that share a colour."""


@own_style
def auc_and_time(results: pd.DataFrame) -> bytes:
    """Plot scan AUC against fit time: one marker for each head and M, with error bars for the std over seeds.

    `results` are rows of scan AUC with columns model, n_inducing, mean, std, seconds.
    """
    figure, (ax,) = new_figure(5.4, 3.6)
    handles, names = [], []
    for number, (name, rows) in enumerate(results.groupby("model", sort=False)):
        turn, place = divmod(number, len(STYLES))
        colour, mark = STYLES[place][0], MARKS[turn % len(MARKS)]
        rows = rows.sort_values("n_inducing")
        points = rows.seconds, rows["mean"], rows["std"].fillna(0)
        handles.append(ax.errorbar(*points, fmt=f"{mark}-", color=colour, lw=1.2, capsize=2))
        names.append(str(name))
        for row in rows.itertuples():
            at, offset = (row.seconds, row.mean), "offset points"
            ax.annotate(f"{row.n_inducing}", at, (4, 4), textcoords=offset, fontsize=8, color=GREY)
    low, high = ax.get_ylim()
    middle, half = (low + high) / 2, max(high - low, LEAST_SPAN) / 2
    ax.set_ylim(middle - half, middle + half)
    ax.ticklabel_format(axis="y", useOffset=False)
    ax.set_xlabel("seconds a seed, one core")
    ax.set_ylabel("scan AUC")
    add_legend(ax, handles, names, loc="best")
    return to_png(figure)


@own_style
def metric_rows(results: pd.DataFrame, *, metric: str) -> bytes:
    """Plot one metric of every model: mean, thick bar for the std over seeds, thin bar for the interval.

    `results` are rows of the metric in display order; columns model, n_inducing, mean, std, low, high.
    """
    rows = results[results["mean"].notna()].iloc[::-1]
    figure, (ax,) = new_figure(6.4, 0.6 + 0.26 * len(rows))
    places = np.arange(len(rows))
    ax.hlines(places, rows.low, rows.high, color=GREY, lw=1)
    spread = rows["std"].fillna(0)
    ax.hlines(places, rows["mean"] - spread, rows["mean"] + spread, color=BLUE, lw=4)
    ax.plot(rows["mean"], places, "o", color=VERMILION, markersize=5)
    titles = [
        f"{model!s}, M={m}" if m else str(model)
        for model, m in zip(rows.model.tolist(), rows.n_inducing.tolist(), strict=True)
    ]
    ax.set_yticks(places, titles)
    ax.set_xlabel(metric)
    return to_png(figure)


@own_style
def curves(
    frames: Sequence[tuple[str, pd.DataFrame]],
    *,
    x: str,
    y: str,
    labels: tuple[str, str],
    steps: bool = False,
) -> bytes:
    """Plot named lines with columns `x` and `y`, and a band where a frame has `low` and `high`."""
    figure, (ax,) = new_figure(5.2, 3.6)
    handles, names = [], []
    for (name, frame), (colour, style) in zip(frames, cycle(STYLES), strict=False):
        how = "steps-post" if steps else "default"
        handles += ax.plot(frame[x], frame[y], color=colour, linestyle=style, lw=1.6, drawstyle=how)
        if "low" in frame:
            ax.fill_between(frame[x], frame.low, frame.high, color=colour, alpha=0.15, lw=0)
        names.append(name)
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1])
    add_legend(ax, handles, names, loc="best")
    return to_png(figure)


@own_style
def bars(frame: pd.DataFrame, *, x: str, y: str, labels: tuple[str, str]) -> bytes:
    """Bar plot with intervals; columns `x`, `y`, `low`, `high`."""
    figure, (ax,) = new_figure(5.2, 3.2)
    places = np.arange(len(frame))
    ax.bar(places, frame[y], color=GREEN, width=0.7)
    # by rounding, the ends of an interval of zero width may lie on the wrong side of the value
    ends = [(frame[y] - frame.low).clip(lower=0), (frame.high - frame[y]).clip(lower=0)]
    ax.errorbar(places, frame[y], ends, fmt="none", ecolor=GREY, capsize=2)
    ax.set_xticks(places, [str(value) for value in frame[x]])
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1])
    return to_png(figure)


@own_style
def thresholds(labels: np.ndarray, probability: np.ndarray, *, low: float, high: float) -> bytes:
    """Histogram of the probabilities (B,) of positive and negative scans, with the triage thresholds."""
    figure, (ax,) = new_figure(5.4, 3.0)
    edges = np.linspace(0, 1, 26).tolist()
    _, _, negative = ax.hist(probability[labels == 0], edges, color=BLUE, alpha=0.6)
    _, _, positive = ax.hist(probability[labels == 1], edges, color=VERMILION, alpha=0.6)
    for place in (low, high):
        ax.axvline(place, color=GREY, linestyle="--", lw=1)
    ax.set_xlabel("probability of a hemorrhage")
    ax.set_ylabel("scans")
    add_legend(ax, [negative[0], positive[0]], ["negative", "positive"], loc="upper center")  # type: ignore[index]
    return to_png(figure)


@own_style
def reliability(tables: Mapping[str, pd.DataFrame]) -> bytes:
    """Reliability diagram: fraction of positives against mean probability, with an interval for each bin.

    Args:
        tables: data frame of `ich_mil.evaluate.curves.calibration_table` by model name.
    """
    figure, (ax,) = new_figure(4.2, 4.2 + ROW * len(tables))
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    handles = []
    for table, (colour, style) in zip(tables.values(), cycle(STYLES), strict=False):
        x, y = table.probability, table.share
        ax.vlines(x, table.low, table.high, color=colour, linewidth=1, alpha=0.5)
        handles += ax.plot(x, y, "o", color=colour, linestyle=style, linewidth=1.6, markersize=4.5)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="fraction positive")
    ax.set_xlabel(f"probability given (mean of up to {CALIBRATION_BINS} bins)")
    ax.set_aspect("equal")
    add_legend(ax, handles, list(tables), loc="above")
    return to_png(figure)
