"""One table of all metrics of scan probabilities and slice scores (`METRICS`).

In: labels in {0, 1} or `UNKNOWN`, and the scores of a model. Out: the value of each metric, NaN where it is
not defined (one class only). A new metric is one `Metric` in the table: its value in a `Sample`, its interval
and its column.

Shapes: B scans, N slices (packed), n rows of either, R resamples, K scans.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.evaluate import sample
from ich_mil.evaluate.bootstrap import Interval, disjoint_pairs, ece_interval, proportion_interval
from ich_mil.evaluate.sample import Sample
from ich_mil.evaluate.scores import check_scores, known_scores
from ich_mil.sets.labels import UNKNOWN

SCAN, SLICE, INSIDE = "scan", "slice", "slice inside positive scans"
"""Levels of the metrics."""


def _pairs(labels: np.ndarray, patients: np.ndarray, called: np.ndarray) -> int:
    return disjoint_pairs(patients[labels == 1], patients[labels == 0])


def _patients_of(labels: np.ndarray, patients: np.ndarray, called: np.ndarray, *, kind: int) -> int:
    return len(np.unique(patients[labels == kind]))


def _patients_called(labels: np.ndarray, patients: np.ndarray, called: np.ndarray, *, kind: int) -> int:
    return len(np.unique(patients[called == kind]))


def _half_of_positives(labels: np.ndarray, patients: np.ndarray, called: np.ndarray) -> int:
    # for a small sensitivity s, F1 is up to 2s / (1 + s), about twice s
    return -(-len(np.unique(patients[labels == 1])) // 2)


def _patients(labels: np.ndarray, patients: np.ndarray, called: np.ndarray) -> int:
    return len(np.unique(patients))


@dataclass(frozen=True)
class Metric:
    """One metric, with all that its row in a table needs.

    Attributes:
        level: `SCAN`, `SLICE` or `INSIDE`.
        name: name in `metrics.csv`.
        block: part of the printed table; empty if the metric is in the CSV only.
        title: column title in that part.
        values: value in each resample, (R,), of a `Sample`.
        patients: number of patients that a proportion rests on, from labels (n,), patients (n,) and calls
            (n,): its interval is `proportion_interval`. None: percentiles, or `ece_interval` for an ECE.
        mean_of: names of two proportions whose mean the metric is; its interval is their `mean_interval`.
        better: whether a higher or a lower value is better, for comparisons; empty if neither.
        undefined: why a value is NaN.
        probability: whether the scores must be probabilities.
    """

    level: str
    name: str
    block: str
    title: str
    values: Callable[[Sample], np.ndarray]
    patients: Callable[[np.ndarray, np.ndarray, np.ndarray], int] | None = None
    mean_of: tuple[str, ...] = ()
    better: Literal["higher", "lower", ""] = "higher"
    undefined: str = "one class only"
    probability: bool = True

    def interval(self, resampled: Interval, value: float, patients: int) -> Interval:
        """95 % interval of `value` from its resamples; a metric with `mean_of` has that of their mean."""
        if self.patients is not None:
            return proportion_interval(resampled, value, patients)
        return ece_interval(resampled, value) if self.values is sample.ece else resampled


def _losses(level: str, block: str) -> tuple[Metric, ...]:
    return (
        Metric(level, "log_loss", block, "log-loss", sample.log_loss, better="lower"),
        Metric(level, "brier", block, "Brier", lambda s: s.mean((s.score - s.labels) ** 2), better="lower"),
        Metric(level, "ece", block, "ECE", sample.ece, better="lower"),
    )


def _point(name: Literal["sensitivity", "specificity"], percent: int, title: str) -> Metric:
    block = "Scan operating points" if title else ""
    values = partial(sample.operating_point, name=name, percent=percent)
    return Metric(SCAN, f"{name}_at_{percent}", block, title, values, _pairs)


def _by_class(name: str, kind: int) -> Metric:
    patients = partial(_patients_of, kind=kind)
    values = partial(sample.recall, kind=kind)
    return Metric(SCAN, name, "Scan calls by class", name, values, patients)


def _predictive(name: str, kind: int) -> Metric:
    block, why = "Scan calls that are right", "one class only, or no scan is called so"
    values = partial(sample.predictive_value, kind=kind)
    patients = partial(_patients_called, kind=kind)
    return Metric(SCAN, name, block, name.upper(), values, patients, better="", undefined=why)


METRICS: tuple[Metric, ...] = (
    Metric(SCAN, "auc", "Scans", "AUC", sample.auc, _pairs, probability=False),
    Metric(SCAN, "ap", "Scans", "AP", sample.average_precision, _pairs, probability=False),
    Metric(SCAN, "accuracy", "Scan calls", "accuracy", lambda s: s.mean(s.called == s.labels), _patients),
    Metric(
        SCAN,
        "balanced_accuracy",
        "Scan calls",
        "balanced",
        lambda s: (sample.recall(s, 1) + sample.recall(s, 0)) / 2,
        mean_of=("sensitivity", "specificity"),
    ),
    Metric(SCAN, "f1", "Scan calls", "F1", sample.f1, _half_of_positives, undefined="no scan is positive"),
    _by_class("sensitivity", 1),
    _by_class("specificity", 0),
    _predictive("ppv", 1),
    _predictive("npv", 0),
    _point("sensitivity", 90, ""),
    _point("specificity", 90, ""),
    _point("sensitivity", 95, "sens. at 95 % spec."),
    _point("specificity", 95, "spec. at 95 % sens."),
    *_losses(SCAN, "Scan probabilities"),
    Metric(SCAN, "calibration_intercept", "Scan calibration", "intercept", lambda s: s.line[0], better=""),
    Metric(
        SCAN,
        "calibration_slope",
        "Scan calibration",
        "slope",
        lambda s: s.line[1],
        better="",
        undefined="one class only, or one threshold tells the classes apart, or all probabilities are alike",
    ),
    # the rows are scans with slices of both classes, the scores their AUC
    Metric(INSIDE, "auc", "Slices", "AUC inside scans", lambda s: s.mean(s.score), _patients),
    Metric(SLICE, "auc", "Slices", "AUC all", sample.auc, _pairs, probability=False),
    Metric(SLICE, "ap", "Slices", "AP all", sample.average_precision, _pairs, probability=False),
    *_losses(SLICE, "Slice probabilities"),
)
"""All metrics, in the order of the tables."""


def metrics_of(level: str, *names: str, probability: bool = True) -> tuple[Metric, ...]:
    """Metrics of a level, or those named; without `probability`, those of scores that are none."""
    return tuple(
        metric
        for metric in METRICS
        if metric.level == level
        and (not names or metric.name in names)
        and (probability or not metric.probability)
    )


def resampled(
    metrics: Iterable[Metric], labels: np.ndarray, score: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """Value (R,) of each metric in each resample of checked labels and scores (n,), for counts (n, R)."""
    rows = Sample(labels, score, counts)
    return {metric.name: metric.values(rows) for metric in metrics}


def measured(metrics: Iterable[Metric], labels: np.ndarray, score: np.ndarray) -> dict[str, float]:
    """Value of each metric for checked labels and scores (n,)."""
    results = resampled(metrics, labels, score, np.ones((len(labels), 1)))
    return {name: float(values[0]) for name, values in results.items()}


def scan_metrics(labels: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    """All metrics of level `SCAN`, for labels (B,) in {0, 1} or `UNKNOWN` and probabilities (B,).

    Raises:
        DataError: no label is known, a label is invalid, or a probability is NaN or outside [0, 1].
    """
    known = known_scores(labels, probability, what="scan probabilities", probability=True)
    return measured(metrics_of(SCAN), *known)


def auc(labels: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve for labels (n,) in {0, 1} and finite scores; NaN if one class is present."""
    labels, score = check_scores(labels, score, what="scores", probability=False)
    if (labels == UNKNOWN).any():
        raise DataError(f"labels must be 0 or 1, got {UNKNOWN}; leave unlabelled ones out")
    return measured(metrics_of(SCAN, "auc"), labels, score)["auc"]


def auc_inside(labels: np.ndarray, score: np.ndarray, scans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AUC among the slices of each scan that has labelled slices of both classes.

    An AUC over all slices is optimistic as a measure of localisation, because a good scan score alone raises
    every slice of a positive scan. Mann-Whitney: AUC = (Σ ranks of positives - P(P + 1)/2) / (P Q), with
    mid-ranks for ties.

    Args:
        labels: (N,) in {0, 1} or `UNKNOWN`.
        score: (N,) finite scores.
        scans: (N,) int, the scan of each slice.

    Returns:
        Numbers (K,) of the K scans with slices of both classes, ascending, and their AUC (K,).
    """
    labels, score = check_scores(labels, score, what="slice scores", probability=False)
    known = labels != UNKNOWN
    labels, score, scans = labels[known], score[known], np.asarray(scans)[known]
    ids, owner, sizes = np.unique(scans, return_inverse=True, return_counts=True)
    ranks = pd.Series(score).groupby(owner).rank().to_numpy()  # mid-ranks within the scan
    P = np.bincount(owner, weights=labels, minlength=len(ids))
    wins = np.bincount(owner, weights=ranks * labels, minlength=len(ids)) - P * (P + 1) / 2
    both = (P > 0) & (sizes > P)
    return ids[both], (wins[both] / (P * (sizes - P))[both]).astype(np.float64)
