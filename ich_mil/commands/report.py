"""Measure a model and write the page of the results, with study pages of some scans.

In: a trained run, or a model and a labelled set. Out: `report.html` in the folder of the run, `metrics.html`
in that of the set; for pictures `studies/*.html` of the worst errors, then of the scans with the highest
probability. The study pages of a run show the last available set of validation, test and external.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from ich_mil.commands.pages import write_study_page
from ich_mil.commands.validate import Evaluation, MeasuredSet, Site, measure, run_sets, score_rows
from ich_mil.config import RunConfig, read_config
from ich_mil.data.features import FeatureSet
from ich_mil.data.labels import UNKNOWN
from ich_mil.data.store import PreparedSet
from ich_mil.errors import DataError, ModelError
from ich_mil.evaluate.curves import calibration_table, scan_curves
from ich_mil.evaluate.result_table import read_table
from ich_mil.evaluate.scores import Scores
from ich_mil.files import alone, write_text
from ich_mil.gp.predict import Predictions
from ich_mil.progress import progress, say
from ich_mil.report.maps import make_maps, write_maps
from ich_mil.report.page import study_file_name
from ich_mil.report.run_page import (
    MOST_ERRORS,
    EvaluatedSet,
    RunPage,
    SplitCount,
    render_run,
    worst_errors,
)
from ich_mil.runs.assembly import check_judged
from ich_mil.runs.folder import check_report, read_run
from ich_mil.runs.model import TrainedModel
from ich_mil.runs.predictions import Results, read_results
from ich_mil.runs.storage import load_model

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
    """Write the report of a validated run from its files, after checking that they still hold.

    Raises:
        ModelError: `run` is not finished, has no evaluated set, or its sets have changed since evaluation.
        DataError: data that cannot be read, or slices other than those of the predictions.
    """
    check_report(run)
    model = load_model(run)
    config = replace(read_config(["--config", str(run / "config.yaml")]), out=run)
    sets = run_sets(model, config)
    train = sets.pop("train")
    if not sets:
        raise ModelError(f"{run}: has no validation, test or external scans to report")
    _write_report(model, config, train, [_stored(model, one) for one in sets.values()])


def validate_and_report(config: RunConfig, external: PreparedSet | None) -> None:
    """Evaluate a trained run on its validation, test and external scans, print tables, and write the report.

    Args:
        config: configuration of the run.
        external: its prepared external set; None: it is prepared where there is one.
    """
    model = load_model(config.out)
    sets = run_sets(model, config, external)
    train = sets.pop("train")
    if not sets:
        say(f"{config.out}: no scans are held out to measure it on; 'ich-mil validate' takes others")
        return
    evaluated = [measure(model, one, config.out / name) for name, one in sets.items()]
    _write_report(model, config, train, evaluated)


def validate_folder(site: Site, *, model: Path, out: Path) -> None:
    """Evaluate a trained model on a labelled set it has not seen, into `out`; print the table and the page.

    Raises:
        ModelError: `model` is not a finished run, or reads pictures and is given features, or vice versa.
        DataError: data that cannot be used, a patient the model has seen, or a folder that another process is
            writing.
    """
    trained = load_model(model)
    with alone(out, doing="writing"):
        one = site.measured(trained, out)
        evaluated = measure(trained, one, out)
        page = RunPage(
            title=f"Validation: {site.root.resolve().name}",
            model=trained.provenance,
            splits=[_count(one)],
            sets=[_shown(trained, evaluated)],
            links=_study_pages(trained, evaluated, out, out / "metrics.html", most=MOST_ERRORS),
            ledger=_ledger(evaluated),
            limits=LIMITS,
        )
        write_text(out / "metrics.html", render_run(page))
    say(f"{out / 'metrics.html'}")


def _write_report(
    model: TrainedModel, config: RunConfig, train: MeasuredSet, evaluated: Sequence[Evaluation]
) -> None:
    """Write `report.html`, and study pages of the last set, in the order validation, test, external."""
    run, last = config.out, evaluated[-1]
    on_slices = any(one.slice_labels or one.layout == "slices" for one in config.training_sets.values())
    page = RunPage(
        title=f"Run {run.name}",
        model=model.provenance,
        config=(run / "config.yaml").read_text(encoding="utf-8"),
        versions=read_run(run)["versions"],
        splits=[_count(train), *(_count(one.measured) for one in evaluated)],
        sets=[_shown(model, one) for one in reversed(evaluated)],
        curves=_curves(run / "cnn" / "log.csv"),
        links=_study_pages(model, last, run / last.measured.name, run / "report.html", most=config.pages),
        ledger=_ledger(last),
        limits=LIMITS if on_slices else (INFERRED, *LIMITS),
    )
    write_text(run / "report.html", render_run(page))
    say(f"report: {run / 'report.html'}")


def _study_pages(
    model: TrainedModel, one: Evaluation, folder: Path, page: Path, *, most: int
) -> dict[str, str]:
    """Write study pages beside `page`: of the worst errors, then of the most probable scans.

    Returns:
        Addresses relative to `page` by scan; none for public features. `folder` is that of the predictions.
    """
    prepared, results = one.measured.prepared, one.results
    if prepared is None:
        return {}
    ordered = [*worst_errors(results.scans), *sorted(results.scans, key=lambda scan: -scan.probability)]
    shown = list({scan.scan: scan for scan in ordered}.values())[:most]
    links = {scan.scan: f"studies/{study_file_name(scan.scan)}" for scan in shown}
    for scan in progress(shown, total=len(shown), what="write pages", unit="page"):
        hu = prepared.hu(scan.scan)
        maps = make_maps(model, hu, scan)
        write_maps(maps, folder, scan, results.model)
        path = page.parent / links[scan.scan]
        write_study_page(results, scan, prepared, hu, maps, path, run_link=f"../{page.name}")
    return links


def _ledger(one: Evaluation) -> Counter[str] | None:
    """Ledger lines by code; None for public features."""
    if one.measured.prepared is None:
        return None
    return Counter(
        entry.code for entry in chain(one.results.ledger, *(scan.ledger for scan in one.results.scans))
    )


def _shown(model: TrainedModel, one: Evaluation) -> EvaluatedSet:
    """Evaluated set for the page, with curves of the head and of the CNN if any scan has a label."""
    features, curves = one.measured.features, defaultdict[str, dict[str, pd.DataFrame]](dict)
    labels = features.labels.numpy()
    networks = [row for row in one.rows if row.name.startswith("CNN alone") and row.scan is not None]
    for row in [one.rows[0], *networks[-1:]] if (labels != UNKNOWN).any() else []:
        assert row.scan is not None  # the head has one
        of_row = labels, row.scan, features.patients
        resamples = model.bootstrap if row is one.rows[0] else 1
        table = calibration_table(*of_row, seed=model.seed, resamples=resamples)
        found = scan_curves(*of_row, seed=model.seed, resamples=resamples)
        found["calibration"] = table.rename(columns={"probability": "x", "share": "y"})[
            ["x", "y", "low", "high"]
        ]
        for name, frame in found.items():
            curves[name][row.name] = frame if row is one.rows[0] else frame[["x", "y"]]
    return EvaluatedSet(one.measured.title, one.table, curves, one.results.scans)


def _stored(model: TrainedModel, one: MeasuredSet) -> Evaluation:
    """Load the evaluation of a set, and check that it still holds.

    Raises:
        ModelError: the set was not evaluated, was evaluated by another model, or has changed since.
        DataError: files that cannot be read, or slices other than those of the predictions.
    """
    folder, again = model.folder / one.name, "run train.py with --resume to validate again"
    if not (folder / "metrics.csv").is_file():
        raise ModelError(f"{folder / 'metrics.csv'}: is missing; {again}")
    table = read_table(folder / "metrics.csv")
    predictions = one.predict(model)
    rows = score_rows(model, one.features, predictions)
    results = read_results(folder)
    if results.model.weights != model.provenance.weights:
        raise ModelError(f"{folder}: was predicted by another model; {again}")
    # intervals are not compared, so one resample is enough; the first row is the head
    now = one.metrics(rows[1:], seed=0, resamples=1)
    if not (_same_scans(results, one.features, predictions) and _same_metrics(table, now, rows)):
        raise ModelError(f"{folder}: its scans, patients, labels or CNN probabilities have changed; {again}")
    if one.prepared is not None:
        check_judged(results, one.prepared)
    return Evaluation(one, rows, table, results)


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


def _same_scans(results: Results, features: FeatureSet, predictions: Predictions) -> bool:
    """Whether the stored results have these scans, patients, labels and probabilities."""
    labels = (
        [one.label for one in results.scans],
        [part.label for one in results.scans for part in one.slices],
    )
    return (
        [one.scan for one in results.scans] == features.scans
        and [one.patient for one in results.scans] == features.patients
        and [len(one.slices) for one in results.scans] == features.offsets.diff().tolist()
        and [[UNKNOWN if label is None else label for label in part] for part in labels]
        == [features.labels.tolist(), features.slice_labels.tolist()]
        and np.allclose([one.probability for one in results.scans], predictions.scan_mean, atol=SAME)
    )


def _same_metrics(table: pd.DataFrame, now: pd.DataFrame, rows: Sequence[Scores]) -> bool:
    """Whether the stored metrics of the baselines match the current ones, `now`."""
    both = table.merge(now, on=["model", "level", "metric"], suffixes=("", "_now"))
    return set(table.model) == {row.name for row in rows} and np.allclose(
        both.value, both.value_now, atol=SAME, equal_nan=True
    )


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
