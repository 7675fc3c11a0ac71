"""Predict the studies of a folder: probabilities with uncertainty, heatmaps, pages and DICOM results.

In: a folder with one study or several, as exported by a PACS, and a trained model. Out: `scans.csv`,
`slices.csv`, `predictions.json`, `maps/`, `features.safetensors` (for an ensemble also
`features_1.safetensors`, ...), `prepared/` with the ledger, and the files of `ich_mil.output.study_pages`;
with kinds of slices `submission.csv` of RSNA 2019.
"""

from pathlib import Path
from shlex import quote

from ich_mil.errors import ConfigError
from ich_mil.heads.extras import NO_EXTRAS, ExtraSources
from ich_mil.ledger import Code, in_no_study, reasons
from ich_mil.model.assembly import decision_rule, general_ledger, unlike_scans
from ich_mil.model.maps import make_maps, write_maps
from ich_mil.model.model import read_extras
from ich_mil.model.predictions import Results, worklist, write_results
from ich_mil.output.study_pages import Shown, StudyPages, remove_shown
from ich_mil.prediction import Model
from ich_mil.progress import progress, say
from ich_mil.sets.features import join_features, write_features
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.sets.store import PreparedSet


def predict_folder(
    model: Model,
    root: Path,
    out: Path,
    *,
    jobs: int = 1,
    contrast_words: Path | None = None,
    extras: ExtraSources = NO_EXTRAS,
    shown: Shown,
    pages: int | None = None,
) -> Results:
    """Predict all studies below `root` into `out`.

    The results are written and printed before heatmaps and pages are made. Pages, maps, decisions and DICOM
    results of earlier predictions in `out` are removed.

    Args:
        model: the model, with its thresholds and kinds.
        root: folder with the DICOM files.
        out: folder to write.
        jobs: number of workers that prepare studies.
        contrast_words: a CSV file with contrast words of the site.
        extras: files of the inputs beside the slices.
        shown: options of pages and DICOM results.
        pages: largest number of scans that get them, the first of the worklist; None for all.

    Raises:
        ConfigError: kinds of slices without a folder of DICOM files.
        ConfigError, DataError: as `prepare` and `read_extras`; DICOM texts or results cannot be written.
    """
    if model.slice_kinds is not None and not root.is_dir():
        raise ConfigError(
            f"{root}: submission.csv has rows for the files of a folder; unpack it, name the folder"
        )
    prepared = prepare("unlabelled", root, out / "prepared", jobs=jobs, contrast_words=contrast_words)
    scans, trained = list(prepared.scans.index), model.trained
    known = read_extras(trained, extras, scans, prepared)
    predicted, views = [], []
    for scan in progress(scans, total=len(scans), what="predict"):
        result = model.predict(prepared_study(prepared, scan), extras=known)
        predicted.append(result.prediction)
        views.append(result.views)
    rule, ledger = decision_rule(model.triage, trained.provenance), general_ledger(prepared)
    results = Results("new", trained.provenance, rule, tuple(predicted), ledger)
    remove_shown(out)
    for path, features in zip(
        trained.feature_files(out / "features.safetensors"),
        zip(*(of_scan.members for of_scan in views), strict=True),
        strict=True,
    ):
        write_features(join_features(features), path)
    write_results(results, out)
    if model.slice_kinds is not None:
        model.slice_kinds.submit(views, prepared, root, out / "submission.csv")
    _print_results(results, prepared)
    first = worklist(results)[:pages]
    study_pages = StudyPages(results, prepared, out, shown, [scan.scan for scan in first])
    for prediction in progress(first, total=len(first), what="heatmaps and pages"):
        study = prepared_study(prepared, prediction.scan)
        maps = make_maps(trained, study.hu, prediction) if shown.heatmaps else None
        write_maps(maps, out, prediction, results.model)
        study_pages.add(prediction, study, maps)
    study_pages.finish()
    if len(first) < len(predicted):
        more = f"ich-mil report {quote(str(out))} --scan NAME"
        say(f"pages of {len(first)} of {len(predicted)} scans; of another: {more}")
    return results


def _print_results(results: Results, prepared: PreparedSet) -> None:
    """Print the probability of each scan, and what could not be predicted."""
    for scan in results.scans:
        low, high = scan.interval_95
        line = f"{scan.title}: probability {scan.probability:.3f} ± {scan.std:.3f}, "
        line += f"95 % {low:.3f} to {high:.3f}"
        if why := reasons(scan.ledger):
            line = f"{line}; never called negative: {', '.join(why)}"
        say(line)
    if len(results.scans) > 1 and (unlike := unlike_scans(results)):
        say(unlike)
    ledger = prepared.ledger
    for empty in ledger.scan[ledger.code == Code.SCAN_EMPTY]:
        folder = prepared.folders.get(empty)
        title = f"{folder} ({empty})" if folder else empty
        say(f"{title}: no slice could be used, see {prepared.folder / 'ledger.csv'}")
    if stray := in_no_study(results.ledger):
        say(f"files of no known study, not predicted: {len(stray)}; the first: {stray[0].detail}")
