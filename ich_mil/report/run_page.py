"""Run page: training data, evaluation results and predicted scans of a training run, without a script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.evaluate.model_metrics import SCAN
from ich_mil.evaluate.result_table import format_value, table_blocks, table_notes
from ich_mil.evaluate.scores import Scores
from ich_mil.report import figures
from ich_mil.report.page import render
from ich_mil.report.pictures import data_uri
from ich_mil.runs.predictions import Provenance, ScanResult

MAX_SCANS = 2000
"""Largest number of scans listed; `predictions.csv` contains all scans."""


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
        labels: (B,) scan labels; the ROC plot needs both classes.
        scores: scores of the models in the table, in its order.
        calibration: `ich_mil.evaluate.event_rates.calibration_table` by model name, if any.
    """

    name: str
    table: pd.DataFrame
    labels: np.ndarray
    scores: Sequence[Scores]
    calibration: Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class RunPage:
    """Content of a run page.

    Attributes:
        name: name of the run.
        model: provenance of the trained model.
        config: the whole configuration as YAML text.
        versions: package versions at the start of the run, by name.
        splits: size of each split.
        sets: evaluated data sets, the most important first.
        scans: predicted scans of the first data set, in any order.
        links: relative address of the page of each scan, if there is one.
        curves: training curves (index = epoch, one column for each curve).
        ledger: ledger lines by code of the first data set; None for a feature file.
        limits: limitations of the model, one sentence each.
    """

    name: str
    model: Provenance
    config: str
    versions: Mapping[str, str]
    splits: Sequence[SplitCount] = ()
    sets: Sequence[EvaluatedSet] = ()
    scans: Sequence[ScanResult] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    curves: pd.DataFrame | None = None
    ledger: Mapping[str, int] | None = field(default_factory=dict)
    limits: Sequence[str] = ()


def render_run(run: RunPage) -> str:
    """Render the run page as one HTML document.

    Raises:
        ValueError: a link is not relative.
    """
    ordered = sorted(run.scans, key=lambda scan: (-scan.probability, scan.scan))
    curves = None if run.curves is None or run.curves.empty else figures.training_curves(run.curves)
    return render(
        "run.html.j2",
        page=run,
        sets=[_evaluated(one) for one in run.sets],
        of_set=f": {run.sets[0].name}" if run.sets else "",
        curves=None if curves is None else data_uri(curves, "png"),
        scans=ordered[:MAX_SCANS],
        n_scans=len(ordered),
    )


def _evaluated(one: EvaluatedSet) -> dict[str, Any]:
    """Template values of one data set: AUC, tables and plots."""
    own: Any = one.table[(one.table["level"] == SCAN) & (one.table["metric"] == "auc")].iloc[0]
    roc = None
    if {0, 1} <= set(one.labels.tolist()):
        scores = {row.name: row.scan for row in one.scores if row.scan is not None}
        roc = data_uri(figures.roc_curves(one.labels, scores), "png")
    return {
        "name": one.name,
        "auc": format_value(own["value"], own["low"], own["high"]),
        "scans": int(own["n"]),
        "blocks": table_blocks(one.table),
        "notes": table_notes(one.table),
        "roc": roc,
        "reliability": data_uri(figures.reliability(one.calibration), "png") if one.calibration else None,
    }
