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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.config import RunConfig, SetSettings
from ich_mil.data.features import FeatureSet, read_feature_csv, read_features, write_features
from ich_mil.data.prepare import Layout, prepare
from ich_mil.data.splits import check_splits, draw_splits, read_splits, write_splits
from ich_mil.data.store import PreparedSet, open_prepared
from ich_mil.errors import ConfigError, DataError
from ich_mil.evaluate.baselines import position_scan, position_score
from ich_mil.evaluate.table import Scores, evaluate, format_table, known_or_none
from ich_mil.files import whole_file, write_json
from ich_mil.gp.predict import Predictions, fit_calibration
from ich_mil.gp.storage import save_head
from ich_mil.gp.vgpmil import fit
from ich_mil.model import RUN_FORMAT, TrainedModel, device, load_model
from ich_mil.models.frozen import extract_features, load_cnn, save_cnn
from ich_mil.predictions import prediction_table, write_predictions
from ich_mil.progress import say
from ich_mil.training.fit import fit_cnn
from ich_mil.windows import parse_windows

EXTERNAL = "external"


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
    splits = pd.read_csv(config.out / "splits.csv", dtype={"scan": str, "patient": str})
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
        splits = pd.read_csv(path, dtype={"scan": str, "patient": str})
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


def validate_run(config: RunConfig) -> None:
    """Measure a run on its validation and test scans and on its external set; prints a table for each."""
    model = load_model(config.out)
    splits = pd.read_csv(config.out / "splits.csv", dtype={"scan": str, "patient": str})
    prepared: PreparedSet | None = None
    if config.train.layout == "features":
        features = read_feature_csv(config.train.path)
    else:
        features = read_features(config.out / "features" / "train.safetensors")
        prepared = open_prepared(config.prepared / "train")
    for split in ("validation", "test"):
        scans = splits.scan[splits.split == split].tolist()
        if scans:
            note = "early stopping and calibration used these scans" if split == "validation" else "held out"
            validate_features(
                model, features.select(scans), prepared, config.out / split, title=f"{split}: {note}"
            )
    if config.external is not None:
        _validate_set(
            model, config.external, config.prepared / EXTERNAL, config.out / EXTERNAL, config.workers
        )


def validate_folder(root: Path, *, layout: str, model: Path, out: Path) -> None:
    """Measure a trained model on a labelled set it has not seen; writes and prints the table."""
    settings = SetSettings(layout, str(root))  # type: ignore[arg-type]  # the command line offers these layouts only
    trained = load_model(model)
    _validate_set(trained, settings, out / "prepared", out, RunConfig(out, settings).workers)


def _validate_set(model: TrainedModel, settings: SetSettings, store: Path, out: Path, jobs: int) -> None:
    prepared: PreparedSet | None = None
    if settings.layout == "features":
        features = read_feature_csv(settings.path)
    else:
        prepared = prepare(settings.layout, settings.path, store, jobs=jobs)
        features = model.features(prepared)
        write_features(features, out / "features.safetensors")
    model.check_unseen(features, str(settings.path))
    validate_features(model, features, prepared, out, title=f"{EXTERNAL}: {settings.path}")


def validate_features(
    model: TrainedModel, features: FeatureSet, prepared: PreparedSet | None, out: Path, *, title: str
) -> pd.DataFrame:
    """The head beside its baselines on labelled scans: predictions and `metrics.csv` into `out`."""
    predictions = model.predict(features)
    splits = pd.read_csv(model.folder / "splits.csv")
    frame = evaluate(
        score_rows(features, predictions, splits.label[splits.split == "train"].to_numpy()),
        labels=features.labels.numpy(),
        patients=features.patients,
        offsets=features.offsets.numpy(),
        slice_labels=features.slice_labels.numpy(),
        seed=model.seed,
        resamples=model.bootstrap,
    )
    table = prediction_table(features, predictions, prepared)
    ledger = None if prepared is None else prepared.ledger()
    write_predictions(table, out, provenance=model.provenance, ledger=ledger)
    with whole_file(out / "metrics.csv") as temporary:
        frame.to_csv(temporary, index=False)
    say(f"\n{title}\n{format_table(frame)}\n")
    return frame


def score_rows(features: FeatureSet, predictions: Predictions, training_labels: np.ndarray) -> list[Scores]:
    """The rows of every result table: the head, the CNN alone, its attention, position without a picture."""
    return [
        Scores(
            "G-VGPMIL head, calibrated",
            predictions.scan_mean.numpy(),
            predictions.slice_mean.numpy(),
            True,
            True,
        ),
        Scores(
            "attention CNN alone",
            known_or_none(features.cnn_scan.numpy()),
            known_or_none(features.cnn_slice.numpy()),
            True,
            True,
        ),
        Scores("CNN attention weight", None, known_or_none(features.attention.numpy())),
        Scores(
            "position only",
            position_scan(training_labels, features.n_scans),
            known_or_none(position_score(features.positions.numpy())),
        ),
    ]


def predict_folder(root: Path, *, model: Path, out: Path) -> pd.DataFrame:
    """Predict every study below `root`: predictions, and a page for each study, in `out`.

    Raises:
        DataError: no readable study below `root`.
        ModelError: `model` is no finished run with a CNN.
    """
    trained = load_model(model)
    layout: Layout = "unlabelled"
    prepared = prepare(
        layout, root, out / "prepared", jobs=RunConfig(out, SetSettings("folder", str(root))).workers
    )
    features = trained.features(prepared)
    predictions = trained.predict(features)
    table = prediction_table(features, predictions, prepared)
    write_predictions(table, out, provenance=trained.provenance, ledger=prepared.ledger())
    for row in table[table.level == "scan"].itertuples():
        say(
            f"{row.scan}: probability {row.probability:.3f} ± {row.std:.3f}, "
            f"95 % {row.low:.3f} to {row.high:.3f}"
        )
    say(f"{out / 'predictions.csv'}")
    return table
