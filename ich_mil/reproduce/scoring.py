"""Fit one model to one task of a protocol, score the test scans, and cache the scores in one file.

In: a `Task` and the name of a head or of a baseline. Out: `Scored` for each set that the task scores, as one
safetensors file for each model and task. A file that was computed from the same inputs is reused.

Shapes: B scans, N slices of one scored set.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ich_mil import __version__
from ich_mil.data.features import FeatureSet
from ich_mil.errors import DataError, named
from ich_mil.evaluate.baselines import CnnSigmoid, position_scan, position_score
from ich_mil.files import digest, file_stem, whole_file
from ich_mil.gp.predict import predict
from ich_mil.reproduce.protocol import ProtocolConfig
from ich_mil.reproduce.statistics.independent import independent_scans
from ich_mil.reproduce.statistics.pooled import How, attention_mil, hold_out, pooled_logistic
from ich_mil.reproduce.tasks import Task
from ich_mil.runs.model import bags_of
from ich_mil.training.fit_head import fit_to

FORMAT = "ich_mil.scored.2"
OF_SCANS = ("scan", "scan_std", "scan_std_independent")
"""Fields of `Scored` with one number for each scan; the other fields have one for each slice."""


@dataclass(frozen=True)
class Scored:
    """Scores of one model for the scans and slices of one set; NaN where the model gives none.

    Attributes:
        scan: (B,) probability.
        scan_std: (B,) standard deviation over joint samples of the slices.
        scan_std_independent: (B,) standard deviation over independent samples of the slices.
        slice: (N,) probability, or a score that ranks slices.
        slice_std: (N,) standard deviation.
    """

    scan: np.ndarray
    scan_std: np.ndarray
    scan_std_independent: np.ndarray
    slice: np.ndarray
    slice_std: np.ndarray


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


def says(features: FeatureSet, **given: object) -> Scored:
    """Build a `Scored` with NaN for all fields that are missing or None."""
    scans, slices = np.full(features.n_scans, np.nan), np.full(len(features.x), np.nan)
    blank = {one.name: scans if one.name in OF_SCANS else slices for one in fields(Scored)}
    known = {name: np.asarray(values, np.float64) for name, values in given.items() if values is not None}
    return Scored(**{name: known.get(name, unknown.copy()) for name, unknown in blank.items()})


def _position_only(task: Task) -> dict[str, Scored]:
    labels = task.train.labels.numpy()
    return {
        name: says(one, scan=position_scan(labels, one.n_scans), slice=position_score(one.positions.numpy()))
        for name, one in task.scored.items()
    }


def _cnn_alone(task: Task) -> dict[str, Scored]:
    return {name: says(one, scan=one.cnn_scan, slice=one.cnn_slice) for name, one in task.scored.items()}


def _cnn_calibrated(task: Task) -> dict[str, Scored]:
    learn = task.validation or task.train
    sigmoid = CnnSigmoid.fit(learn.cnn_scan, learn.labels)
    if sigmoid is None and not learn.cnn_scan.isnan().all():
        sigmoid = CnnSigmoid(1.0, 0.0)  # NaN in one fold would make the whole row undefined
    return {name: says(one, scan=sigmoid and sigmoid(one.cnn_scan)) for name, one in task.scored.items()}


def _pooled(task: Task, *, how: How) -> dict[str, Scored]:
    return {
        name: says(one, **vars(pooled_logistic(task.train, one, how=how, seed=task.seed)))
        for name, one in task.scored.items()
    }


def _attention(task: Task) -> dict[str, Scored]:
    learn, watch = task.train, task.validation
    if watch is None:
        learn, watch = hold_out(learn, seed=task.seed)
    return {
        name: says(one, **vars(attention_mil(learn, watch, one, seed=task.seed)))
        for name, one in task.scored.items()
    }


BASELINES: dict[str, Callable[[Task], dict[str, Scored]]] = {
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
NO_PROBABILITY = frozenset({*BASELINES} - {"CNN alone"})
"""Baselines whose slice scores are not probabilities."""


def main_model(config: ProtocolConfig) -> Model:
    """The head with detailed analyses."""
    return Model(config.main, config.main_inducing)


def _head(model: Model, task: Task, config: ProtocolConfig) -> dict[str, Scored]:
    settings = config.head(model.name, model.n_inducing, seed=task.seed)
    head = fit_to(task.train, task.validation, settings)
    # independent samples are reported in the detailed analyses only
    looked_at = model == main_model(config) and task.seed == config.first_seed(task.set)
    found = {}
    for name, one in task.scored.items():
        bags = bags_of(one)
        how: dict[str, Any] = {
            "samples": config.samples,
            "seed": task.seed,
            "calibration": head.model_.calibration,
        }
        joint = predict(head.model_, bags, **how)
        found[name] = says(
            one,
            scan=joint.scan_mean,
            scan_std=joint.scan_std,
            scan_std_independent=independent_scans(head.model_, bags, **how)[1] if looked_at else None,
            slice=joint.slice_mean,
            slice_std=joint.slice_std,
        )
    return found


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
            found = _head(model, task, config) if model.n_inducing else BASELINES[model.name](task)
    finally:
        torch.set_num_threads(threads)
    about = {"format": FORMAT, "made_of": made_of, "seconds": f"{time.perf_counter() - started:.3f}"}
    tensors = {
        f"{name}/{part}": torch.tensor(values)
        for name, scored in found.items()
        for part, values in vars(scored).items()
    }
    with whole_file(path) as temporary:
        save_file(tensors, temporary, about | {"sets": json.dumps(list(found))})
    return path


def _about(path: Path) -> dict[str, str]:
    """Metadata of a file of `score_task`; empty if it does not exist or has another format."""
    try:
        with safe_open(path, framework="pt") as file:
            about = dict(file.metadata() or {})
    except (SafetensorError, OSError):
        return {}
    return about if about.get("format") == FORMAT else {}


def read_scored(path: Path) -> tuple[dict[str, Scored], float]:
    """Read a file of `score_task`: the scores, and the seconds that the fit took.

    Raises:
        DataError: the file is damaged.
    """
    about = _about(path)
    if not about:
        raise DataError(f"{path}: cannot be read as scores; delete it and run the same command again")
    with safe_open(path, framework="pt") as file:
        found = {
            name: Scored(
                **{one.name: file.get_tensor(f"{name}/{one.name}").numpy() for one in fields(Scored)}
            )
            for name in json.loads(about["sets"])
        }
    return found, float(about["seconds"])
