"""Measure a model and write the page of the results, with study pages of some scans.

In: a trained run, or a model and a labelled set. Out: `report.html` in the folder of the run, `metrics.html`
in that of the set; for pictures `studies/*.html` of the worst errors, then of the scans with the highest
probability. The study pages of a run show the last available set of validation, test and external.
"""

from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path

import pandas as pd

from ich_mil.config import RunConfig
from ich_mil.errors import DataError, ModelError
from ich_mil.evaluate.curves import calibration_table, scan_curves
from ich_mil.files import alone, write_text
from ich_mil.model.folder import check_report, read_run, run_config
from ich_mil.model.maps import make_maps, write_maps
from ich_mil.model.model import TrainedModel
from ich_mil.model.site.validate import Evaluation, MeasuredSet, Site, measure, run_sets
from ich_mil.model.storage import load_model
from ich_mil.output.study_pages import remove_shown
from ich_mil.pages.page import study_file_name
from ich_mil.pages.run_page import MOST_ERRORS, EvaluatedSet, RunPage, SplitCount, render_run, worst_errors
from ich_mil.prediction import study_page
from ich_mil.progress import progress, say
from ich_mil.sets.labels import UNKNOWN
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.sets.store import PreparedSet

INFERRED = "Trained on scan labels alone; a slice's probability is inferred, not taught."
"""Limitation of a run without slice labels."""
LIMITS = (
    "The uncertainty is the Gaussian process's for given features, and the spread between the networks of an "
    "ensemble; it does not cover errors that these share.",
    "Validation scans, if any, stopped and calibrated the fit: their figures flatter, other sets' do not.",
    "Scans unlike the training scans (other scanners, contrast, other body parts) may be wrong and sure.",
)


def report_run(run: Path) -> None:
    """Measure a trained run again and write its report.

    Raises:
        ModelError: `run` is not finished, or holds no scans out.
        DataError: data that cannot be read, or other data than the run was trained on.
    """
    check_report(run)
    if not validate_and_report(run_config(run), None):
        raise ModelError(f"{run}: has no validation, test or external scans to report")


def validate_and_report(config: RunConfig, external: PreparedSet | None) -> bool:
    """Evaluate a trained run on its validation, test and external scans, print tables, and write the report.

    Args:
        config: configuration of the run.
        external: its prepared external set; None: it is prepared where there is one.

    Returns:
        Whether any scan is held out.
    """
    model = load_model(config.out)
    sets = run_sets(model, config, external)
    train = sets.pop("train")
    if not sets:
        say(f"{config.out}: no scans are held out to measure it on; 'ich-mil validate' takes others")
        return False
    evaluated = [_measured(model, measured, config.out / name) for name, measured in sets.items()]
    run, last = config.out, evaluated[-1]
    on_slices = any(set_.slice_labels or set_.layout == "slices" for set_ in config.training_sets.values())
    page = RunPage(
        title=f"Run {run.name}",
        model=model.provenance,
        config=(run / "config.yaml").read_text(encoding="utf-8"),
        versions=read_run(run)["versions"],
        splits=[_count(train), *(_count(evaluation.measured) for evaluation in evaluated)],
        sets=[_shown(model, evaluation) for evaluation in reversed(evaluated)],
        curves=_curves(run / "cnn" / "log.csv"),
        links=_study_pages(model, last, run / last.measured.name, run / "report.html", most=config.pages),
        ledger=_ledger(last),
        limits=LIMITS if on_slices else (INFERRED, *LIMITS),
    )
    write_text(run / "report.html", render_run(page))
    say(f"report: {run / 'report.html'}")
    return True


def validate_folder(site: Site, *, model: Path, out: Path, prevalence: float | None = None) -> None:
    """Evaluate a trained model on a labelled set it has not seen, into `out`; print the table and the page.

    Raises:
        ConfigError, ModelError: a prevalence that cannot be used (`TrainedModel.at_prevalence`).
        ModelError: `model` is not a finished run, or reads pictures and is given features, or vice versa.
        DataError: data that cannot be used, a patient the model has seen, or a folder that another process is
            writing.
    """
    with alone(out, doing="writing"):
        prepared = site.prepare(out)  # a fault of the labels shows before the model is loaded
        trained = load_model(model)
        if prevalence is not None:
            trained = trained.at_prevalence(prevalence)
        measured = site.measured(trained, prepared, out)
        evaluated = _measured(trained, measured, out)
        page = RunPage(
            title=f"Validation: {site.root.resolve().name}",
            model=trained.provenance,
            splits=[_count(measured)],
            sets=[_shown(trained, evaluated)],
            links=_study_pages(trained, evaluated, out, out / "metrics.html", most=MOST_ERRORS),
            ledger=_ledger(evaluated),
            limits=LIMITS,
        )
        write_text(out / "metrics.html", render_run(page))
    say(f"{out / 'metrics.html'}")


def _measured(model: TrainedModel, measured: MeasuredSet, out: Path) -> Evaluation:
    """Evaluate a set into `out`, and remove what depends on earlier predictions there."""
    remove_shown(out)
    return measure(model, measured, out)


def _study_pages(
    model: TrainedModel, evaluation: Evaluation, folder: Path, page: Path, *, most: int
) -> dict[str, str]:
    """Replace the study pages beside `page`: of the worst errors, then of the most probable scans.

    Returns:
        Addresses relative to `page` by scan; none for public features. `folder` is that of the predictions.
    """
    prepared, results = evaluation.measured.prepared, evaluation.results
    if prepared is None:
        return {}
    ordered = [*worst_errors(results.scans), *sorted(results.scans, key=lambda scan: -scan.probability)]
    shown = list({scan.scan: scan for scan in ordered}.values())[:most]
    for old in page.parent.glob("studies/*.html"):
        old.unlink()
    links = {scan.scan: f"studies/{study_file_name(scan.scan)}" for scan in shown}
    for scan in progress(shown, total=len(shown), what="write pages", unit="page"):
        study = prepared_study(prepared, scan.scan)
        maps = make_maps(model, study.hu, scan)
        write_maps(maps, folder, scan, results.model)
        path = page.parent / links[scan.scan]
        html = study_page(scan, results.model, results.decided_by, study, maps, run_link=f"../{page.name}")
        write_text(path, html)
    return links


def _ledger(evaluation: Evaluation) -> Counter[str] | None:
    """Ledger lines by code; None for public features."""
    if evaluation.measured.prepared is None:
        return None
    results = evaluation.results
    return Counter(entry.code for entry in chain(results.ledger, *(scan.ledger for scan in results.scans)))


def _shown(model: TrainedModel, evaluation: Evaluation) -> EvaluatedSet:
    """Evaluated set for the page, with curves of the head and of the CNN if any scan has a label."""
    features, curves = evaluation.measured.features, defaultdict[str, dict[str, pd.DataFrame]](dict)
    labels = features.labels.numpy()
    networks = [row for row in evaluation.rows if row.name.startswith("CNN alone") and row.scan is not None]
    for row in [evaluation.rows[0], *networks[-1:]] if (labels != UNKNOWN).any() else []:
        assert row.scan is not None  # the head has one
        of_row = labels, row.scan, features.patients
        resamples = model.bootstrap if row is evaluation.rows[0] else 1
        table = calibration_table(*of_row, seed=model.seed, resamples=resamples)
        frames = scan_curves(*of_row, seed=model.seed, resamples=resamples)
        frames["calibration"] = table.rename(columns={"probability": "x", "share": "y"})[
            ["x", "y", "low", "high"]
        ]
        for name, frame in frames.items():
            curves[name][row.name] = frame if row is evaluation.rows[0] else frame[["x", "y"]]
    return EvaluatedSet(evaluation.measured.title, evaluation.table, curves, evaluation.results.scans)


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


def _count(measured: MeasuredSet) -> SplitCount:
    features = measured.features
    return SplitCount(
        name=measured.name,
        scans=features.n_scans,
        patients=len(set(features.patients)),
        slices=len(features.x),
        positive=int((features.labels == 1).sum()),
        unlabelled=int((features.labels == UNKNOWN).sum()),
    )
