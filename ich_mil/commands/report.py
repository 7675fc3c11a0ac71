"""Write the report of a run, and study pages of its external, test or validation set.

In: the folder of a validated run. Out, in the same folder: `report.html`, and for a run on pictures
`studies/*.html` of the `pages` scans with the highest probability. The study pages show the last available
set of validation, test and external.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from ich_mil.commands.pages import write_study_page
from ich_mil.commands.validate import MeasuredSet, run_sets, score_rows
from ich_mil.config import read_config
from ich_mil.data.features import FeatureSet
from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError, ModelError, named
from ich_mil.evaluate.event_rates import calibration_table
from ich_mil.evaluate.result_table import evaluate, read_table
from ich_mil.evaluate.scores import Scores
from ich_mil.files import write_text
from ich_mil.gp.predict import Predictions
from ich_mil.progress import progress, say
from ich_mil.report.maps import make_maps, write_maps
from ich_mil.report.page import study_file_name
from ich_mil.report.run_page import EvaluatedSet, RunPage, SplitCount, render_run
from ich_mil.runs.model import TrainedModel, load_model, made_of, read_run
from ich_mil.runs.predictions import Results, check_judged, read_results

INFERRED = "Trained on scan labels alone; a slice's probability is inferred, not taught."
"""Limitation of a run without slice labels."""
LIMITS = (
    "The uncertainty is the Gaussian process's for given features, and the spread between the networks of an "
    "ensemble; it does not cover errors that these share.",
    "Validation scans, if any, stopped and calibrated the fit: their figures flatter, other sets' do not.",
    "Scans unlike the training scans (other scanners, contrast, other body parts) may be wrong and sure.",
)

SAME = 1e-4
"""Tolerance between stored and recomputed probabilities, which may come from different machines."""


def report_run(run: Path) -> None:
    """Write `report.html` of a validated run, and study pages of its last set.

    Raises:
        ModelError: `run` is not finished, has no evaluated set, or its sets have changed since evaluation.
        DataError: data that cannot be read, or slices other than those of the predictions.
    """
    model = load_model(run)
    about = read_run(run)
    if kind := made_of(about):
        raise ModelError(
            f"{run}: is a {kind} model and has no report; 'validate' prints its table, the "
            "folder of 'predict' has its pages"
        )
    config = replace(read_config(["--config", str(run / "config.yaml")]), out=run)
    measured = run_sets(model, config)
    train = measured.pop("train")
    if not measured:
        raise ModelError(f"{run}: has no validation, test or external scans, so there is nothing to report")
    curves = _curves(run / "cnn" / "log.csv")
    sets, of_sets = zip(*(_measured(model, one) for one in measured.values()), strict=True)
    last, results = [*measured.values()][-1], of_sets[-1]  # in the order validation, test, external
    links = {}
    if last.prepared is not None:
        folder = run / last.name
        shown = sorted(results.scans, key=lambda scan: -scan.probability)[: config.pages]
        for scan in progress(shown, total=len(shown), what="write pages", unit="page"):
            links[scan.scan] = f"studies/{study_file_name(scan.scan)}"
            write_maps(make_maps(model, last.prepared, scan), folder, scan, results.model)
            path = run / links[scan.scan]
            write_study_page(results, scan, last.prepared, folder, path, run_link="../report.html")
    taught = any(one.slice_labels or one.layout == "slices" for one in config.training_sets.values())
    entries = chain(results.ledger, *(scan.ledger for scan in results.scans))
    page = RunPage(
        name=run.name,
        model=model.provenance,
        config=(run / "config.yaml").read_text(encoding="utf-8"),
        versions=about["versions"],
        splits=[_count(train), *map(_count, measured.values())],
        sets=sets[::-1],
        scans=results.scans,
        links=links,
        curves=curves,
        ledger=None if last.prepared is None else Counter(entry.code for entry in entries),
        limits=LIMITS if taught else (INFERRED, *LIMITS),
    )
    write_text(run / "report.html", render_run(page))
    say(f"report: {run / 'report.html'}")


def _measured(model: TrainedModel, one: MeasuredSet) -> tuple[EvaluatedSet, Results]:
    """Load the evaluation and the predictions of a set, and check that both still hold.

    Returns:
        The evaluated set for the page, with calibration tables if any scan has a label; and its results.

    Raises:
        ModelError: the set was not evaluated, was evaluated by another model, or has changed since.
        DataError: files that cannot be read, or slices other than those of the predictions.
    """
    folder, features = model.folder / one.name, one.features
    metrics = folder / "metrics.csv"
    if not metrics.is_file():
        raise ModelError(f"{metrics}: is missing; run train.py with --resume to validate the run first")
    table = read_table(metrics)
    with named(one.source):
        predictions = model.predict(one.views)
    rows = score_rows(model, features, predictions)
    results = read_results(folder)
    if results.model.weights != model.provenance.weights:
        raise ModelError(
            f"{folder}: was predicted by another model; run train.py with --resume to validate again"
        )
    if not (_are_of(results, features, predictions) and _is_of(table, features, rows)):
        raise ModelError(
            f"{folder}: its scans, patients, labels or CNN probabilities have changed since it was measured; "
            "run train.py with --resume to validate again"
        )
    if one.prepared is not None:
        check_judged(results, one.prepared)
    labels, how = features.labels.numpy(), {"seed": model.seed, "resamples": model.bootstrap}
    calibration = {
        row.name: calibration_table(labels, row.scan, features.patients, **how)
        for row in rows
        if row.scan is not None and (labels != UNKNOWN).any()
    }
    return EvaluatedSet(one.title, table, labels, rows, calibration), results


def _curves(log: Path) -> pd.DataFrame | None:
    """Training log of the CNN, one row per epoch; None where no CNN was trained."""
    if not log.is_file():
        return None
    try:
        return pd.read_csv(log, index_col="epoch")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{log}: cannot be read as the log of a training ({error}); delete it, and the report does "
            "without its curves"
        ) from error


def _are_of(results: Results, features: FeatureSet, predictions: Predictions) -> bool:
    """Whether the stored results have these scans, patients, labels and probabilities."""
    labels = [[_known(one.label), *(_known(part.label) for part in one.slices)] for one in results.scans]
    sliced = np.split(features.slice_labels.numpy(), features.offsets[1:-1].numpy())
    return (
        [one.scan for one in results.scans] == features.scans
        and [one.patient for one in results.scans] == features.patients
        and labels == [[a, *b.tolist()] for a, b in zip(features.labels.tolist(), sliced, strict=True)]
        and np.allclose([one.probability for one in results.scans], predictions.scan_mean, atol=SAME)
    )


def _is_of(table: pd.DataFrame, features: FeatureSet, rows: Sequence[Scores]) -> bool:
    """Whether the stored metrics of the baselines (`rows` after the first, the head) match current ones."""
    now = evaluate(
        rows[1:],
        labels=features.labels.numpy(),
        patients=features.patients,
        offsets=features.offsets.numpy(),
        slice_labels=features.slice_labels.numpy(),
        seed=0,
        resamples=1,  # intervals are not compared
    )
    both = table.merge(now, on=["model", "level", "metric"], suffixes=("", "_now"))
    return set(table.model) == {row.name for row in rows} and np.allclose(
        both.value, both.value_now, atol=SAME, equal_nan=True
    )


def _known(label: int | None) -> int:
    return UNKNOWN if label is None else label


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
