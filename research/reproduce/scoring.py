"""Fit one model to one task of a protocol, score the test scans, and cache the scores in one file.

In: a `Task` and the name of a head or of a baseline. Out: `Scores` for each set that the task scores, as one
safetensors file for each model and task. A file that was computed from the same inputs is reused.

Shapes: B scans, N slices of one scored set.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ich_mil import __version__
from ich_mil.errors import DataError, named
from ich_mil.evaluate.baselines import CnnSigmoid, position_score
from ich_mil.evaluate.scores import Scores, known_or_none
from ich_mil.files import digest, whole_file
from ich_mil.gp.predict import predict
from ich_mil.heads.gaussian_process import GaussianProcessHead, bags_of
from ich_mil.sets.features import FeatureSet
from research.reproduce.file_names import file_stem
from research.reproduce.protocol import ProtocolConfig
from research.reproduce.statistics.feature_baselines import How, attention_mil, hold_out, pooled_logistic
from research.reproduce.tasks import Task

FORMAT = "ich_mil.scored.4"
OF_SCANS = ("scan", "scan_std")
"""Fields of `Scores` with one number for each scan; `slice` has one for each slice."""
ARRAYS = (*OF_SCANS, "slice")


@dataclass(frozen=True)
class Model:
    """A model of the tables: a head or a baseline.

    Attributes:
        name: name of a head of the protocol, or of a baseline.
        n_inducing: M of a head, 0 for a baseline.
    """

    name: str
    n_inducing: int = 0

    @property
    def title(self) -> str:
        """Name in the tables."""
        return f"{self.name}, M={self.n_inducing}" if self.n_inducing else self.name


def _known(scores: torch.Tensor) -> np.ndarray | None:
    return known_or_none(scores.double().numpy())


def _cnn_alone(task: Task, test: FeatureSet) -> Scores:
    return Scores("CNN alone", _known(test.cnn_scan), _known(test.cnn_slice), slice_is_probability=True)


def _cnn_calibrated(task: Task, test: FeatureSet) -> Scores:
    learn = task.validation or task.train
    if learn.cnn_scan.isnan().all():
        return Scores("CNN alone, calibrated", None, None)
    # without a fit in one fold the whole row would be undefined
    sigmoid = CnnSigmoid.fit(learn.cnn_scan, learn.labels) or CnnSigmoid(1.0, 0.0)
    return Scores("CNN alone, calibrated", _known(sigmoid(test.cnn_scan)), None)


def _pooled(task: Task, test: FeatureSet, *, how: How) -> Scores:
    return pooled_logistic(task.train, test, how=how, seed=task.seed)


def _attention(task: Task, test: FeatureSet) -> Scores:
    learn, stop = task.train, task.validation
    if stop is None:
        learn, stop = hold_out(learn, seed=task.seed)
    return attention_mil(learn, stop, test, seed=task.seed)


def _position_only(task: Task, test: FeatureSet) -> Scores:
    prevalence = np.full(test.n_scans, task.train.labels.double().mean())
    return Scores("position only", prevalence, known_or_none(position_score(test.positions.numpy())))


BASELINES: dict[str, Callable[[Task, FeatureSet], Scores]] = {
    "CNN alone": _cnn_alone,
    "CNN alone, calibrated": _cnn_calibrated,
    "logistic regression, mean-pooled": partial(_pooled, how="mean"),
    "logistic regression, max-pooled": partial(_pooled, how="max"),
    "attention MIL (torchmil)": _attention,
    "position only": _position_only,
}
"""Baselines of every table, by name."""
NEEDS_EXTRA = "attention MIL (torchmil)"
"""The baseline that needs the extra `bench`."""


def main_model(config: ProtocolConfig) -> Model:
    """The head with detailed analyses."""
    return Model(config.main, config.main_inducing)


def _score_with_head(model: Model, task: Task, config: ProtocolConfig) -> dict[str, Scores]:
    settings = config.head(model.name, model.n_inducing, seed=task.seed)
    head = GaussianProcessHead.fit(task.train, settings, watch=task.validation).model
    scored = {}
    for name, features in task.scored.items():
        found = predict(
            head, bags_of(features), samples=config.samples, seed=task.seed, calibration=head.calibration
        )
        scored[name] = Scores(
            model.title,
            found.scan_mean.numpy(),
            found.slice_mean.numpy(),
            slice_is_probability=True,
            scan_std=found.scan_std.numpy(),
        )
    return scored


def scored_file(folder: Path, model: Model, task: Task) -> Path:
    """Path of the scores of a model on a task below `folder`."""
    name = f"{file_stem(model.title)}_{digest(model.title.encode())[:4]}"
    fold = "all" if task.fold < 0 else f"f{task.fold}"
    return folder / task.set / name / f"d{task.width}_s{task.seed}_{fold}.safetensors"


def _made_of(model: Model, task: Task, config: ProtocolConfig) -> str:
    """Digest of everything that scores depend on: version of the program, model, scans."""
    settings = config.head(model.name, model.n_inducing, seed=task.seed) if model.n_inducing else None
    sets = {"train": task.train, "validation": task.validation, **task.scored}
    known = {name: one for name, one in sets.items() if one is not None}
    tensors = [
        part.numpy().tobytes()
        for one in known.values()
        for part in vars(one).values()
        if torch.is_tensor(part)
    ]
    names = json.dumps([(name, one.scans, one.patients) for name, one in known.items()])
    about = f"{__version__} {model} {settings} {config.samples} {task.seed}"
    return digest(about.encode(), names.encode(), *tensors)


def score_task(model: Model, task: Task, config: ProtocolConfig) -> Path:
    """Score a task with a model, unless the cached file is valid; return the path of the file.

    It uses one thread, because tasks run in parallel.
    """
    path = scored_file(config.out / "fits", model, task)
    made_of = _made_of(model, task, config)
    if _about(path).get("made_of") == made_of:
        return path
    started = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with named(f"{task.set}, {model.title}"):
            if model.n_inducing:
                found = _score_with_head(model, task, config)
            else:
                baseline = BASELINES[model.name]
                found = {name: baseline(task, one) for name, one in task.scored.items()}
    finally:
        torch.set_num_threads(threads)
    about = {
        "format": FORMAT,
        "made_of": made_of,
        "seconds": f"{time.perf_counter() - started:.3f}",
        "model": model.title,
        "sets": json.dumps({name: scores.slice_is_probability for name, scores in found.items()}),
    }
    tensors = {
        f"{name}/{part}": torch.tensor(getattr(scores, part))
        for name, scores in found.items()
        for part in ARRAYS
        if getattr(scores, part) is not None
    }
    with whole_file(path) as temporary:
        save_file(tensors, temporary, about)
    return path


def _about(path: Path) -> dict[str, str]:
    """Metadata of a file of `score_task`; empty if it does not exist or has another format."""
    try:
        with safe_open(path, framework="pt") as file:
            about = dict(file.metadata() or {})
    except (SafetensorError, OSError):
        return {}
    return about if about.get("format") == FORMAT else {}


def read_scored(path: Path) -> tuple[dict[str, Scores], float]:
    """Read a file of `score_task`: scores by set, and the seconds of the fit; `DataError` if damaged."""
    about = _about(path)
    if not about:
        raise DataError(f"{path}: cannot be read as scores; delete it and run the same command again")
    found = {}
    with safe_open(path, framework="numpy") as file:
        keys = set(file.keys())
        for name, probability in json.loads(about["sets"]).items():
            parts = {
                part: file.get_tensor(f"{name}/{part}") if f"{name}/{part}" in keys else None
                for part in ARRAYS
            }
            found[name] = Scores(about["model"], slice_is_probability=probability, **parts)
    return found, float(about["seconds"])
