"""Metrics of one model at scan and slice level with intervals by patient bootstrap, from one or more runs.

In: `Scores` of each run, with labels and patients of the scans. Out: a row for each metric and level.
`result_table.py` compares several models; `research.reproduce` reports the spread over runs of one model.

Shapes: B scans, N slices (packed), n rows of a level, S runs, R resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ich_mil.evaluate.bootstrap import Interval, mean_interval, patient_bootstrap
from ich_mil.evaluate.metrics import INSIDE, SCAN, SLICE, Metric, auc_inside, measured, metrics_of, resampled
from ich_mil.evaluate.scores import Scores, check_scores, patient_keys
from ich_mil.ledger import THRESHOLD
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.labels import UNKNOWN

_Row = dict[str, Any]


@dataclass(frozen=True)
class Estimate:
    """Values of a metric, (S,), the interval of their mean (None if a run has no value), and percentiles."""

    values: np.ndarray
    interval: Interval | None
    percentiles: Interval


def estimates(
    metrics: Sequence[Metric],
    labels: np.ndarray,
    runs: Sequence[np.ndarray],
    patients: np.ndarray,
    *,
    seed: int,
    resamples: int,
) -> dict[str, Estimate]:
    """Values of S runs on the same rows, and the interval by patient of their mean over runs.

    Args:
        metrics: metrics of one level.
        labels: (n,) in {0, 1}.
        runs: S checked scores (n,).
        patients: (n,) patient keys.
        seed: seed of the resampling.
        resamples: number of resamples.
    """

    def mean_over_runs(counts: np.ndarray) -> dict[str, np.ndarray]:
        per_run = [resampled(metrics, labels, score, counts) for score in runs]
        return {name: np.mean([run[name] for run in per_run], axis=0) for name in per_run[0]}

    percentiles = patient_bootstrap(mean_over_runs, patients, seed=seed, resamples=resamples)
    single = [measured(metrics, labels, score) for score in runs]
    calls = [score >= THRESHOLD for score in runs]
    values = {metric.name: np.array([run[metric.name] for run in single]) for metric in metrics}
    means = {name: float(of_runs.mean()) for name, of_runs in values.items()}
    intervals: dict[str, Interval] = {}
    for metric in metrics:
        if not np.isnan(means[metric.name]):
            counted = metric.patients
            rests_on = min(counted(labels, patients, called) for called in calls) if counted else 0
            intervals[metric.name] = metric.interval(percentiles[metric.name], means[metric.name], rests_on)
    for metric in metrics:
        if metric.mean_of and metric.name in intervals:
            shares = [(means[name], intervals[name]) for name in metric.mean_of]
            intervals[metric.name] = mean_interval(percentiles[metric.name], shares)
    return {
        name: Estimate(of_runs, intervals.get(name), percentiles[name]) for name, of_runs in values.items()
    }


def measure(runs: Sequence[Scores], features: FeatureSet, *, seed: int, resamples: int) -> list[_Row]:
    """Compute all metrics of a model from the scores of S runs on the same scans; arguments as `evaluate`.

    Returns:
        One row for each level and metric: `level` (`SCAN`, `SLICE` or `INSIDE`), `metric`, `values` (S,),
        `low` and `high` (95 % interval by patient of the mean over runs; NaN if a run has no value),
        `ignored` (resamples in which the metric is not defined), `n` slices at level `SLICE`, else scans,
        `positives` and `patients` among them, `unlabelled` (rows left out), and `note`: why a value is
        missing, else empty.
    """
    how = {"seed": seed, "resamples": resamples}
    labels, slice_labels = features.labels.numpy(), features.slice_labels.numpy()
    owner = patient_keys(features.patients)
    scans = np.repeat(np.arange(len(owner)), features.offsets.diff())  # (N,) scan of each slice
    probability, name = runs[0].slice_is_probability, runs[0].name
    rows = _rows(metrics_of(SCAN), labels, [run.scan for run in runs], owner, f"{name!r}, scan", **how)
    rows += _rows(
        metrics_of(SLICE, probability=probability),
        slice_labels,
        [run.slice for run in runs],
        owner[scans],
        f"{name!r}, slice",
        **how,
    )
    metrics = metrics_of(INSIDE)
    known = int((slice_labels != UNKNOWN).sum())
    facts = _facts(INSIDE, np.empty(0), owner[:0]) | {"unlabelled": len(slice_labels) - known}
    slices = [run.slice for run in runs if run.slice is not None]
    if not slices or not known:
        note = "gives no slice score" if known else "no slice labels"
        return rows + _missing(facts, metrics, len(runs), note)
    pairs = [auc_inside(slice_labels, score, scans) for score in slices]
    inside = owner[pairs[0][0]]  # (K,)
    if not len(inside):
        return rows + _missing(facts, metrics, len(runs), "no scan has slices of both kinds")
    ones = np.ones(len(inside), dtype=np.int64)
    facts |= _facts(INSIDE, ones, inside) | {"unlabelled": facts["unlabelled"]}
    return rows + _with_values(facts, metrics, estimates(metrics, ones, [a for _, a in pairs], inside, **how))


def _rows(
    metrics: Sequence[Metric],
    labels: np.ndarray,
    runs: Sequence[np.ndarray | None],
    patients: np.ndarray,
    what: str,
    **how: int,
) -> list[_Row]:
    """Rows of the level `SCAN` or `SLICE`."""
    level, probability = metrics[0].level, metrics[-1].probability
    facts = _facts(level, labels, patients)
    scores = [score for score in runs if score is not None]
    if not scores or not facts["n"]:
        note = f"gives no {level} score" if facts["n"] else f"no {level} labels"
        return _missing(facts, metrics, len(runs), note)
    known = labels != UNKNOWN
    checked = [
        check_scores(labels, score, what=f"model {what} scores", probability=probability)[1][known]
        for score in scores
    ]
    return _with_values(facts, metrics, estimates(metrics, labels[known], checked, patients[known], **how))


def _facts(level: str, labels: np.ndarray, patients: np.ndarray) -> _Row:
    known = labels != UNKNOWN
    return {
        "level": level,
        "n": int(known.sum()),
        "positives": int((labels == 1).sum()),
        "patients": len(np.unique(patients[known])),
        "unlabelled": int((~known).sum()),
    }


def _with_values(facts: _Row, metrics: Sequence[Metric], by_metric: dict[str, Estimate]) -> list[_Row]:
    rows = []
    for metric in metrics:
        estimate = by_metric[metric.name]
        values, ends = estimate.values, estimate.interval
        if ends is not None:
            limits = {"low": ends.low, "high": ends.high, "ignored": ends.ignored, "note": ""}
            rows.append({**facts, "metric": metric.name, "values": values, **limits})
            continue
        note = metric.undefined
        if len(values) > 1:
            note = f"not defined for {np.isnan(values).sum()} of {len(values)} seeds: {note}"
        rows += _missing(facts, [metric], len(values), note, values)
    return rows


def _missing(
    facts: _Row, metrics: Sequence[Metric], count: int, note: str, values: np.ndarray | None = None
) -> list[_Row]:
    limits = {"low": np.nan, "high": np.nan, "ignored": 0, "note": note}
    values = np.full(count, np.nan) if values is None else values
    return [{**facts, "metric": metric.name, "values": values, **limits} for metric in metrics]
