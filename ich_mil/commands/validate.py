"""Validate a model: metrics of the head and its baselines on held-out and external scans.

In: a trained model and labelled scans. Out, in a folder per set: `metrics.csv`, `predictions.csv`,
`predictions.json`. The table of metrics is printed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ich_mil.commands.pages import remove_shown
from ich_mil.config import RunConfig, SetLayout, member_path
from ich_mil.data.duplicates import names_of
from ich_mil.data.features import FeatureSet, read_feature_csv, read_features, read_unseen_csv
from ich_mil.data.labels import name_some
from ich_mil.data.layouts.slice_pictures import Window
from ich_mil.data.preparation.prepare import prepare
from ich_mil.data.splits import check_unseen, learned_from, load_splits
from ich_mil.data.store import PreparedSet
from ich_mil.data.views import Views
from ich_mil.errors import named
from ich_mil.evaluate.baselines import (
    CNN_SIGMOID,
    CnnSigmoid,
    position_scan,
    position_score,
    slice_prevalence,
)
from ich_mil.evaluate.result_table import evaluate, format_table
from ich_mil.evaluate.scores import Scores, known_or_none
from ich_mil.files import alone, check_apart, write_text
from ich_mil.gp.predict import Predictions
from ich_mil.multimodal.extras import NO_EXTRAS, ExtraSources
from ich_mil.multimodal.head import MultimodalHead
from ich_mil.progress import say
from ich_mil.runs.model import Member, TrainedModel, check_no_run, load_model, with_extras
from ich_mil.runs.predictions import make_results, write_results
from ich_mil.runs.training_sets import head_scans, open_training, training_extras, whole_scans

HEAD_ROWS = ("Gaussian-process head", "multimodal head")
"""Name of the head in result tables, by whether it is of family multimodal."""


@dataclass(frozen=True)
class MeasuredSet:
    """A labelled set of a run, with its features.

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


def run_sets(model: TrainedModel, config: RunConfig) -> dict[str, MeasuredSet]:
    """Collect the train, validation, test and external sets of a run that exist, with their features.

    The external set is prepared, and its features are computed, where they do not exist yet.

    Raises:
        DataError: the external set holds a scan or patient the run was trained or calibrated on, even if
            under another name.
    """
    sets = _training_sets(config)
    if config.external is not None:
        sets["external"] = external_set(
            model,
            config.external.layout,
            config.external.path,
            prepared_in=config.prepared / "external",
            features_in=config.out / "features" / "external.safetensors",
            jobs=config.workers,
            window=config.external.picture_window,
            contrast_words=config.contrast_words,
            extras=config.external.extras,
        )
    return sets


def _training_sets(config: RunConfig) -> dict[str, MeasuredSet]:
    splits = load_splits(config.out / "splits.csv")
    prepared = open_training(config) if config.train.layout != "features" else None
    views = training_views([config.member(k) for k in range(config.members)], splits.scan.tolist())
    used = head_scans(views.features, splits, config)
    test = splits.scan[splits.split == "test"].tolist()
    titles = {
        "train": ("fitted", used.learn, []),
        "validation": (
            "used for early stopping and calibration",
            used.watch or [],
            splits.scan[splits.split == "validation"].tolist(),
        ),
        "test": ("held out", whole_scans(views.features, test, config), test),
    }
    sets = {}
    for name, (title, scans, every) in titles.items():
        if scans:
            if left := len({*every} - {*scans}):
                title += f"; {left} single slices are not measured"
            own = views.select(scans)
            sets[name] = MeasuredSet(name, f"{name} scans, {title}", config.train.path, own, prepared)
    return sets


def training_views(runs: Sequence[RunConfig], scans: list[str]) -> Views:
    """Read the features of training scans from several finished runs.

    Args:
        runs: configurations of the runs.
        scans: ids of scans of their common training set.

    Raises:
        DataError: files that cannot be read or do not match each other, or a missing scan.
    """
    paths = [
        run.train.path if run.train.layout == "features" else run.out / "features" / "train.safetensors"
        for run in runs
    ]
    views = []
    for run, path in zip(runs, paths, strict=True):
        with named(path):
            read = read_feature_csv if run.train.layout == "features" else read_features
            features = read(path).select(scans)
        views.append(replace(features, extras=training_extras(run, scans)))
    return Views.of(views, paths)


def external_set(
    model: TrainedModel,
    layout: SetLayout,
    root: Path,
    *,
    prepared_in: Path,
    features_in: Path,
    jobs: int,
    window: Window | None = None,
    contrast_words: Path | None = None,
    extras: ExtraSources = NO_EXTRAS,
) -> MeasuredSet:
    """Prepare a labelled set of patients the model was neither trained nor calibrated on, with features.

    Args:
        model: model that computes the features.
        layout: layout of the set.
        root: folder of the set, or CSV of public features, where `{member}` is replaced by the number of the
            member.
        prepared_in: folder of the prepared set; not used for public features.
        features_in: file of the features; not used for public features.
        jobs: number of worker processes of the preparation.
        window: window of 8-bit pictures, for layout `slices`.
        contrast_words: site-specific CSV of phrases.
        extras: files of the inputs beside the slices.

    Raises:
        ModelError: the model reads pictures and is given features, or the other way round.
        DataError: data that cannot be used, or a scan or patient the model has seen.
    """
    model.check_input(pictures=layout != "features")
    learned = learned_from(load_splits(model.folder / "splits.csv"))
    prepared: PreparedSet | None = None
    if layout == "features":
        paths = [member_path(root, number) for number in range(len(model.members))]
        pairs = zip(paths, model.members, strict=True)
        views = Views.of([_unseen(*pair, learned) for pair in pairs], paths)
    else:
        prepared = prepare(
            layout,
            root,
            prepared_in,
            jobs=jobs,
            thickness_mm=model.thickness_mm,
            window=window,
            contrast_words=contrast_words,
        )
        check_unseen(prepared.scans, learned, str(root))
        patients, ids = prepared.scans.patient, {*prepared.scans.index}
        unnamed = [str(scan) for scan, patient in patients.items() if ids.issuperset(names_of(patient))]
        if unnamed:
            say(
                f"{root}: {len(unnamed)} scans name no patient ({name_some(unnamed)}); "
                "whether the model has seen these people cannot be told"
            )
        views = model.features(prepared, features_in)
    views = with_extras(views, model, extras, prepared)
    return MeasuredSet("external", f"external scans, {root}", root, views, prepared)


def _unseen(path: Path, member: Member, learned: dict[str, str]) -> FeatureSet:
    """Read a feature table of a member, and check that the model was not trained on any of its scans."""
    own = learned_from(load_splits(member.folder / "splits.csv"))
    return read_unseen_csv(path, width=len(member.head.x_mean), learned=own | learned)


def validate_run(config: RunConfig) -> bool:
    """Evaluate a run on its validation, test and external scans, and print a table for each set.

    Returns:
        Whether the run has any of these sets.
    """
    model = load_model(config.out)
    sets = run_sets(model, config)
    del sets["train"]
    for name, one in sets.items():
        measure(model, one, config.out / name)
    return bool(sets)


def validate_folder(
    root: Path,
    *,
    layout: SetLayout,
    model: Path,
    out: Path,
    jobs: int,
    contrast_words: Path | None = None,
    extras: ExtraSources = NO_EXTRAS,
) -> None:
    """Evaluate a trained model on a labelled set it has not seen; write and print the table.

    Raises:
        ConfigError: `out` lies in `root`, or is the folder of a run.
        ModelError: `model` is not a finished run, or reads pictures and is given features, or vice versa.
        DataError: data that cannot be used, a patient the model has seen, or a folder that another process is
            writing.
    """
    check_apart(out, root)
    check_no_run(out)
    trained = load_model(model)
    with alone(out, doing="writing"):
        places: dict[str, Any] = {
            "prepared_in": out / "prepared",
            "features_in": out / "features.safetensors",
        }
        places |= {"contrast_words": contrast_words, "extras": extras}
        one = external_set(trained, layout, root, **places, jobs=jobs)
        measure(trained, one, out)


def measure(model: TrainedModel, one: MeasuredSet, out: Path) -> None:
    """Evaluate the head and its baselines on labelled scans; write predictions and `metrics.csv` to `out`.

    Pages, maps, decisions and DICOM results of earlier predictions in `out` are removed.
    """
    features = one.features
    with named(one.source):
        predictions = model.predict(one.views)
    frame = evaluate(
        score_rows(model, features, predictions),
        labels=features.labels.numpy(),
        patients=features.patients,
        offsets=features.offsets.numpy(),
        slice_labels=features.slice_labels.numpy(),
        seed=model.seed,
        resamples=model.bootstrap,
    )
    results = make_results(
        features,
        predictions,
        model.explain(one.views, predictions),
        one.prepared,
        set_name=one.name,
        model=model.provenance,
        unlikeness=model.unlikeness(one.views),
    )
    remove_shown(out)
    write_results(results, out)
    write_text(out / "metrics.csv", frame.to_csv(index=False))
    say(f"\n{one.title}\n{format_table(frame)}\n\n{out / 'metrics.csv'}\n")


def score_rows(model: TrainedModel, features: FeatureSet, predictions: Predictions) -> list[Scores]:
    """Scores of the head, the CNN, its attention and image-free baselines: the rows of result tables."""
    splits = load_splits(model.folder / "splits.csv")
    prevalence = position_scan(splits.label[splits.split == "train"].to_numpy(), features.n_scans)
    cnn_scan, cnn_slice = (known_or_none(part.numpy()) for part in (features.cnn_scan, features.cnn_slice))
    attention = known_or_none(features.attention.numpy())
    position = known_or_none(position_score(features.positions.numpy()))
    constant = slice_prevalence(features.slice_labels.numpy())
    sigmoid = CnnSigmoid.load(model.folder / CNN_SIGMOID)
    calibrated = None if cnn_scan is None or sigmoid is None else sigmoid(features.cnn_scan).numpy()
    rows = [
        Scores(
            HEAD_ROWS[any(isinstance(one.head, MultimodalHead) for one in model.members)],
            predictions.scan_mean.numpy(),
            predictions.slice_mean.numpy(),
            slice_is_probability=True,
        ),
        Scores("CNN alone", cnn_scan, cnn_slice, slice_is_probability=True),
        *([] if calibrated is None else [Scores("CNN alone, calibrated", calibrated, None)]),
        *([] if attention is None else [Scores("CNN attention weight", None, attention)]),
        Scores("position only", prevalence, position),
    ]
    if constant is not None:
        rows.append(Scores("slice prevalence", None, constant, slice_is_probability=True))
    return rows
