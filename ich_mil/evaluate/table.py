"""The result table: every model and baseline of one data set side by side, with intervals by patient.

In: the scores of each model on the same scans, and what is known of those scans. Out: a tidy frame with one
row a number, which is also what `metrics.csv` holds; `show.py` lays it out for people.

Shapes: B scans, N slices (packed).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.data.labels import UNKNOWN, name_some
from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import Interval, of_error, of_proportion, pairs, patient_bootstrap
from ich_mil.evaluate.calibration_line import calibration_line, resampled_line
from ich_mil.evaluate.metrics import (
    OPERATING_POINTS,
    THRESHOLD,
    auc_inside,
    check_scores,
    patient_keys,
    predictive_values,
    scan_metrics,
    slice_metrics,
    slice_probability_metrics,
)
from ich_mil.evaluate.weighted import (
    resampled_predictive_values,
    resampled_ranking,
    resampled_scan_metrics,
    resampled_slice_probability_metrics,
)

SCAN, SLICE, INSIDE = "scan", "slice", "slice inside positive scans"
COLUMNS = ["model", "level", "metric", "value", "low", "high", "n", "positives", "patients", "unlabelled"]
COLUMNS += ["resamples", "ignored", "note"]

_SCAN_METRICS = ["auc", "ap", "sensitivity_at_90", "specificity_at_90", "sensitivity_at_95"]
_SCAN_METRICS += ["specificity_at_95", "accuracy", "sensitivity", "specificity", "balanced_accuracy", "f1"]
_SCAN_METRICS += ["ppv", "npv", "log_loss", "brier", "ece", "calibration_intercept", "calibration_slope"]
_PROBABILITY_METRICS = ("log_loss", "brier", "ece")
_NUMBERS = ("value", "low", "high")

_Row = dict[str, Any]
_Statistic = Callable[[np.ndarray], Mapping[str, np.ndarray]]
_Bootstrap = Callable[[_Statistic, np.ndarray], dict[str, Interval]]


@dataclass(frozen=True)
class Scores:
    """What one model or baseline says of the B scans and their N slices.

    Attributes:
        name: the model's name, as the tables show it.
        scan: (B,) probability, or None where the model says nothing of scans.
        slice: (N,), or None where the model says nothing of slices.
        slice_is_probability: whether `slice` is a probability; if not, only its ranks are measured.
    """

    name: str
    scan: np.ndarray | None
    slice: np.ndarray | None
    slice_is_probability: bool = False


def known_or_none(values: np.ndarray) -> np.ndarray | None:
    """None if every value is NaN, which is how `FeatureSet` writes "not known"; else `values` unchanged."""
    values = np.asarray(values)
    return None if np.isnan(values).all() else values


def _why_nan(level: str, metric: str) -> str:
    if level == INSIDE:
        return "no scan has slices of both kinds"
    if metric == "calibration_slope":
        return "one class only, or one threshold tells the classes apart, or all probabilities are alike"
    if metric in ("ppv", "npv"):
        return "one class only, or no scan is called so"
    return "no scan is positive" if metric == "f1" else "one class only"


def patients_behind(labels: np.ndarray, patients: np.ndarray) -> dict[str, int]:
    """How many patients stand behind each metric between 0 and 1 that is no loss; for `interval_of`.

    Operating points rest on two classes, as their thresholds do: a sensitivity of 1 at few negative scans may
    be less in a resample. F1 rests on half of the positive patients: where few of them are found, a share s,
    it is up to 2s / (1 + s), twice that.

    Args:
        labels: (n,) in {0, 1}, of scans or slices.
        patients: (n,) keys.
    """
    positive, negative = (np.unique(patients[labels == kind]) for kind in (1, 0))
    points = [f"{kind}_at_{x}" for kind in ("sensitivity", "specificity") for x in OPERATING_POINTS]
    return {
        **dict.fromkeys(("auc", "ap", "balanced_accuracy", *points), pairs(positive, negative)),
        "sensitivity": len(positive),
        "specificity": len(negative),
        "f1": -(-len(positive) // 2),
        "accuracy": len(np.unique(patients)),
    }


def interval_of(metric: str, value: float, resampled: Interval, behind: Mapping[str, int]) -> Interval:
    """The interval of a metric from that of its resamples; those `behind` names are between 0 and 1."""
    if metric == "ece":
        return of_error(resampled, value)
    return of_proportion(resampled, value, behind[metric]) if metric in behind else resampled


def _measured(
    name: str,
    level: str,
    facts: _Row,
    values: Mapping[str, float],
    intervals: Mapping[str, Interval],
    behind: Mapping[str, int],
) -> list[_Row]:
    rows = []
    for metric, value in values.items():
        row = {**facts, "model": name, "level": level, "metric": metric, "value": value}
        if np.isnan(value):
            row |= {"low": np.nan, "high": np.nan, "ignored": 0, "note": _why_nan(level, metric)}
        else:
            ends = interval_of(metric, value, intervals[metric], behind)
            row |= {"low": ends.low, "high": ends.high, "ignored": ends.ignored, "note": ""}
        rows.append(row)
    return rows


def _missing(name: str, level: str, metrics: Sequence[str], facts: _Row, note: str) -> list[_Row]:
    empty = {**facts, "value": np.nan, "low": np.nan, "high": np.nan, "ignored": 0, "note": note}
    return [{**empty, "model": name, "level": level, "metric": metric} for metric in metrics]


def _facts(labels: np.ndarray, patients: np.ndarray) -> _Row:
    known = labels != UNKNOWN
    return {
        "n": int(known.sum()),
        "positives": int((labels == 1).sum()),
        "patients": len(np.unique(patients[known])),
        "unlabelled": int((~known).sum()),
    }


def _scan_rows(scores: Scores, labels: np.ndarray, patients: np.ndarray, bootstrap: _Bootstrap) -> list[_Row]:
    facts = _facts(labels, patients)
    if scores.scan is None:
        return _missing(scores.name, SCAN, _SCAN_METRICS, facts, "gives no scan score")
    what = f"model {scores.name!r}, scan scores"
    labels, score = check_scores(labels, scores.scan, what=what, probability=True)
    known = labels != UNKNOWN
    if not known.any():
        return _missing(scores.name, SCAN, _SCAN_METRICS, facts, "no scan labels")
    labels, score, patients = labels[known], score[known], patients[known]
    single = (scan_metrics, predictive_values, calibration_line)
    many = (resampled_scan_metrics, resampled_predictive_values, resampled_line)
    values = {name: value for metrics in single for name, value in metrics(labels, score).items()}

    def resampled(counts: np.ndarray) -> dict[str, np.ndarray]:
        return {name: value for metrics in many for name, value in metrics(labels, score, counts).items()}

    called = score >= THRESHOLD
    behind = patients_behind(labels, patients)
    behind |= {"ppv": len(np.unique(patients[called])), "npv": len(np.unique(patients[~called]))}
    return _measured(scores.name, SCAN, facts, values, bootstrap(resampled, patients), behind)


def _slice_rows(
    scores: Scores, labels: np.ndarray, patients: np.ndarray, bags: np.ndarray, bootstrap: _Bootstrap
) -> list[_Row]:
    owner = patients[bags]  # (N,)
    facts = _facts(labels, owner)
    known = labels != UNKNOWN
    if scores.slice is None or not known.any():
        note = "gives no slice score" if known.any() else "no slice labels"
        metrics = ("auc", "ap", *(_PROBABILITY_METRICS if scores.slice_is_probability else ()))
        return [
            *_missing(scores.name, SLICE, metrics, facts, note),
            *_missing(scores.name, INSIDE, ("auc",), {**facts, "n": 0}, note),
        ]
    what = f"model {scores.name!r}, slice scores"
    labels, score = check_scores(labels, scores.slice, what=what, probability=scores.slice_is_probability)
    labels, score, bags = labels[known], score[known], bags[known]
    single = slice_metrics(labels, score, bags)
    values = {"auc": single["slice_auc"], "ap": single["slice_ap"]}
    if scores.slice_is_probability:
        values |= slice_probability_metrics(labels, score)

    def resampled(counts: np.ndarray) -> dict[str, np.ndarray]:
        found = resampled_ranking(labels, score, counts)
        if scores.slice_is_probability:
            found |= resampled_slice_probability_metrics(labels, score, counts)
        return found

    owner = owner[known]
    intervals = bootstrap(resampled, owner)
    rows = _measured(scores.name, SLICE, facts, values, intervals, patients_behind(labels, owner))
    scans, inside = auc_inside(labels, score, bags)
    facts |= {"n": len(scans), "positives": len(scans), "patients": len(np.unique(patients[scans]))}
    if not len(scans):
        return rows + _missing(scores.name, INSIDE, ("auc",), facts, _why_nan(INSIDE, "auc"))
    intervals = bootstrap(lambda counts: {"auc": inside @ counts / counts.sum(axis=0)}, patients[scans])
    values, behind = {"auc": single["slice_auc_inside"]}, {"auc": facts["patients"]}
    return rows + _measured(scores.name, INSIDE, facts, values, intervals, behind)


def evaluate(
    scores: Sequence[Scores],
    *,
    labels: np.ndarray,
    patients: Sequence[str],
    offsets: np.ndarray,
    slice_labels: np.ndarray | None = None,
    seed: int,
    resamples: int = 2000,
) -> pd.DataFrame:
    """Measure every model on the same scans.

    Args:
        scores: the models and baselines, in the order the tables show them; names must differ.
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out and counted.
        patients: B patient keys; the intervals resample patients.
        offsets: (B + 1,) scan b owns slices `offsets[b]:offsets[b + 1]`.
        slice_labels: (N,) in {0, 1} or `UNKNOWN`; None where no slice is labelled.
        seed: seed of the resampling; all models share the resamples.
        resamples: number of resamples behind each interval.

    Returns:
        One row a number, with the columns `COLUMNS`: `model`, `level` ('scan', 'slice' or 'slice inside
        positive scans'), `metric`, `value`, `low`, `high`, `n` (scans or slices it rests on; scans for the
        last level), `positives` and `patients` among them, `unlabelled` left out, `resamples`, those
        `ignored` because the number is not defined in them, and `note`: why `value` is NaN, else empty.

    Raises:
        DataError: a score is NaN or infinite, or a probability outside [0, 1] (the message names the model);
            a scan without a patient.
        ValueError: sizes or names do not fit together.
    """
    labels, offsets, owner = np.asarray(labels), np.asarray(offsets), patient_keys(patients)
    if not len(labels) == len(owner) == len(offsets) - 1:
        raise ValueError(f"{len(labels)} labels, {len(owner)} patients and {len(offsets)} offsets do not fit")
    bags = np.repeat(np.arange(len(labels)), np.diff(offsets))  # (N,)
    truth = np.full(len(bags), UNKNOWN) if slice_labels is None else np.asarray(slice_labels)
    if len(truth) != len(bags):
        raise ValueError(f"{len(truth)} slice labels for {len(bags)} slices")
    names = [one.name for one in scores]
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"need at least one model, each under its own name, got {names}")

    def bootstrap(statistic: _Statistic, rows: np.ndarray) -> dict[str, Interval]:
        return patient_bootstrap(statistic, rows, resamples=resamples, seed=seed)

    rows: list[_Row] = []
    for one in scores:
        rows += _scan_rows(one, labels, owner, bootstrap)
        rows += _slice_rows(one, truth, owner, bags, bootstrap)
    return pd.DataFrame(rows).assign(resamples=resamples)[COLUMNS]


def read_table(path: Path) -> pd.DataFrame:
    """An `evaluate` frame that was written with `to_csv(path, index=False)`.

    Raises:
        DataError: there is no such file, or it is something else.
    """
    texts = {"model": str, "level": str, "metric": str, "note": str}
    try:
        frame = pd.read_csv(
            path, dtype=texts, keep_default_na=False, na_values={name: [""] for name in _NUMBERS}
        )
        if missing := [name for name in COLUMNS if name not in frame]:
            raise ValueError(f"column {name_some(missing)} is missing")
        return frame[COLUMNS].astype(dict.fromkeys(_NUMBERS, np.float64))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a result table ({error}); validate again") from error
