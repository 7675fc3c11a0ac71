"""Figures of the run page as PNG bytes: ROC, reliability and training curves. Shapes: B scans."""

from collections.abc import Mapping
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from sklearn.metrics import roc_auc_score, roc_curve

from ich_mil.evaluate.metrics import CALIBRATION_BINS
from ich_mil.report.canvas import (
    GREY,
    ROW,
    STYLES,
    add_legend,
    new_figure,
    own_style,
    to_png,
)


@own_style
def roc_curves(labels: np.ndarray, scores: Mapping[str, np.ndarray]) -> bytes:
    """ROC curve of each model on the labelled scans.

    Args:
        labels: (B,) in {0, 1} or unknown (-1), with both classes present.
        scores: (B,) scores by model name.
    """
    figure, (ax,) = new_figure(4.2, 4.2 + ROW * len(scores))
    known = labels >= 0
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    handles, names = [], []
    for (name, score), (colour, style) in zip(scores.items(), cycle(STYLES), strict=False):
        false, true, _ = roc_curve(labels[known], score[known])
        handles += ax.plot(false, true, color=colour, linestyle=style, linewidth=2)
        names.append(f"{roc_auc_score(labels[known], score[known]):.3f}  {name}")
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xlabel="false positive rate", ylabel="true positive rate")
    ax.set_aspect("equal")
    add_legend(ax, handles, names, loc="above")  # with few scans a legend inside the axes would cover a curve
    return to_png(figure)


@own_style
def reliability(tables: Mapping[str, pd.DataFrame]) -> bytes:
    """Reliability diagram: fraction of positives against mean probability, with an interval for each bin.

    Args:
        tables: data frame of `ich_mil.evaluate.event_rates.calibration_table` by model name.
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


@own_style
def training_curves(curves: pd.DataFrame) -> bytes:
    """Training curves over epochs: losses on the left, other metrics on the right; gaps are interpolated.

    Args:
        curves: index = epoch, one column for each curve; columns with 'loss' in their name are losses.
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
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        add_legend(ax, handles, names, loc="best")
    return to_png(figure)
