"""Page of a training run or of a validation: first what, on whom and how well, then details that unfold.

Without a script.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.evaluate.metrics import SCAN
from ich_mil.evaluate.result_table import format_value, table_blocks, table_notes
from ich_mil.ledger import THRESHOLD
from ich_mil.model.predictions import Provenance, ScanPrediction
from ich_mil.pages.page import render
from ich_mil.pages.plot import Plot, make_plot

MOST_ERRORS = 8
"""Largest number of scans listed as the worst errors."""
FIGURES = {
    "auc": "AUC",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "ece": "calibration error (ECE)",
}
"""Metrics of the first screen."""
TEXTS = {
    "roc": ("ROC curve", "1 − specificity", "sensitivity", ""),
    "precision_recall": (
        "Precision and recall",
        "recall (sensitivity)",
        "precision (PPV)",
        "Dashed: fraction of positive scans.",
    ),
    "net_benefit": (
        "Decision curve",
        "threshold of the probability",
        "net benefit",
        "Net benefit: true positives minus false positives, weighted by the odds of the threshold, per scan. "
        "Dashed: no scan called positive.",
    ),
    "calibration": (
        "Calibration",
        "mean probability of a bin",
        "fraction of positive scans",
        "Dashed: a calibrated model.",
    ),
    "risk_coverage": (
        "Risk and coverage",
        "fraction of scans kept",
        "fraction of wrong calls",
        "The scans with probabilities closest to 50 % are left to a reader first.",
    ),
}
"""Title, labels of the axes and note of each plot."""
EVERYONE = "every scan called positive"
"""Line of the decision curve."""


@dataclass(frozen=True)
class SplitCount:
    """Size of one split; `positive` and `unlabelled` count scans."""

    name: str
    scans: int
    patients: int
    slices: int
    positive: int
    unlabelled: int = 0


@dataclass(frozen=True)
class EvaluatedSet:
    """One evaluated data set.

    Attributes:
        name: its name.
        table: data frame of `ich_mil.evaluate.result_table.evaluate`; its first model is that of the run.
        curves: by `roc`, `precision_recall`, `calibration`, `risk_coverage` and `net_benefit`, a data frame
            for each model (columns x, y, and perhaps low, high); without labels there are none.
        scans: its predicted scans.
    """

    name: str
    table: pd.DataFrame
    curves: Mapping[str, Mapping[str, pd.DataFrame]]
    scans: Sequence[ScanPrediction]


@dataclass(frozen=True)
class RunPage:
    """Content of a page.

    Attributes:
        title: what was run.
        model: provenance of the trained model.
        config: configuration as YAML text; empty: not shown.
        versions: package versions at the start of the run, by name.
        splits: size of each split.
        sets: evaluated data sets, the most important first.
        links: relative address of the page of each scan of the first set that has one.
        curves: training curves (index = epoch, one column for each curve).
        ledger: ledger lines by code of the first data set; None for a feature file.
        limits: limitations of the model, one sentence each.
    """

    title: str
    model: Provenance
    config: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    splits: Sequence[SplitCount] = ()
    sets: Sequence[EvaluatedSet] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    curves: pd.DataFrame | None = None
    ledger: Mapping[str, int] | None = field(default_factory=dict)
    limits: Sequence[str] = ()


def worst_errors(scans: Sequence[ScanPrediction]) -> list[ScanPrediction]:
    """The `MOST_ERRORS` wrong calls at `THRESHOLD` whose probability is furthest from the label, first."""
    wrong = [
        (abs(scan.label - scan.probability), scan)
        for scan in scans
        if scan.label is not None and (scan.probability >= THRESHOLD) != scan.label
    ]
    return [scan for _, scan in sorted(wrong, key=lambda pair: (-pair[0], pair[1].scan))[:MOST_ERRORS]]


def render_run(page: RunPage) -> str:
    """Render the page as one HTML document.

    Raises:
        ValueError: a link is not relative.
    """
    scans = page.sets[0].scans if page.sets else ()
    linked = [scan for scan in scans if scan.scan in page.links]
    return render(
        "run.html.j2",
        page=page,
        sets=[_evaluated(set_) for set_ in page.sets],
        errors=worst_errors(scans),
        linked=sorted(linked, key=lambda scan: -scan.probability),
        training=_training_plots(page.curves),
    )


def _evaluated(set_: EvaluatedSet) -> dict[str, Any]:
    table = set_.table[(set_.table.level == SCAN) & (set_.table.model == set_.table.model.iloc[0])]
    rows = {str(row["metric"]): row for row in table.to_dict("records")}
    first = rows["auc"]
    return {
        "name": set_.name,
        "n": first["n"],
        "positives": first["positives"],
        "patients": first["patients"],
        "auc": format_value(first["value"], first["low"], first["high"]),
        "figures": [(name, rows[metric]) for metric, name in FIGURES.items() if rows[metric]["value"] >= 0],
        "plots": _plots(set_.curves, prevalence=first["positives"] / max(1, first["n"])),
        "blocks": table_blocks(set_.table),
        "notes": table_notes(set_.table),
    }


def _plots(curves: Mapping[str, Mapping[str, pd.DataFrame]], *, prevalence: float) -> list[Plot]:
    x = np.linspace(0, 0.99, 100)
    everyone = pd.DataFrame({"x": x, "y": prevalence - (1 - prevalence) * x / (1 - x)})
    diagonal, unit = ((0, 0), (1, 1)), (0.0, 1.0)
    risk = max((frame.y.max() for frame in curves.get("risk_coverage", {}).values()), default=0)
    drawn: dict[str, tuple[tuple[float, float], Sequence[tuple[float, float]]]] = {
        "roc": (unit, diagonal),
        "precision_recall": (unit, [(0, prevalence), (1, prevalence)]),
        "net_benefit": ((-0.2 * prevalence, 1.1 * prevalence), [(0, 0), (1, 0)]),
        "calibration": (unit, diagonal),
        "risk_coverage": ((0, min(1, 2 * risk + 0.05)), []),
    }
    plots = []
    for name, (y, reference) in drawn.items():
        if name in curves:
            title, x_label, y_label, note = TEXTS[name]
            frames = {**curves[name], **({EVERYONE: everyone} if name == "net_benefit" else {})}
            note, labels = f"Bands: pointwise 95 % intervals by patient. {note}", (x_label, y_label)
            plots.append(make_plot(frames, title=title, labels=labels, y=y, note=note, reference=reference))
    return plots


def _training_plots(curves: pd.DataFrame | None) -> list[Plot]:
    """Losses and other metrics over epochs; gaps are bridged."""
    plots: list[Plot] = []
    if curves is None:
        return plots
    for title, losses in (("Loss", True), ("Other metrics", False)):
        known = {str(name): curves[name].dropna() for name in curves if ("loss" in str(name)) == losses}
        frames = {
            name: pd.DataFrame({"x": curve.index, "y": curve.to_numpy()})
            for name, curve in known.items()
            if len(curve)
        }
        if frames:
            both = pd.concat(frames.values())
            x, y = _range(both.x), _range(both.y)
            plots.append(make_plot(frames, title=title, labels=("epoch", ""), x=x, y=y, whole_x=True))
    return plots


def _range(values: pd.Series) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return (low, high) if low < high else (low - 1, high + 1)
