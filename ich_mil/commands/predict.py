"""Predict new studies: probabilities with uncertainty, heatmaps, pages and DICOM results.

In: a folder with one study or several, as exported by a PACS, and a trained model. Out: `predictions.csv`,
`predictions.json`, `maps/`, `features.safetensors` (for an ensemble also `features_1.safetensors`, ...),
`prepared/` with the ledger, and the files of `ich_mil.commands.pages`.
"""

from pathlib import Path

from ich_mil.commands.pages import Shown, remove_shown, show_predictions
from ich_mil.commands.subtype import Kinds
from ich_mil.commands.triage import read_triage
from ich_mil.data.preparation.prepare import prepare
from ich_mil.data.splits import learned_from, load_splits
from ich_mil.data.store import PreparedSet
from ich_mil.dicom.contrast_words import read_site_phrases
from ich_mil.files import alone, check_apart
from ich_mil.ledger import Code
from ich_mil.multimodal.extras import NO_EXTRAS, ExtraSources
from ich_mil.progress import progress, say
from ich_mil.report.maps import make_maps, write_maps
from ich_mil.report.words import CODES
from ich_mil.runs.model import check_no_run, load_model, with_extras
from ich_mil.runs.predictions import Results, in_no_study, incomplete, make_results, write_results


class Predictor:
    """A trained model, loaded once, that predicts folders of studies.

    Attributes:
        model: the trained model.
        triage: thresholds of the decision; None: decision by the interval.
        kinds: models of the kinds of bleed; None: no kinds are predicted.
        contrast_words: site-specific CSV of phrases; None: built-in table only.
        extras: files of the inputs beside the slices.
        learned: keys of the scans the model was trained or calibrated on; empty for a model without
            `splits.csv`.
    """

    def __init__(
        self,
        model: Path,
        triage: Path | None = None,
        contrast_words: Path | None = None,
        kinds: Path | None = None,
        extras: ExtraSources = NO_EXTRAS,
    ) -> None:
        """Load the model, the thresholds and the kinds.

        Raises:
            ConfigError: the contrast words cannot be used.
            ModelError: `model` is not a finished run with a CNN, or thresholds or kinds are of another model.
            DataError: thresholds or `splits.csv` cannot be read.
        """
        read_site_phrases(contrast_words)  # errors in the file are raised before the first study
        self.contrast_words, self.extras = contrast_words, extras
        self.model = load_model(model)
        self.model.check_input(pictures=True)
        weights = self.model.provenance.weights
        divided = self.model.folder / "splits.csv"
        self.learned = learned_from(load_splits(divided)) if divided.is_file() else {}
        self.triage = None if triage is None else read_triage(triage, weights=weights)
        self.kinds = None if kinds is None else Kinds.load(kinds, weights=weights)

    def __call__(self, root: Path, out: Path, *, jobs: int = 1) -> tuple[Results, PreparedSet]:
        """Predict all studies below `root`, with heatmaps, into `out`.

        Pages, maps, decisions and DICOM results of earlier predictions in `out` are removed.

        Returns:
            The results, and the prepared set of the studies.

        Raises:
            DataError: no readable study below `root`.
        """
        model = self.model
        prepared = prepare(
            "unlabelled",
            root,
            out / "prepared",
            jobs=jobs,
            thickness_mm=model.thickness_mm,
            contrast_words=self.contrast_words,
        )
        views = model.features(prepared, out / "features.safetensors")
        views = with_extras(views, model, self.extras, prepared)
        predictions = model.predict(views)
        explained = model.explain(views, predictions)
        results = make_results(
            views.features,
            predictions,
            explained,
            prepared,
            set_name="new",
            model=model.provenance,
            triage=self.triage,
            learned=self.learned,
            unlikeness=model.unlikeness(views),
        )
        if self.kinds is not None:
            results = self.kinds.add(results, views)
        remove_shown(out)
        write_results(results, out)
        for scan in progress(results.scans, total=len(results.scans), what="heatmaps", unit="scan"):
            write_maps(make_maps(model, prepared, scan), out, scan, results.model)
        return results, prepared


def predict_folder(
    root: Path,
    *,
    model: Path,
    out: Path,
    jobs: int,
    triage: Path | None = None,
    contrast_words: Path | None = None,
    kinds: Path | None = None,
    extras: ExtraSources = NO_EXTRAS,
    shown: Shown,
) -> None:
    """Predict all studies below `root`, and write predictions, pages and optional DICOM results to `out`.

    Raises:
        ConfigError: `out` lies in `root`, or is the folder of a run, or the contrast words cannot be used.
        DataError: no readable study below `root`, thresholds that cannot be read, or a folder that another
            process is writing.
        ModelError: `model` is not a finished run with a CNN, or thresholds or kinds belong to another model.
    """
    check_apart(out, root)
    check_no_run(out)
    predictor = Predictor(model, triage, contrast_words, kinds, extras)
    with alone(out, doing="writing"):
        results, prepared = predictor(root, out, jobs=jobs)
        show_predictions(results, prepared, out, shown)
    for scan in results.scans:
        low, high = scan.interval_95
        told = (
            f"{scan.scan}: probability {scan.probability:.3f} ± {scan.std:.3f}, 95 % {low:.3f} to {high:.3f}"
        )
        if why := incomplete(scan.ledger):
            told = f"{told}; never called negative: {', '.join(CODES[code] for code in why)}"
        say(told)
    ledger = prepared.ledger
    for empty in ledger.scan[ledger.code == Code.SCAN_EMPTY]:
        say(f"{empty}: no slice could be used, see {prepared.folder / 'ledger.csv'}")
    if stray := in_no_study(results.ledger):
        say(f"files of no known study, which were not judged: {len(stray)}; the first: {stray[0].detail}")
    say(f"{out / 'predictions.csv'}")
    say(f"{out / 'index.html'}")
