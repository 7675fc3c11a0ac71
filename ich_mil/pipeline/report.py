"""Report: one page for a run, and a page for each scan of the set that is furthest from its training.

In: the folder of a validated run. Out: `report.html` and `studies/*.html` in it.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd

from ich_mil.config import read_config
from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import ModelError
from ich_mil.evaluate.table import read_table
from ich_mil.gp.predict import Predictions
from ich_mil.model import load_model
from ich_mil.pipeline.validate import MeasuredSet, measured_sets, score_rows, training_sets
from ich_mil.progress import say
from ich_mil.report.html import (
    EvaluatedSet,
    RunPage,
    ScanRow,
    SplitCount,
    render_run,
    study_file_name,
    write_page,
)
from ich_mil.report.pages import model_card, write_study_pages

LIMITS = (
    "Trained on scan labels alone; a slice's probability is inferred, not taught.",
    "The uncertainty is the Gaussian process's for given features; it does not cover errors of the CNN.",
    "Validation scans stopped and calibrated the fit: their figures flatter, test and external ones do not.",
    "Scans unlike the training scans (other scanners, contrast, other body parts) may be wrong and sure.",
)


def report_run(run: Path) -> None:
    """Write `report.html` of a validated run, and a page for each scan of its most external set.

    Raises:
        ModelError: `run` is not finished.
    """
    model = load_model(run)
    config = replace(read_config(["--config", str(run / "config.yaml")]), out=run)
    sets: list[EvaluatedSet] = []
    rows: list[ScanRow] = []
    measured = measured_sets(model, config)
    for one in measured:
        metrics = run / one.name / "metrics.csv"
        if not metrics.is_file():
            raise ModelError(f"{metrics}: is missing; run train.py with --resume to validate the run first")
        table = read_table(metrics)
        predictions = model.predict(one.features)
        labels = one.features.labels.numpy()
        sets.insert(0, EvaluatedSet(one.title, table, labels, score_rows(model, one.features, predictions)))
        rows = _scan_rows(one, predictions)
    if one.prepared is not None:  # the pages are of the last set, the most external one
        rows = sorted(rows, key=lambda row: -row.probability)
        shown = [row.scan for row in rows[: config.pages]]
        write_study_pages(
            model,
            one.features,
            predictions,
            one.prepared,
            run / "studies",
            scans=shown,
            run_link="../report.html",
        )
        rows = [
            replace(row, link=f"studies/{study_file_name(row.scan)}") if row.scan in shown else row
            for row in rows
        ]
    log = run / "cnn" / "log.csv"
    page = RunPage(
        name=run.name,
        model=model_card(model),
        config=(run / "config.yaml").read_text(encoding="utf-8"),
        splits=[_count(training_sets(config)["train"]), *map(_count, measured)],
        sets=sets,
        scans=rows,
        curves=pd.read_csv(log, index_col="epoch") if log.is_file() else None,
        ledger={} if one.prepared is None else Counter(one.prepared.ledger.code),
        limits=LIMITS,
    )
    write_page(render_run(page), run / "report.html")
    say(f"report: {run / 'report.html'}")


def _scan_rows(one: MeasuredSet, predictions: Predictions) -> list[ScanRow]:
    return [
        ScanRow(
            scan=scan,
            probability=float(predictions.scan_mean[b]),
            std=float(predictions.scan_std[b]),
            low=float(predictions.scan_low[b]),
            high=float(predictions.scan_high[b]),
            label=int(one.features.labels[b]),
        )
        for b, scan in enumerate(one.features.scans)
    ]


def _count(one: MeasuredSet) -> SplitCount:
    features = one.features
    return SplitCount(
        name=one.name,
        scans=features.n_scans,
        patients=len(set(features.patients)),
        slices=len(features.x),
        positive=int((features.labels == 1).sum()),
        unlabelled=int((features.labels == UNKNOWN).sum()),
    )
