"""Fit a grid of heads on a feature table: all combinations of settings, folds and seeds.

In: a `GridConfig`. Out, in `config.out`: `grid.csv`, one row per fit, and `grid.json` with the digests of its
settings and data. The table is rewritten atomically as fits finish, and a restart with the same settings
resumes after the last row. Fits run side by side in `config.jobs` processes.

Every scan is scored by heads that were not fitted to it. Nothing is tuned on the held-out fold: fits run
without early stopping. Scores are computed from the posterior mean. There is no log-loss, as probabilities
are not calibrated here.
"""

import math
import time
from collections import defaultdict
from dataclasses import replace
from itertools import chain
from typing import Any

import pandas as pd
import torch
from joblib import Parallel, cpu_count, delayed
from sklearn.metrics import f1_score
from torch import Tensor

from ich_mil.config import GridConfig
from ich_mil.errors import named
from ich_mil.evaluate.metrics import auc
from ich_mil.files import alone, digest, each_text, original, write_csv, write_json
from ich_mil.gp.aggregation import scan_logit
from ich_mil.gp.fit import Job, fit_replicates
from ich_mil.gp.inference.folds import Fold, folds_of
from ich_mil.gp.predict import mean_logits
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import check_kernel, make_kernel
from ich_mil.heads.gaussian_process import bags_of
from ich_mil.progress import progress, say
from ich_mil.ranks import device
from ich_mil.sets.feature_files import contents
from ich_mil.sets.features import FeatureSet, read_feature_table, read_unseen_table
from ich_mil.sets.labels import UNKNOWN
from ich_mil.sets.splits import keys_of
from ich_mil.settings import check_about

GRID_FORMAT = "ich_mil.grid.1"


def grid(config: GridConfig) -> pd.DataFrame:
    """Run the fits of a grid that are not in its table yet, and return the table, one row per fit.

    Raises:
        ConfigError: the folder holds results of other settings or data, or a kernel cannot be used.
        DataError: features that cannot be used or divided into folds; an external set with patients
            of the training set or another number of features; a folder that another process is writing.
    """
    features = read_feature_table(config.train.path, config.train.columns)
    width = features.x.shape[1]
    tables = [config.train.path]
    external = None
    if config.external is not None:
        tables.append(config.external.path)
        learned = keys_of(features.table)
        external = read_unseen_table(
            config.external.path, config.external.columns, width=width, learned=learned
        )
    for cell in config.cells():
        head = replace(config.head, **cell)
        check_kernel(make_kernel(head, width), torch.zeros(2, width, dtype=torch.float64))
    with named(config.train.path):
        keys, jobs = _jobs(config, features)
    data = digest(*(part for table in tables for part in contents(table)))
    metadata = {"format": GRID_FORMAT, "config_hash": config.hash, "data": data}
    with alone(config.out, doing="writing"):
        check_about(config.out / "grid.json", metadata)
        write_json(config.out / "grid.json", metadata)
        return _fill(config, features, external, keys, jobs)


def _fill(
    config: GridConfig,
    features: FeatureSet,
    external: FeatureSet | None,
    keys: list[dict[str, Any]],
    jobs: list[Job],
) -> pd.DataFrame:
    """Run the missing fits, add their rows to the table and print the summary."""
    path = config.out / "grid.csv"
    table = each_text(pd.read_csv(path), original) if path.is_file() else pd.DataFrame()
    rows = [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]
    done = {_key(row, config) for row in rows}
    left = [index for index, key in enumerate(keys) if _key(key, config) not in done]
    if rows:
        say(f"{len(keys) - len(left)} of {len(keys)} fits are in {path} already")
    todo = [jobs[index] for index in left]
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, job in enumerate(todo):  # k-means is computed once for each group
        groups[job.train, job.settings.n_inducing, job.settings.random_state].append(index)
    # one process saturates a GPU
    processes = 1 if device().type == "cuda" else min(config.jobs or cpu_count(), max(len(groups), 1))
    work = Parallel(n_jobs=processes, return_as="generator_unordered")(
        delayed(_fit_group)(features, external, {index: todo[index] for index in group})
        for group in groups.values()
    )
    lines = chain.from_iterable(work)
    for index, row in progress(lines, total=len(left), what="grid", unit="fit"):
        rows.append(keys[left[index]] | row)
        write_csv(path, pd.DataFrame(rows))
    table = pd.DataFrame(rows)
    say(f"{len(table)} fits in {path}")
    say(*_summary(table, list(config.grid)).to_string().split("\n"))
    return table


def _summary(table: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Mean and standard deviation of each metric over seeds and folds, one row per cell of the grid."""
    metrics = [
        name
        for name in table.columns.astype(str)
        if name.startswith(("held_", "external_")) and table[name].notna().any()
    ]
    return table.groupby(names)[metrics].agg(["mean", "std"]).round(4)


def _jobs(config: GridConfig, features: FeatureSet) -> tuple[list[dict[str, Any]], list[Job]]:
    """Key columns and job of each fit."""
    keys, jobs = [], []
    for seed in config.seeds:
        folds: list[Fold] = [(tuple(range(features.n_scans)), ())]
        if config.folds:
            folds = folds_of(features.labels, features.patients, folds=config.folds, seed=seed)
        for fold, (train, _) in enumerate(folds):
            for cell in config.cells():
                keys.append(cell | {"seed": seed, "fold": fold})
                jobs.append(Job(replace(config.head, **cell, random_state=seed), train))
    return keys, jobs


def _names(config: GridConfig) -> list[str]:
    """Names of the key columns, which identify a fit."""
    return [*config.grid, "seed", "fold"]


def _key(row: dict[str, Any], config: GridConfig) -> tuple[str, ...]:
    """Key of a row as text, equal for a value and its form in the CSV."""
    values = (row[name] for name in _names(config))
    return tuple(
        f"{float(v):.12g}" if isinstance(v, int | float) and not isinstance(v, bool) else str(v)
        for v in values
    )


def _fit_group(
    features: FeatureSet, external: FeatureSet | None, jobs: dict[int, Job]
) -> list[tuple[int, dict[str, Any]]]:
    """Index of each fit and its row of the table without the key columns."""
    indices, chosen = list(jobs), list(jobs.values())
    made = []
    started = time.perf_counter()
    for fits in fit_replicates(bags_of(features).to(device()), chosen):
        seconds = (time.perf_counter() - started) / len(fits)
        models = [fit.model for fit in fits]
        seen = set(chosen[fits[0].place].train or ())
        out = [scan for b, scan in enumerate(features.scans) if b not in seen]
        sets = {"held": features.select(out)} if out else {}
        sets |= {} if external is None else {"external": external}
        logits = {name: mean_logits(models, bags_of(part)).cpu() for name, part in sets.items()}
        for r, fit in enumerate(fits):
            row: dict[str, Any] = {
                "sweeps": len(fit.report.elbo),
                "stopped": fit.report.stopped,
                "elbo": fit.report.elbo[-1] if fit.report.elbo else math.nan,
                "max_abs_mean": fit.report.max_abs_mean[-1] if fit.report.max_abs_mean else math.nan,
                "seconds": round(seconds, 3),
            }
            for name, part in sets.items():
                row |= _scores(logits[name][r], part, fit.model.settings, name)
            made.append((indices[fit.place], row))
        started = time.perf_counter()
    return made


def _scores(logits: Tensor, features: FeatureSet, settings: HeadSettings, name: str) -> dict[str, float]:
    """AUC of scans and slices, F1 of slices at p = ½. NaN: AUC with a single class, F1 without positives."""
    scans = scan_logit(logits[None], features.offsets, settings.variant.rule)[0]
    of_scans, of_slices = features.labels != UNKNOWN, features.slice_labels != UNKNOWN
    labels, score = features.slice_labels[of_slices].numpy(), logits[of_slices].numpy()
    return {
        f"{name}_scan_auc": auc(features.labels[of_scans].numpy(), scans[of_scans].numpy()),
        f"{name}_slice_auc": auc(labels, score),
        f"{name}_slice_f1": float(f1_score(labels, score > 0)) if labels.any() else math.nan,
    }
