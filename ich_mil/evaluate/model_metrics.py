"""Metrics of one model at scan and slice level with intervals by patient bootstrap, from one or more runs.

In: `Scores` of each run, with labels and patients of the scans. Out: a row for each metric and level.
`result_table.py` compares several models; `ich-mil reproduce` reports the spread over runs of one model.

Shapes: B scans, N slices (packed), S runs, R resamples.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ich_mil.data.labels import UNKNOWN
from ich_mil.evaluate.bootstrap import Interval, effective_patients, metric_intervals, patient_bootstrap
from ich_mil.evaluate.calibration_line import calibration_line, resampled_line
from ich_mil.evaluate.metrics import (
    POINT_NAMES,
    THRESHOLD,
    auc_inside,
    check_scores,
    patient_keys,
    predictive_values,
    scan_metrics,
    slice_probability_metrics,
    slice_ranking,
)
from ich_mil.evaluate.resampled_metrics import (
    resampled_predictive_values,
    resampled_ranking,
    resampled_scan_metrics,
    resampled_slice_probability_metrics,
)
from ich_mil.evaluate.scores import Scores

SCAN, SLICE, INSIDE = "scan", "slice", "slice inside positive scans"

_SCAN_METRICS = ["auc", "ap", *POINT_NAMES]
_SCAN_METRICS += ["accuracy", "sensitivity", "specificity", "balanced_accuracy", "f1"]
_SCAN_METRICS += ["log_loss", "brier", "ece", "ppv", "npv", "calibration_intercept", "calibration_slope"]
_RANKING = ["auc", "ap"]
_PROBABILITY_METRICS = ["log_loss", "brier", "ece"]

_T = TypeVar("_T")
_Row = dict[str, Any]
_Statistic = Callable[[np.ndarray], Mapping[str, np.ndarray]]
_Bootstrap = Callable[[_Statistic, np.ndarray], dict[str, Interval]]


def measure(
    runs: Sequence[Scores],
    *,
    labels: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    offsets: np.ndarray,
    slice_labels: np.ndarray,
    seed: int,
    resamples: int,
) -> list[_Row]:
    """Compute all metrics of a model from the scores of S runs on the same scans; arguments as `evaluate`.

    Returns:
        One row for each level and metric: `level` (`SCAN`, `SLICE` or `INSIDE`), `metric`, `values` (S,),
        `low` and `high` (95 % interval by patient of the mean over runs; NaN if a run has no value),
        `ignored` (resamples in which the metric is not defined), `n` slices at level `SLICE`, else scans,
        `positives` and `patients` among them, `unlabelled` (rows left out), and `note`: why a value is
        missing, else empty.
    """
    bootstrap = partial(patient_bootstrap, resamples=resamples, seed=seed)
    owner = patient_keys(patients)
    return [
        *_scans(runs, labels, owner, bootstrap),
        *_slices(runs, slice_labels, owner, np.repeat(np.arange(len(owner)), np.diff(offsets)), bootstrap),
    ]


def _scans(
    runs: Sequence[Scores], labels: np.ndarray, patients: np.ndarray, bootstrap: _Bootstrap
) -> list[_Row]:
    facts = _facts(SCAN, labels, patients)
    if runs[0].scan is None or not facts["n"]:
        note = "gives no scan score" if facts["n"] else "no scan labels"
        return _missing(facts, _SCAN_METRICS, len(runs), note)
    known = labels != UNKNOWN
    scores = [_checked(labels, one.scan, f"model {one.name!r}, scan scores", True)[known] for one in runs]
    labels, patients = labels[known], patients[known]
    single = (scan_metrics, predictive_values, calibration_line)
    many = (resampled_scan_metrics, resampled_predictive_values, resampled_line)
    behind = effective_patients(labels, patients)
    called = [score >= THRESHOLD for score in scores]
    behind["ppv"] = min(len(np.unique(patients[one])) for one in called)
    behind["npv"] = min(len(np.unique(patients[~one])) for one in called)
    values = [_joined(metrics(labels, score) for metrics in single) for score in scores]
    return _measured(facts, values, bootstrap(_mean_of(many, labels, scores), patients), behind)


def _slices(
    runs: Sequence[Scores],
    labels: np.ndarray,
    patients: np.ndarray,
    bags: np.ndarray,
    bootstrap: _Bootstrap,
) -> list[_Row]:
    """Rows of the levels `SLICE` and `INSIDE`; `bags` (N,) is the scan of each slice."""
    owner, probability = patients[bags], runs[0].slice_is_probability
    facts = _facts(SLICE, labels, owner)
    inside = {"level": INSIDE, "n": 0, "positives": 0, "patients": 0, "unlabelled": facts["unlabelled"]}
    if runs[0].slice is None or not facts["n"]:
        note = "gives no slice score" if facts["n"] else "no slice labels"
        metrics = [*_RANKING, *(_PROBABILITY_METRICS if probability else ())]
        return _missing(facts, metrics, len(runs), note) + _missing(inside, ["auc"], len(runs), note)
    known = labels != UNKNOWN
    scores = [
        _checked(labels, one.slice, f"model {one.name!r}, slice scores", probability)[known] for one in runs
    ]
    labels, owner, bags = labels[known], owner[known], bags[known]
    single = (slice_ranking, *((slice_probability_metrics,) if probability else ()))
    many = (resampled_ranking, *((resampled_slice_probability_metrics,) if probability else ()))
    values = [_joined(metrics(labels, score) for metrics in single) for score in scores]
    resampled = bootstrap(_mean_of(many, labels, scores), owner)
    rows = _measured(facts, values, resampled, effective_patients(labels, owner))
    found = [auc_inside(labels, score, bags) for score in scores]
    scans, aucs = found[0][0], np.array([aucs for _, aucs in found])  # (K,), (S, K)
    if not len(scans):
        return rows + _missing(inside, ["auc"], len(runs), "no scan has slices of both kinds")
    owner, mean = patients[scans], aucs.mean(axis=0)
    inside |= {"n": len(scans), "positives": len(scans), "patients": len(np.unique(owner))}
    resampled = bootstrap(lambda counts: {"auc": mean @ counts / counts.sum(axis=0)}, owner)
    values = [{"auc": float(one.mean())} for one in aucs]
    return rows + _measured(inside, values, resampled, {"auc": inside["patients"]})


def _facts(level: str, labels: np.ndarray, patients: np.ndarray) -> _Row:
    """Counts of the scans or slices that the numbers of a level rest on."""
    known = labels != UNKNOWN
    return {
        "level": level,
        "n": int(known.sum()),
        "positives": int((labels == 1).sum()),
        "patients": len(np.unique(patients[known])),
        "unlabelled": int((~known).sum()),
    }


def _checked(labels: np.ndarray, scores: np.ndarray | None, what: str, probability: bool) -> np.ndarray:
    return check_scores(labels, np.asarray(scores), what=what, probability=probability)[1]


def _joined(parts: Iterable[Mapping[str, _T]]) -> dict[str, _T]:
    return {name: value for part in parts for name, value in part.items()}


def _mean_of(
    metrics: Sequence[Callable[..., dict[str, np.ndarray]]], labels: np.ndarray, scores: Sequence[np.ndarray]
) -> _Statistic:
    """Statistic for the bootstrap: the mean over runs of each metric (R,), for counts (n, R)."""

    def statistic(counts: np.ndarray) -> dict[str, np.ndarray]:
        parts = [_joined(metric(labels, score, counts) for metric in metrics) for score in scores]
        return {name: np.mean([part[name] for part in parts], axis=0) for name in parts[0]}

    return statistic


def _measured(
    facts: _Row,
    values: Sequence[Mapping[str, float]],
    resampled: Mapping[str, Interval],
    behind: Mapping[str, int],
) -> list[_Row]:
    """Rows of one level, from the metrics of each run and their `effective_patients`."""
    runs = {metric: np.array([one[metric] for one in values]) for metric in values[0]}
    means = {metric: float(every.mean()) for metric, every in runs.items() if not np.isnan(every).any()}
    found = metric_intervals(means, resampled, behind)
    rows = []
    for metric, every in runs.items():
        if metric in found:
            ends = found[metric]
            limits = {"low": ends.low, "high": ends.high, "ignored": ends.ignored, "note": ""}
            rows.append({**facts, "metric": metric, "values": every, **limits})
        else:
            note = _why_nan(metric)
            if len(every) > 1:
                note = f"not defined for {np.isnan(every).sum()} of {len(every)} seeds: {note}"
            rows += _missing(facts, [metric], len(every), note, every)
    return rows


def _missing(
    facts: _Row, metrics: Sequence[str], count: int, note: str, values: np.ndarray | None = None
) -> list[_Row]:
    limits = {"low": np.nan, "high": np.nan, "ignored": 0, "note": note}
    values = np.full(count, np.nan) if values is None else values
    return [{**facts, "metric": metric, "values": values, **limits} for metric in metrics]


def _why_nan(metric: str) -> str:
    if metric == "calibration_slope":
        return "one class only, or one threshold tells the classes apart, or all probabilities are alike"
    if metric in ("ppv", "npv"):
        return "one class only, or no scan is called so"
    return "no scan is positive" if metric == "f1" else "one class only"
