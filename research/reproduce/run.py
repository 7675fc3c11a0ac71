"""Run a benchmark protocol: fit all models, compute metrics, write tables, figures and report.

In: a `ProtocolConfig`. Out, in `config.out`:

    protocol.json     digest of the settings of this folder
    fits/             one file for each model and task; a restarted run reuses existing files
    SET/results.csv   every model and baseline on every scored set: mean, std over seeds, intervals
    SET/*.csv         detailed analyses of the main head (`research.reproduce.analyses`)
    SET/*.png         figures
    report.md         all results with explanations, and a comparison with published figures

Tasks run in parallel, one thread each. Results do not depend on the number of processes.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, cpu_count, delayed

from ich_mil.errors import ConfigError, DataError
from ich_mil.evaluate.scores import Scores
from ich_mil.files import alone, write_csv, write_json
from ich_mil.kernels.segments import take_bags
from ich_mil.progress import progress, say
from ich_mil.ranks import device
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.labels import UNKNOWN
from research.reproduce.analyses import analyse
from research.reproduce.networks import network_sections
from research.reproduce.page import Chapter, write_page
from research.reproduce.protocol import BenchmarkSet, ProtocolConfig
from research.reproduce.scored_set import ScoredSet
from research.reproduce.scoring import (
    ARRAYS,
    BASELINES,
    NEEDS_EXTRA,
    OF_SCANS,
    Model,
    main_model,
    read_scored,
    score_task,
    scored_file,
)
from research.reproduce.statistics.feature_baselines import attention_model
from research.reproduce.tables import facts_of, metrics_over_seeds, result_sections
from research.reproduce.tasks import HELD_OUT, Task, read_bags, tasks_of

PROTOCOL_FORMAT = "research.reproduce.protocol.1"


def reproduce(config: ProtocolConfig) -> Path:
    """Run a protocol; existing fits are reused.

    Returns:
        Path of the report, `config.out / "report.md"`.

    Raises:
        ConfigError: the folder has results of other settings.
        DataError: invalid data, or a folder that another process is writing to.
    """
    models = models_of(config)
    _check_inputs(config)
    # invalid tables fail here, before a folder is created; tasks of pictures train networks and come later
    ready = {one.name: list(tasks_of(one, config)) for one in config.sets if one.kind != "pictures"}
    about = {"format": PROTOCOL_FORMAT, "config_hash": config.hash}
    with alone(config.out, doing="writing"):
        written = config.out / "protocol.json"
        if written.is_file() and json.loads(written.read_text(encoding="utf-8")) != about:
            raise ConfigError(f"{config.out}: holds results of other settings; choose another --out")
        write_json(written, about)
        chapters: list[Chapter] = []
        for one in config.sets:
            tasks = ready[one.name] if one.name in ready else list(tasks_of(one, config))
            _fit(one, tasks, models, config)
            chapters += _measure(one, tasks, models, config)
        page = config.out / "report.md"
        write_page(page, config.title, facts_of(config), chapters)
    say(f"{page}: {', '.join(one.name for one in config.sets)}")
    return page


def _fit(one: BenchmarkSet, tasks: list[Task], models: list[Model], config: ProtocolConfig) -> None:
    """Fit and score every model on every task."""
    units = [(model, task) for task in tasks for model in models]
    # one process saturates a GPU
    jobs = 1 if device().type == "cuda" else min(config.jobs or cpu_count(), len(units))
    work = Parallel(n_jobs=jobs, return_as="generator_unordered")(
        delayed(score_task)(model, task, config) for model, task in units
    )
    for _ in progress(work, total=len(units), what=one.name, unit="fit"):
        pass


def models_of(config: ProtocolConfig) -> list[Model]:
    """All heads with every M, then the baselines. `ConfigError` if a head has the name of a baseline."""
    if both := sorted(set(config.heads) & set(BASELINES)):
        raise ConfigError(f"heads: {both[0]!r} is the name of a baseline; choose another")
    heads = [Model(name, m) for name in config.heads for m in config.n_inducing]
    return heads + [Model(name) for name in BASELINES if config.attention_mil or name != NEEDS_EXTRA]


def _check_inputs(config: ProtocolConfig) -> None:
    """Check that all input files and packages exist, before anything is fitted."""
    for one in config.sets:
        for what in ("root", "external", "test", "findings", "scans"):
            named = what == "root" and one.kind == "pictures"  # may be the name of a shipped configuration
            for path in {one.path(what, seed=seed) for seed in one.cnn_seeds}:
                if getattr(one, what) and not named and not path.exists():
                    raise DataError(f"set {one.name!r}: {what} {path}: no such file or folder")
    if config.attention_mil:
        attention_model()  # raises if torchmil is not installed


@dataclass
class _SeedScores:
    """Scores of one model on one scored set with each seed, in the order of `bags` (first seed)."""

    bags: FeatureSet
    scores: list[Scores]
    seconds: list[float]


def _gather(
    home: FeatureSet | None, tasks: list[Task], model: Model, config: ProtocolConfig
) -> dict[tuple[str, int], _SeedScores]:
    """Scores of a model by scored set and width, with the held-out folds of a seed joined.

    `home` are the bags that are divided into folds, in their order; None for one split.
    """
    parts: dict[tuple[str, int, int], list[tuple[FeatureSet, Scores, float]]] = defaultdict(list)
    for task in tasks:
        found, seconds = read_scored(scored_file(config.out / "fits", model, task))
        for name, scores in found.items():
            parts[name, task.width, task.seed].append((task.scored[name], scores, seconds))
    runs: dict[tuple[str, int], _SeedScores] = {}
    for (name, width, _), pieces in parts.items():
        whole = home if home is not None and name == HELD_OUT else pieces[0][0]
        run = runs.setdefault((name, width), _SeedScores(whole, [], []))
        run.scores.append(_in_order(run.bags, [piece[:2] for piece in pieces]))
        run.seconds.append(sum(seconds for _, _, seconds in pieces))
    return runs


def _in_order(whole: FeatureSet, pieces: list[tuple[FeatureSet, Scores]]) -> Scores:
    """Join the scores of the parts in the order of `whole`; each scan is in exactly one part."""
    place = {scan: b for b, scan in enumerate(whole.scans)}
    joined: dict[str, np.ndarray] = {}
    for features, scores in pieces:
        scans = torch.tensor([place[scan] for scan in features.scans])
        slices = take_bags(whole.offsets, scans)[0]
        for name in ARRAYS:
            # slices without a label are not measured, and runs of the CNN may have different numbers of them
            if name == "slice" and (whole.slice_labels == UNKNOWN).all():
                continue
            if (values := getattr(scores, name)) is not None:
                rows, size = (scans, whole.n_scans) if name in OF_SCANS else (slices, len(whole.x))
                joined.setdefault(name, np.full(size, np.nan))[rows] = values
    parts: dict[str, Any] = {name: joined.get(name) for name in ARRAYS}
    return replace(pieces[0][1], **parts)


def _measure(
    one: BenchmarkSet, tasks: list[Task], models: list[Model], config: ProtocolConfig
) -> list[Chapter]:
    """Write `results.csv` of a set and run the detailed analyses of its main head."""
    home = None if one.one_split else read_bags(one, config)
    runs = {model: _gather(home, tasks, model, config) for model in models}
    folder = config.out / one.name
    units = [(model, place) for place in runs[main_model(config)] for model in models]
    made = Parallel(n_jobs=config.jobs or cpu_count(), return_as="generator")(
        delayed(_rows)(model, *place, runs[model][place], config) for model, place in units
    )
    tables = list(progress(made, total=len(units), what=f"{one.name}: metrics", unit="table"))
    results = pd.concat(tables, ignore_index=True)
    write_csv(folder / "results.csv", results)
    sections = list(result_sections(one, results, folder, config))
    if len(one.cnn_seeds) > 1:
        scans = {model: {at: (run.bags, run.scores) for at, run in runs[model].items()} for model in models}
        sections += network_sections(one, scans, folder, config)
    analyses = [analyse(scored) for scored in _scored_sets(one, runs, tasks[0].ledgers, folder, config)]
    return [Chapter(one.name, sections), *analyses]


def _rows(model: Model, name: str, width: int, run: _SeedScores, config: ProtocolConfig) -> pd.DataFrame:
    table = metrics_over_seeds(run.scores, run.bags, seed=config.seeds[0], resamples=config.resamples)
    return table.assign(
        scored=name,
        width=width,
        model=model.name,
        n_inducing=model.n_inducing,
        seconds=float(np.mean(run.seconds)),
    )


def _scored_sets(
    one: BenchmarkSet,
    runs: dict[Model, dict[tuple[str, int], _SeedScores]],
    ledgers: dict[str, pd.DataFrame],
    folder: Path,
    config: ProtocolConfig,
) -> Iterator[ScoredSet]:
    """Inputs of the detailed analyses: the first seed of the main head on each scored set."""
    main = main_model(config)
    several = len({width for _, width in runs[main]}) > 1
    for name, width in runs[main]:
        homes = [other for other, its in runs[main] if its == width and other != one.external_name]
        home = None
        if name == one.external_name and homes:
            at_home = runs[main][homes[0], width]
            home = at_home.bags, at_home.scores[0]
        say(f"{one.name}: analysing {main.title} on {name}")
        yield ScoredSet(
            name=f"{name}, D={width}" if several else name,
            main=main.title,
            scores={model.title: run[name, width].scores[0] for model, run in runs.items()},
            bags=runs[main][name, width].bags,
            home=home,
            findings=one.path("findings") if one.findings and name == one.external_name else None,
            ledger=ledgers.get(name),
            folder=folder,
            config=config,
        )
