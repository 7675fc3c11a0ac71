"""Predict new studies: probabilities with uncertainty, heatmaps, pages and DICOM results.

In: a folder with one study or several, as exported by a PACS, and a trained model. Out: `predictions.csv`,
`predictions.json`, `maps/`, `features.safetensors` (for an ensemble also `features_1.safetensors`, ...),
`prepared/` with the ledger, and the files of `ich_mil.output.study_pages`.
"""

from pathlib import Path

from ich_mil.heads.extras import NO_EXTRAS, ExtraSources
from ich_mil.ledger import Code, in_no_study, incomplete
from ich_mil.model.assembly import make_results
from ich_mil.model.maps import make_maps, write_maps
from ich_mil.model.model import with_extras
from ich_mil.model.predictions import Results, write_results
from ich_mil.output.study_pages import Shown, StudyPages, remove_shown
from ich_mil.prediction import load_model
from ich_mil.progress import progress, say
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.sets.store import PreparedSet
from ich_mil.study.contrast import read_site_phrases


class Predictor:
    """A trained model, loaded once, that predicts folders of studies.

    Attributes:
        model: the trained model, with its thresholds.
        kinds: models of the kinds of bleed; None: no kinds are predicted.
        contrast_words: site-specific CSV of phrases; None: built-in table only.
        extras: files of the inputs beside the slices.
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
        self.model = load_model(model, triage=triage)
        self.kinds = None
        if kinds is not None:
            from ich_mil.model.site.subtype import Kinds

            self.kinds = Kinds.load(kinds, weights=self.model.trained.provenance.weights)

    def __call__(
        self, root: Path, out: Path, *, jobs: int = 1, shown: Shown
    ) -> tuple[Results, PreparedSet, list[Path]]:
        """Predict all studies below `root` into `out`, with heatmaps, pages and optional DICOM results.

        Pages, maps, decisions and DICOM results of earlier predictions in `out` are removed.

        Returns:
            The results, the prepared set of the studies, and the paths of the DICOM results.

        Raises:
            DataError: no readable study below `root`, or DICOM texts or results that cannot be written.
        """
        model = self.model.trained
        prepared = prepare(
            "unlabelled", root, out / "prepared", jobs=jobs, contrast_words=self.contrast_words
        )
        views = model.features(prepared, out / "features.safetensors")
        views = with_extras(views, model, self.extras, prepared)
        predictions, explained = model.explain(views)
        results = make_results(
            views.features,
            predictions,
            explained,
            prepared,
            set_name="new",
            model=model.provenance,
            triage=self.model.triage,
            learned=self.model.learned,
            unlikeness=model.unlikeness(views),
        )
        if self.kinds is not None:
            results = self.kinds.add(results, views)
        remove_shown(out)
        write_results(results, out)
        pages = StudyPages(results, prepared, out, shown)
        for scan in progress(results.scans, total=len(results.scans), what="heatmaps and pages"):
            study = prepared_study(prepared, scan.scan)
            maps = make_maps(model, study.hu, scan)
            write_maps(maps, out, scan, results.model)
            pages.add(scan, study, maps)
        return results, prepared, pages.finish()


def print_results(results: Results, prepared: PreparedSet) -> None:
    """Print the probability of each scan, and what could not be predicted."""
    for scan in results.scans:
        low, high = scan.interval_95
        line = f"{scan.title}: probability {scan.probability:.3f} ± {scan.std:.3f}, "
        line += f"95 % {low:.3f} to {high:.3f}"
        if reasons := incomplete(scan.ledger):
            line = f"{line}; never called negative: {', '.join(code.text for code in reasons)}"
        say(line)
    ledger = prepared.ledger
    for empty in ledger.scan[ledger.code == Code.SCAN_EMPTY]:
        folder = prepared.folders.get(empty)
        title = f"{folder} ({empty})" if folder else empty
        say(f"{title}: no slice could be used, see {prepared.folder / 'ledger.csv'}")
    if stray := in_no_study(results.ledger):
        say(f"files of no known study, not predicted: {len(stray)}; the first: {stray[0].detail}")
