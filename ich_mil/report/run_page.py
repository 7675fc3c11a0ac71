"""The page of a run: what was trained on what, how well it does, and the scans it was tried on.

In: tables and curves of a run. Out: HTML as a string, one file without a script that needs no network.

Shapes: B scans of a set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.evaluate.levels import SCAN
from ich_mil.evaluate.show import format_value, table_blocks, table_notes
from ich_mil.evaluate.table import Scores
from ich_mil.predictions import Provenance, ScanResult
from ich_mil.report import figures
from ich_mil.report.page import render
from ich_mil.report.pictures import data_uri

MAX_SCANS = 2000
"""Scans listed; the rest are in predictions.csv."""


@dataclass(frozen=True)
class SplitCount:
    """How much data one split holds; `positive` and `unlabelled` count scans."""

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
        table: the frame of `ich_mil.evaluate.table.evaluate`; its first model is the run's own.
        labels: (B,) scan labels for the ROC plot, which needs both.
        scores: the models behind the table, in its order.
        calibration: of each model, by name, `ich_mil.evaluate.bins.calibration_table`; empty draws none.
    """

    name: str
    table: pd.DataFrame
    labels: np.ndarray
    scores: Sequence[Scores]
    calibration: Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class RunPage:
    """All that a run page shows.

    Attributes:
        name: name of the run.
        model: which model it trained.
        config: the whole configuration as text (YAML).
        versions: of the packages it was begun with, by name.
        splits: size of each split.
        sets: the evaluated data sets, the most important first.
        scans: predicted scans of the first of `sets`, in any order.
        links: relative address of a scan's page; scans without one are listed without a link.
        curves: training curves (index = epoch, a column each); None for none.
        ledger: number of ledger lines by code (`ich_mil.ledger.Code`) of the first of `sets`; None where its
            scans came as features.
        limits: what the model must not be taken for, a sentence each.
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
    """The run page as one HTML document.

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
    """The headline, tables and plots of one evaluated set."""
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
