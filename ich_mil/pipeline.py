"""The steps of a run, each a function: train, validate, predict, report. `train.py` runs them in a row.

A run's folder:

    run.json               format, configuration and its hash
    splits.csv             scan, patient, label, split
    cnn/                   Lightning checkpoints and log.csv
    cnn.safetensors/.json  the frozen CNN
    features/*.safetensors features of the training and external scans
    head.safetensors/.json the Gaussian process with its calibration
    head_fit.json          bound and validation loss of each sweep
    validation/ test/ external/   metrics.csv, predictions.csv, predictions.json of each set
    report.html            the run's page; studies/ holds a page for each external scan

Each step's result is written whole; with `resume` a step whose result is there is not done again, and the
CNN goes on from its last epoch.
"""

import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ich_mil.config import RunConfig, SetLayout, SetSettings, read_config
from ich_mil.data.features import UNKNOWN, FeatureSet, read_feature_csv, read_features, write_features
from ich_mil.data.prepare import prepare
from ich_mil.data.splits import check_splits, check_unseen, draw_splits, read_splits, write_splits
from ich_mil.data.store import PreparedSet, open_prepared
from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.evaluate.baselines import position_scan, position_score
from ich_mil.evaluate.table import Scores, evaluate, format_table, known_or_none, read_table
from ich_mil.files import whole_file, write_json, write_text
from ich_mil.gp.predict import Predictions, fit_calibration
from ich_mil.gp.vgpmil import fit, save_head
from ich_mil.model import RUN_FORMAT, TrainedModel, device, load_model
from ich_mil.models.frozen import extract_features, load_cnn, save_cnn
from ich_mil.predictions import prediction_table, write_predictions
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
from ich_mil.training.fit import fit_cnn
from ich_mil.windows import parse_windows

LIMITS = (
    "Trained on scan labels alone; a slice's probability is inferred, not taught.",
    "The uncertainty is the Gaussian process's for given features; it does not cover errors of the CNN.",
    "Validation scans stopped and calibrated the fit: their figures flatter, test and external ones do not.",
    "Scans unlike the training scans (other scanners, contrast, other body parts) may be wrong and sure.",
)


def train(config: RunConfig, *, resume: bool) -> None:
    """Prepare, train the CNN, extract features, fit and calibrate the head; leaves a model in `config.out`.

    Args:
        config: the run.
        resume: go on with what is in `config.out`; without it that folder must not hold a run.

    Raises:
        ConfigError: the folder holds a run already, or one with other settings.
        DataError: data that cannot be used.
    """
    _check_data(config)
    _start(config, resume)
    features = _training_features(config)
    if (config.out / "head.json").is_file():
        return
    splits = _read_splits(config.out)
    fit_head(features, splits, config)


def _check_data(config: RunConfig) -> None:
    """What can be refused before anything is written."""
    sets = [one for one in (config.train, config.external) if one is not None]
    if len({one.layout == "features" for one in sets}) > 1:
        raise ConfigError("train and external must both be pictures or both be features")
    for one in sets:
        if not one.path.exists():
            raise DataError(f"{one.path}: no such file or folder")


def _start(config: RunConfig, resume: bool) -> None:
    path = config.out / "run.json"
    if path.is_file():
        if not resume:
            raise ConfigError(
                f"{config.out}: holds a run already; add --resume to go on with it, or choose another --out"
            )
        old = json.loads(path.read_text(encoding="utf-8"))
        if old.get("config_hash") != config.hash:
            fields = _differences(old.get("config", {}), config.as_dict())
            raise ConfigError(
                f"{config.out}: was started with other settings ({', '.join(fields)}); choose another --out"
            )
    about = {
        "format": RUN_FORMAT,
        "cnn": config.train.layout != "features",
        "config_hash": config.hash,
        "config": config.as_dict(),
    }
    write_text(config.out / "config.yaml", yaml.safe_dump(config.as_dict(), sort_keys=False))
    write_json(path, about)


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    names = []
    for name in sorted(set(old) | set(new)):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            names += _differences(a, b, f"{prefix}{name}.")
        elif a != b:
            names.append(f"{prefix}{name}")
    return names


def _training_features(config: RunConfig) -> FeatureSet:
    """Features of all labelled scans of the training set; writes splits and, for pictures, the CNN."""
    if config.train.layout == "features":
        features = read_feature_csv(config.train.path)
        scans = pd.DataFrame(
            {"patient": features.patients, "label": features.labels.tolist()}, index=features.scans
        )
        _write_splits(config, scans)
        return features
    prepared = prepare(config.train.layout, config.train.path, config.prepared / "train", jobs=config.workers)
    splits = _write_splits(config, prepared.scans)
    path = config.out / "features" / "train.safetensors"
    if path.is_file() and (config.out / "cnn.json").is_file():
        return read_features(path)
    windows = parse_windows(config.windows)
    if (config.out / "cnn.json").is_file():
        model, _, _ = load_cnn(config.out)
    else:
        model = fit_cnn(
            prepared,
            splits,
            config.out / "cnn",
            windows=windows,
            cnn=config.cnn,
            training=config.training,
            seed=config.seed,
        )
        save_cnn(model, config.out, settings=config.cnn, windows=windows)
    features = extract_features(
        model.to(device()), prepared, splits.scan.tolist(), windows=windows, image_size=config.cnn.image_size
    )
    write_features(features, path)
    return features


def _write_splits(config: RunConfig, scans: pd.DataFrame) -> pd.DataFrame:
    path = config.out / "splits.csv"
    if path.is_file():
        splits = _read_splits(config.out)
        check_splits(splits, str(path))
        return splits
    if config.split.file is not None:
        splits = read_splits(config.split.file, scans)
    else:
        splits = draw_splits(
            scans, validation=config.split.validation, test=config.split.test, seed=config.seed
        )
    write_splits(splits, path)
    return splits


def fit_head(features: FeatureSet, splits: pd.DataFrame, config: RunConfig) -> None:
    """Fit the Gaussian process on split `train`, stop and calibrate on split `validation`, save it."""
    parts = {
        split: features.select(splits.scan[splits.split == split].tolist())
        for split in ("train", "validation")
    }
    learn, watch = parts["train"], parts["validation"]
    head, report = fit(
        learn.x.double(),
        learn.offsets,
        learn.labels,
        settings=config.head,
        validation=(watch.x.double(), watch.offsets, watch.labels),
    )
    head.calibration = fit_calibration(
        head,
        watch.x.double(),
        watch.offsets,
        watch.scans,
        watch.labels,
        samples=config.samples,
        seed=config.seed,
    )
    write_json(config.out / "head_fit.json", asdict(report))
    save_head(head, config.out)
    say(f"head: {report.message}")


@dataclass(frozen=True)
class MeasuredSet:
    """A labelled set to measure a model on.

    Attributes:
        name: `validation`, `test` or `external`; also the name of its folder in the run.
        title: what it is, in words.
        features: of its scans.
        prepared: where its pictures lie; None for public features.
    """

    name: str
    title: str
    features: FeatureSet
    prepared: PreparedSet | None


def training_sets(config: RunConfig) -> dict[str, MeasuredSet]:
    """The train, validation and test scans of a run (those that exist), with their features."""
    splits = _read_splits(config.out)
    prepared: PreparedSet | None = None
    if config.train.layout == "features":
        features = read_feature_csv(config.train.path)
    else:
        features = read_features(config.out / "features" / "train.safetensors")
        prepared = open_prepared(config.prepared / "train")
    titles = {"train": "fitted", "validation": "used for early stopping and calibration", "test": "held out"}
    chosen = {name: splits.scan[splits.split == name].tolist() for name in titles}
    return {
        name: MeasuredSet(name, f"{name} scans, {titles[name]}", features.select(scans), prepared)
        for name, scans in chosen.items()
        if scans
    }


def measured_sets(model: TrainedModel, config: RunConfig) -> list[MeasuredSet]:
    """The sets a run is measured on; the external one is prepared and given features if it was not yet."""
    sets = [one for name, one in training_sets(config).items() if name != "train"]
    if config.external is not None:
        stored = config.out / "features" / "external.safetensors"
        sets.append(
            _external_set(model, config.external, config.prepared / "external", stored, config.workers)
        )
    return sets


def _external_set(
    model: TrainedModel, settings: SetSettings, store: Path, stored: Path, jobs: int
) -> MeasuredSet:
    prepared: PreparedSet | None = None
    if settings.layout == "features":
        features = read_feature_csv(settings.path)
    else:
        prepared = prepare(settings.layout, settings.path, store, jobs=jobs)
        if stored.is_file():
            features = read_features(stored)
        else:
            features = model.features(prepared)
            write_features(features, stored)
    check_unseen(features.patients, _read_splits(model.folder), str(settings.path))
    return MeasuredSet("external", f"external scans, {settings.path}", features, prepared)


def _read_splits(run: Path) -> pd.DataFrame:
    return pd.read_csv(run / "splits.csv", dtype={"scan": str, "patient": str})


def validate_run(config: RunConfig) -> None:
    """Measure a run on its validation and test scans and on its external set; prints a table for each."""
    model = load_model(config.out)
    for one in measured_sets(model, config):
        measure(model, one, config.out / one.name)


def validate_folder(root: Path, *, layout: SetLayout, model: Path, out: Path, jobs: int) -> None:
    """Measure a trained model on a labelled set it has not seen; writes and prints the table."""
    trained = load_model(model)
    settings = SetSettings(layout, str(root))
    one = _external_set(trained, settings, out / "prepared", out / "features.safetensors", jobs)
    measure(trained, one, out)


def measure(model: TrainedModel, one: MeasuredSet, out: Path) -> None:
    """The head beside its baselines on labelled scans: predictions and `metrics.csv` into `out`."""
    features = one.features
    predictions = model.predict(features)
    frame = evaluate(
        score_rows(model, features, predictions),
        labels=features.labels.numpy(),
        patients=features.patients,
        offsets=features.offsets.numpy(),
        slice_labels=features.slice_labels.numpy(),
        seed=model.seed,
        resamples=model.bootstrap,
    )
    _write_predictions(model, features, predictions, one.prepared, out)
    with whole_file(out / "metrics.csv") as temporary:
        frame.to_csv(temporary, index=False)
    say(f"\n{one.title}\n{format_table(frame)}\n")


def _write_predictions(
    model: TrainedModel,
    features: FeatureSet,
    predictions: Predictions,
    prepared: PreparedSet | None,
    out: Path,
) -> pd.DataFrame:
    table = prediction_table(features, predictions, prepared)
    ledger = None if prepared is None else prepared.ledger()
    write_predictions(table, out, provenance=model.provenance, ledger=ledger)
    return table


def score_rows(model: TrainedModel, features: FeatureSet, predictions: Predictions) -> list[Scores]:
    """The rows of every result table: the head, the CNN alone, its attention, position without a picture."""
    splits = _read_splits(model.folder)
    prevalence = position_scan(splits.label[splits.split == "train"].to_numpy(), features.n_scans)
    cnn_scan, cnn_slice = (known_or_none(part.numpy()) for part in (features.cnn_scan, features.cnn_slice))
    attention = known_or_none(features.attention.numpy())
    position = known_or_none(position_score(features.positions.numpy()))
    return [
        Scores(
            "Gaussian-process head",
            predictions.scan_mean.numpy(),
            predictions.slice_mean.numpy(),
            slice_is_probability=True,
        ),
        Scores("CNN alone", cnn_scan, cnn_slice, slice_is_probability=True),
        *([] if attention is None else [Scores("CNN attention weight", None, attention)]),
        Scores("position only", prevalence, position),
    ]


def predict_folder(root: Path, *, model: Path, out: Path, jobs: int) -> None:
    """Predict every study below `root`: predictions, and a page for each study, in `out`.

    Raises:
        DataError: no readable study below `root`.
        ModelError: `model` is no finished run with a CNN.
    """
    trained = load_model(model)
    prepared = prepare("unlabelled", root, out / "prepared", jobs=jobs)
    features = trained.features(prepared)
    predictions = trained.predict(features)
    table = _write_predictions(trained, features, predictions, prepared, out)
    write_study_pages(trained, features, predictions, prepared, out, scans=features.scans)
    for row in table[table.level == "scan"].itertuples():
        interval = f"95 % {row.low:.3f} to {row.high:.3f}"
        say(f"{row.scan}: probability {row.probability:.3f} ± {row.std:.3f}, {interval}")
        say(f"  {out / study_file_name(str(row.scan))}")
    say(f"{out / 'predictions.csv'}")


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
        ledger={} if one.prepared is None else Counter(one.prepared.ledger().code),
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
