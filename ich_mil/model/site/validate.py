"""Validate a model: metrics of the head and its baselines on held-out and external scans.

In: a trained model and labelled scans. Out, in a folder per set: `metrics.csv`, `scans.csv`, `slices.csv`,
`predictions.json`. The table of metrics is printed. Pages are in `ich_mil.output.run_report`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from ich_mil.config import RunConfig
from ich_mil.errors import named
from ich_mil.evaluate.baselines import (
    CNN_SIGMOID,
    CnnSigmoid,
    position_score,
    slice_prevalence,
)
from ich_mil.evaluate.result_table import evaluate, format_table
from ich_mil.evaluate.scores import Scores, known_or_none
from ich_mil.files import write_csv
from ich_mil.gp.predict import Predictions
from ich_mil.heads.extras import NO_EXTRAS, ExtraSources
from ich_mil.model.assembly import make_results, unlike_scans
from ich_mil.model.model import TrainedModel, read_extras
from ich_mil.model.predictions import Results, write_results
from ich_mil.model.storage import learned_table
from ich_mil.model.training.training_sets import (
    head_scans,
    open_training,
    prepare_set,
    training_views,
    whole_scans,
)
from ich_mil.network.training.set_settings import member_path
from ich_mil.progress import say
from ich_mil.sets.features import FeatureSet, read_unseen_table
from ich_mil.sets.labels import UNKNOWN, name_some
from ich_mil.sets.layouts.names import SiteLayout
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.scan_labels import ScanLabels
from ich_mil.sets.splits import check_current, check_unseen, learned_from, load_splits, names_of
from ich_mil.sets.store import PreparedSet
from ich_mil.sets.views import Views


@dataclass(frozen=True)
class MeasuredSet:
    """A labelled set with its features.

    Attributes:
        name: `train`, `validation`, `test` or `external`; also the name of the folder of its results.
        title: description for users.
        source: folder of the set, or CSV of public features.
        views: features of its scans by each member of the model.
        prepared: prepared set of its pictures; None for public features.
    """

    name: str
    title: str
    source: Path
    views: Views
    prepared: PreparedSet | None

    @property
    def features(self) -> FeatureSet:
        """Scans, labels and CNN outputs, combined over all members."""
        return self.views.features

    @property
    def scans(self) -> pd.DataFrame:
        """Table with one row per scan: index `scan`; at least columns patient, label, content."""
        return self.features.table if self.prepared is None else self.prepared.scans.loc[self.features.scans]


@dataclass(frozen=True)
class Evaluation:
    """A measured set with its results: scores, `metrics.csv` as a table, and `predictions.json`."""

    measured: MeasuredSet
    rows: list[Scores]
    table: pd.DataFrame
    results: Results


def run_sets(
    model: TrainedModel, config: RunConfig, external: PreparedSet | None = None
) -> dict[str, MeasuredSet]:
    """Collect the train, validation, test and external sets of a run that exist, with their features.

    `external` is the prepared external set; it is prepared here if None.

    Raises:
        DataError: the external set holds a scan or patient the run was trained or calibrated on, even if
            under another name.
    """
    sets = _training_sets(config)
    if config.external is None:
        return sets
    settings = config.external
    if external is None and settings.layout != "features":
        external = prepare_set(settings, "external", config, jobs=config.workers)
    path = config.out / "features" / "external.safetensors"
    measured = external_set(model, settings.path, external, path, settings.extras, settings.columns)
    title = f"external scans, {settings.name}" if settings.name else measured.title
    return sets | {"external": replace(measured, title=title)}


def _training_sets(config: RunConfig) -> dict[str, MeasuredSet]:
    splits = load_splits(config.out / "splits.csv")
    prepared = open_training(config) if config.train.layout != "features" else None
    views = training_views([config.member(k) for k in range(config.members)], splits.scan.tolist())
    check_current(splits, views.features.table if prepared is None else prepared.scans, str(config.out))
    used = head_scans(views.features, splits, config)
    known = splits[splits.scan.isin({*views.features.scans})]  # other scans train the location alone
    held = {name: known.scan[known.split == name].tolist() for name in ("validation", "test")}
    chosen = {
        "train": ("fitted", used.learn),
        "validation": ("used for early stopping and calibration", used.watch or []),
        "test": ("held out", whole_scans(views.features, held["test"], config)),
    }
    sets = {}
    for name, (title, scans) in chosen.items():
        if left := len({*held.get(name, [])} - {*scans}):
            title += f"; {left} single slices are not measured"
        if scans:
            title = f"{name} scans, {title}"
            sets[name] = MeasuredSet(name, title, config.train.path, views.select(scans), prepared)
    return sets


def external_set(
    model: TrainedModel,
    root: Path,
    prepared: PreparedSet | None,
    features_in: Path,
    extras: ExtraSources = NO_EXTRAS,
    columns: Mapping[str, str] = MappingProxyType({}),
) -> MeasuredSet:
    """Features of a labelled set of patients the model was neither trained nor calibrated on.

    Args:
        model: model that computes the features.
        root: folder of the set, or file of features; `{member}` is replaced by the number of the member.
        prepared: prepared set of the folder; None for public features.
        features_in: file of the features; not used for public features.
        extras: files of the inputs beside the slices.
        columns: names of columns of the features, as in `SetSettings`.

    Raises:
        ModelError: the model reads pictures and is given features, or the other way round.
        DataError: features that cannot be used, or a scan or patient the model has seen.
    """
    model.check_input(pictures=prepared is not None)
    learned = learned_from(learned_table(model.folder))
    if prepared is None:
        paths = [member_path(root, number) for number in range(len(model.members))]
        members = []
        for path, member in zip(paths, model.members, strict=True):
            seen = learned_from(learned_table(member.folder)) | learned
            members.append(read_unseen_table(path, columns, width=len(member.head.x_mean), learned=seen))
        views = Views.of(members, paths)
    else:
        check_unseen(prepared.scans, learned, str(root))
        patients, ids = prepared.scans.patient, {*prepared.scans.index}
        unnamed = [str(scan) for scan, patient in patients.items() if ids.issuperset(names_of(patient))]
        if unnamed:
            say(
                f"{root}: {len(unnamed)} scans name no patient ({name_some(unnamed)}); "
                "the model may have been trained on these people"
            )
        views = model.features(prepared, features_in)
    views = views.with_extras(read_extras(model, extras, views.features.scans, prepared))
    return MeasuredSet("external", f"external scans, {root}", root, views, prepared)


@dataclass(frozen=True)
class Site:
    """A labelled set that a model has not seen, as named on the command line.

    Attributes:
        root: folder of DICOM files, or feature file.
        layout: its layout.
        jobs: processes that prepare it.
        contrast_words: file of words for contrast media; None: those of the package.
        extras: files of the inputs beside the slices.
        columns: names of columns of a feature file, as in `SetSettings`.
        labels: table of labels of the layout `folder`; None: other layouts.
    """

    root: Path
    layout: SiteLayout
    jobs: int
    contrast_words: Path | None = None
    extras: ExtraSources = NO_EXTRAS
    columns: Mapping[str, str] = field(default_factory=dict)
    labels: ScanLabels | None = None

    def prepare(self, out: Path) -> PreparedSet | None:
        """Prepare the scans into `out`; needs no model. None for a feature file.

        Raises:
            DataError: data that cannot be used, or labels that do not fit the scans.
        """
        if self.layout == "features":
            return None
        words = self.contrast_words
        return prepare(
            self.layout, self.root, out / "prepared", jobs=self.jobs, contrast_words=words, labels=self.labels
        )

    def measured(self, model: TrainedModel, prepared: PreparedSet | None, out: Path) -> MeasuredSet:
        """`external_set` of the site, prepared by `prepare`; its features are stored in `out`.

        Raises:
            ModelError: the model reads pictures and is given features, or the other way round.
            DataError: data that cannot be used, or a scan or patient the model has seen.
        """
        model.check_input(pictures=prepared is not None)
        path = out / "features.safetensors"
        return external_set(model, self.root, prepared, path, self.extras, self.columns)


def measure(model: TrainedModel, measured: MeasuredSet, out: Path) -> Evaluation:
    """Evaluate the head and its baselines on labelled scans; write predictions and `metrics.csv` to `out`."""
    with named(measured.source):
        predictions, explained = model.explain(measured.views)
    rows = score_rows(model, measured.features, predictions)
    table = evaluate(rows, measured.features, seed=model.seed, resamples=model.bootstrap)
    results = make_results(
        measured.features,
        predictions,
        explained,
        measured.prepared,
        set_name=measured.name,
        model=model.provenance,
        unlikeness=model.unlikeness(measured.views),
    )
    write_results(results, out)
    write_csv(out / "metrics.csv", table)
    lines = filter(None, [measured.title, unlike_scans(results)])
    say("", *lines, *format_table(table).split("\n"), "", str(out / "metrics.csv"), "")
    return Evaluation(measured, rows, table, results)


def score_rows(model: TrainedModel, features: FeatureSet, predictions: Predictions) -> list[Scores]:
    """Scores of the head, the CNN, its attention and image-free baselines: the rows of result tables."""
    splits = load_splits(model.folder / "splits.csv")
    train = splits.label[(splits.split == "train") & (splits.label != UNKNOWN)]
    share = model.provenance.prevalence or train.mean()
    cnn_scan, cnn_slice, attention = (
        known_or_none(part.numpy()) for part in (features.cnn_scan, features.cnn_slice, features.attention)
    )
    position = known_or_none(position_score(features.positions.numpy()))
    prevalence = slice_prevalence(features.slice_labels.numpy())
    sigmoid = CnnSigmoid.load(model.folder / CNN_SIGMOID)
    head = predictions.scan_mean.numpy(), predictions.slice_mean.numpy()
    title = " and ".join(dict.fromkeys(member.head.title for member in model.members))
    rows = [
        Scores(title, *head, slice_is_probability=True),
        Scores("CNN alone", cnn_scan, cnn_slice, slice_is_probability=True),
    ]
    if cnn_scan is not None and sigmoid is not None:
        rows.append(Scores("CNN alone, calibrated", sigmoid(features.cnn_scan).numpy(), None))
    if attention is not None:
        rows.append(Scores("CNN attention weight", None, attention))
    rows.append(Scores("position only", np.full(features.n_scans, share), position))
    if prevalence is not None:
        rows.append(Scores("slice prevalence", None, prevalence, slice_is_probability=True))
    return rows
