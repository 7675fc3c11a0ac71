"""A trained model and a study in, the result of the study out, all in memory.

    study = read_study("head_ct")
    result = load_model().predict(study)
    result.save_page("page.html")

`ich-mil serve` predicts studies this way as they arrive, `ich-mil predict` the studies of a folder.

Shapes: n slices of H x W pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from ich_mil.errors import ConfigError, check_installed
from ich_mil.evaluate.deployment.triage import Triage
from ich_mil.files import write_text
from ich_mil.heads.extras import NO_EXTRAS
from ich_mil.ledger import NEGATIVE, LedgerEntry
from ich_mil.model import storage
from ich_mil.model.assembly import ScanFacts, decision_rule, scan_result
from ich_mil.model.folder import BUNDLED
from ich_mil.model.maps import ScanMaps, make_maps
from ich_mil.model.model import TrainedModel, read_extras
from ich_mil.model.predictions import Provenance, Results, ScanPrediction
from ich_mil.model.site.triage import read_triage
from ich_mil.network.frozen import study_features
from ich_mil.pages.study_page import Neighbours, render_study
from ich_mil.ranks import device
from ich_mil.sets.extras import Extras
from ich_mil.sets.preparation.identifying_texts import study_texts
from ich_mil.sets.splits import learned_from
from ich_mil.sets.views import Views
from ich_mil.study.study import Study

if TYPE_CHECKING:
    from ich_mil.model.site.slice_kinds import SliceKinds
    from ich_mil.model.site.subtype import Kinds


class Heatmap(NamedTuple):
    """Probability of a bleed at each pixel of a slice, and its standard deviation over networks, (H, W)."""

    mean: np.ndarray
    std: np.ndarray


@dataclass(frozen=True)
class ScanResult:
    """Result of one study.

    Attributes:
        prediction: all numbers, as in `predictions.json`.
        study: the study.
        model: the model.
        views: features of the study by each network of the model.
    """

    prediction: ScanPrediction
    study: Study
    model: "Model"
    views: Views

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"ScanResult(id={self.study.id!r}, probability={self.probability:.3f}, interval=({low:.3f}, "
            f"{high:.3f}), decision={self.decision!r}, {len(self.prediction.slices)} slices, "
            f"{len(self.ledger)} ledger entries)"
        )

    @property
    def probability(self) -> float:
        """Calibrated probability of a hemorrhage: mean over posterior samples."""
        return self.prediction.probability

    @property
    def interval(self) -> tuple[float, float]:
        """Central 95 % of the posterior samples of the probability."""
        return self.prediction.interval_95

    @property
    def decision(self) -> str:
        """`positive`, `negative`, or `look`: undecided. A study that lost slices is never `negative`."""
        return self.prediction.decision

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """Refusals, corrections and notes on the input."""
        return self.prediction.ledger

    @property
    def slices(self) -> pd.DataFrame:
        """One row per slice, index `slice` from 1, the lowest: position_mm, probability, std, low, high."""
        rows = [
            (part.slice + 1, part.name, part.position_mm, part.probability, part.std, *part.interval_95)
            for part in self.prediction.slices
        ]
        columns = ["slice", "sop", "position_mm", "probability", "std", "low", "high"]
        return pd.DataFrame(rows, columns=columns).set_index("slice")

    @cached_property
    def maps(self) -> ScanMaps | None:
        """Heatmaps of the most probable slices; None for a model that does not locate bleeds."""
        return make_maps(self.model.trained, self.study.hu, self.prediction)

    def heatmap(self, number: int) -> Heatmap:
        """Heatmap of slice `number`, from 1, the lowest; only the most probable slices have one.

        Raises:
            ValueError: the slice has no heatmap.
        """
        mapped = [] if self.maps is None else (self.maps.slices + 1).tolist()
        if self.maps is None or number not in mapped:
            raise ValueError(f"slice {number} has no heatmap; slices with one: {mapped}")
        fine = self.maps.on_grid(*self.study.hu.shape[1:])
        row = mapped.index(number)
        return Heatmap(fine.mean[row], fine.std[row])

    def save_page(self, path: str | Path, *, names: bool = False) -> None:
        """Write the offline page of the study; with `names`, with the patient's name and other DICOM texts.

        Raises:
            DataError: the page cannot be written, or the DICOM texts cannot be read.
        """
        texts = study_texts(self.study) if names else {}
        rule = decision_rule(self.model.triage, self.model.trained.provenance)
        page = study_page(
            self.prediction, self.model.trained.provenance, rule, self.study, self.maps, texts=texts
        )
        write_text(Path(path), page)

    def save_dicom(self, folder: str | Path, *, replaced: Sequence[Path] = ()) -> list[Path]:
        """Write DICOM results into `folder` and return their paths; see `write_dicom_results`."""
        check_installed("highdicom", "dicom", "save_dicom")
        from ich_mil.dicom_results.write import write_dicom_results

        with self.study.on_disk() as study:
            return write_dicom_results(
                self.prediction, self.results, study, self.maps, Path(folder), replaced=replaced
            )

    @property
    def results(self) -> Results:
        """Content of `predictions.json` for this study alone."""
        rule = decision_rule(self.model.triage, self.model.trained.provenance)
        return Results("new", self.model.trained.provenance, rule, (self.prediction,), ())


class Model:
    """A trained model that predicts studies.

    Attributes:
        trained: networks with their heads and calibration.
        triage: thresholds of the decision; None: decision by the interval.
        kinds: models of the kinds of bleed of scans; None: no kinds are predicted.
        slice_kinds: models of the six targets of RSNA 2019, for `submission.csv`; None: there are none.
        learned: keys of the scans that the model was trained or calibrated on.
    """

    def __init__(
        self,
        trained: TrainedModel,
        triage: Triage | None = None,
        kinds: "Kinds | None" = None,
        slice_kinds: "SliceKinds | None" = None,
    ) -> None:
        self.trained, self.triage, self.kinds, self.slice_kinds = trained, triage, kinds, slice_kinds
        self.learned = learned_from(storage.learned_table(trained.folder))

    def at_prevalence(self, share: float) -> "Model":
        """The model for scans of which a share, in (0, 1), is positive; see `TrainedModel.at_prevalence`.

        Raises:
            ConfigError: a share that is not between 0 and 1, or a model with thresholds of a triage.
            ModelError: the share of positive scans that the model was calibrated on is unknown.
        """
        if self.triage is not None:
            raise ConfigError(
                "thresholds of a triage hold for the probabilities that they were fitted to; leave out the "
                "thresholds or the prevalence"
            )
        return Model(self.trained.at_prevalence(share), kinds=self.kinds, slice_kinds=self.slice_kinds)

    def predict(
        self, study: Study, *, extras: Extras | None = None, prevalence: float | None = None
    ) -> ScanResult:
        """Predict a study: probability, uncertainty and decision of the scan and of each slice.

        Args:
            study: the study.
            extras: inputs beside the slices, possibly of other studies too; None: slices alone.
            prevalence: share of positive scans at the site; None: that of the scans of the calibration.

        Raises:
            TypeError: `study` is no `Study`.
            ConfigError, ModelError: as `at_prevalence`.
        """
        if not isinstance(study, Study):
            raise TypeError(
                f"predict takes a Study, got {type(study).__name__}; read one with ich_mil.read_study(path)"
            )
        if prevalence is not None:
            return self.at_prevalence(prevalence).predict(study, extras=extras)
        if extras is None:  # names inputs that the model lacks
            extras = read_extras(self.trained, NO_EXTRAS, [study.id])
        networks = [member.cnn for member in self.trained.members if member.cnn]
        views = Views.of([study_features(network.to(device()), study) for network in networks])
        views = views.with_extras(extras)
        predictions, explained = self.trained.explain(views)
        inputs = (views.features, predictions, explained, 0, ScanFacts.of(study))
        prediction = scan_result(
            *inputs,
            model=self.trained.provenance,
            triage=self.triage,
            learned=self.learned,
            unlikeness=float(self.trained.unlikeness(views)[0]),
        )
        if self.kinds is not None and prediction.decision != NEGATIVE:
            prediction = replace(prediction, kinds=self.kinds.predict(views))
        return ScanResult(prediction, study, self, views)


def load_model(
    path: str | Path | None = None,
    *,
    triage: str | Path | None = None,
    kinds: str | Path | None = None,
) -> Model:
    """Load a trained model that reads pictures.

    Args:
        path: folder of a run or an ensemble; None: the bundled model.
        triage: thresholds of `ich-mil triage`; None: decision by the interval.
        kinds: models of the kinds of bleed, of `ich-mil subtype`; None: no kinds are predicted.

    Raises:
        ModelError: the folder holds no finished model with a CNN; thresholds or kinds of another model.
        DataError: the thresholds or `splits.csv` cannot be read.
    """
    trained = storage.load_model(BUNDLED if path is None else path)
    trained.check_input(pictures=True)
    model, weights = Model(trained), trained.provenance.weights
    if triage is not None:
        model.triage = read_triage(Path(triage), weights=weights)
    if kinds is not None:
        from ich_mil.model.site.slice_kinds import SliceKinds, has_slice_kinds
        from ich_mil.model.site.subtype import Kinds  # imports the multiple-kernel models

        if has_slice_kinds(Path(kinds)):
            model.slice_kinds = SliceKinds.load(Path(kinds), weights=weights)
        else:
            model.kinds = Kinds.load(Path(kinds), weights=weights)
    return model


def study_page(
    scan: ScanPrediction,
    model: Provenance,
    rule: str,
    study: Study,
    maps: ScanMaps | None,
    *,
    texts: Mapping[str, str] = {},
    run_link: str = "",
    neighbours: Neighbours | None = None,
) -> str:
    """Page of a study as one HTML document; arguments as in `render_study`."""
    return render_study(
        scan,
        model,
        rule,
        study.hu,
        maps,
        edges=study.edges,
        texts=texts,
        spacing_mm=study.pixel_mm if min(study.pixel_mm) > 0 else None,
        run_link=run_link,
        neighbours=neighbours,
    )
