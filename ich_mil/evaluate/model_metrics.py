"""Metrics of one model at scan and slice level with intervals by patient bootstrap, from one or more runs.

In: the scores of each run (`Repeat`). Out: a `Number` for each metric and level. `table.py` compares one run
of several models; `over_seeds.py` reports the spread over several runs of one model.

Shapes: B scans, N slices (packed), S runs, R resamples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from ich_mil.data.labels import UNKNOWN
from ich_mil.evaluate.bootstrap import Interval, intervals_of, patient_bootstrap, patients_behind
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

SCAN, SLICE, INSIDE = "scan", "slice", "slice inside positive scans"

_SCAN_METRICS = ["auc", "ap", *POINT_NAMES]
_SCAN_METRICS += ["accuracy", "sensitivity", "specificity", "balanced_accuracy", "f1"]
_SCAN_METRICS += ["log_loss", "brier", "ece", "ppv", "npv", "calibration_intercept", "calibration_slope"]
_RANKING = ["auc", "ap"]
_PROBABILITY_METRICS = ["log_loss", "brier", "ece"]

_T = TypeVar("_T")
_Statistic = Callable[[np.ndarray], Mapping[str, np.ndarray]]
_Bootstrap = Callable[[_Statistic, np.ndarray], dict[str, Interval]]


@dataclass(frozen=True)
class Repeat:
    """Labels and scores of one run.

    Attributes:
        labels: (B,) in {0, 1} or `UNKNOWN`.
        patients: B patient keys.
        offsets: (B + 1,) scan b owns slices `offsets[b]:offsets[b + 1]`.
        slice_labels: (N,) in {0, 1} or `UNKNOWN`.
        scan: (B,) probability, or None if the model gives no scan scores.
        slice: (N,) score, or None if the model gives no slice scores.
    """

    labels: np.ndarray
    patients: Sequence[str] | np.ndarray
    offsets: np.ndarray
    slice_labels: np.ndarray
    scan: np.ndarray | None
    slice: np.ndarray | None

    @property
    def bags(self) -> np.ndarray:
        """(N,) the scan of each slice."""
        return np.repeat(np.arange(len(self.labels)), np.diff(self.offsets))


@dataclass(frozen=True)
class Rows:
    """Counts of the scans or slices that a number rests on.

    Attributes:
        n: number of slices at level `SLICE`, of scans at `SCAN` and `INSIDE`.
        positives: number of positives among them, in the first run.
        patients: number of patients among them.
        unlabelled: number of rows left out because they have no label.
    """

    n: int
    positives: int
    patients: int
    unlabelled: int


@dataclass(frozen=True)
class Number:
    """One metric at one level.

    Attributes:
        level: `SCAN`, `SLICE` or `INSIDE`.
        metric: name of the metric.
        values: (S,) value of each run, NaN where it is not defined.
        low, high: 95 % interval by patient of the mean over runs; NaN if a run has no value.
        ignored: number of resamples in which the metric is not defined.
        rows: counts of scans or slices.
        note: reason why the value is missing, else empty.
    """

    level: str
    metric: str
    values: np.ndarray
    low: float
    high: float
    ignored: int
    rows: Rows
    note: str


def measure(
    repeats: Sequence[Repeat], *, name: str, slice_is_probability: bool, seed: int, resamples: int
) -> list[Number]:
    """Compute all metrics of a model.

    Args:
        repeats: S runs on the same patients, with scans in the same order. Labels may differ, for example if
            bags are drawn anew in each run.
        name: name of the model, for messages.
        slice_is_probability: whether slice scores are probabilities; if not, only ranking metrics are
            computed.
        seed: seed of the resampling; calls with equal seed and patients share their resamples.
        resamples: R.

    Raises:
        DataError: a score is NaN or infinite, or a probability is outside [0, 1]; a scan has no patient.
        ValueError: there is no run; runs differ in patients, in the number of slices or in the rows that are
            labelled; or only some runs give scores.
    """
    if not repeats or any(list(one.patients) != list(repeats[0].patients) for one in repeats):
        raise ValueError("repeats must be at least one, all of the same patients in the same order")
    bootstrap = partial(patient_bootstrap, resamples=resamples, seed=seed)
    patients = patient_keys(repeats[0].patients)
    return [
        *_scans(repeats, patients, name, bootstrap),
        *_slices(repeats, patients, name, slice_is_probability, bootstrap),
    ]


def known_or_none(values: np.ndarray) -> np.ndarray | None:
    """Return None if all values are NaN (how `FeatureSet` marks missing scores), else `values` unchanged."""
    values = np.asarray(values)
    return None if np.isnan(values).all() else values


def _scans(
    repeats: Sequence[Repeat], patients: np.ndarray, name: str, bootstrap: _Bootstrap
) -> Iterator[Number]:
    labels = [one.labels for one in repeats]
    known = _known(labels, "scans")
    rows = _rows(repeats[0].labels, patients)
    scores = _scores([one.scan for one in repeats])
    if not scores or not known.any():
        note = "gives no scan score" if known.any() else "no scan labels"
        return _missing(SCAN, _SCAN_METRICS, len(repeats), rows, note)
    runs = _runs(labels, scores, known, what=f"model {name!r}, scan scores", probability=True)
    patients = patients[known]
    single = (scan_metrics, predictive_values, calibration_line)
    many = (resampled_scan_metrics, resampled_predictive_values, resampled_line)
    behind = patients_behind(runs[0][0], patients)
    called = [score >= THRESHOLD for _, score in runs]
    behind["ppv"] = min(len(np.unique(patients[one])) for one in called)
    behind["npv"] = min(len(np.unique(patients[~one])) for one in called)
    values = [_joined(metrics(*run) for metrics in single) for run in runs]
    return _measured(SCAN, values, bootstrap(_mean_of(many, runs), patients), behind, rows)


def _slices(
    repeats: Sequence[Repeat], patients: np.ndarray, name: str, probability: bool, bootstrap: _Bootstrap
) -> Iterator[Number]:
    count, bags = len(repeats), repeats[0].bags
    if any(not np.array_equal(one.offsets, repeats[0].offsets) for one in repeats):
        raise ValueError("repeats must have the same number of slices in each scan")
    labels = [one.slice_labels for one in repeats]
    known = _known(labels, "slices")
    owner = patients[bags]  # (N,)
    rows = _rows(labels[0], owner)
    scores = _scores([one.slice for one in repeats])
    if not scores or not known.any():
        note = "gives no slice score" if known.any() else "no slice labels"
        metrics = [*_RANKING, *(_PROBABILITY_METRICS if probability else ())]
        yield from _missing(SLICE, metrics, count, rows, note)
        yield from _missing(INSIDE, ["auc"], count, Rows(0, 0, 0, rows.unlabelled), note)
        return
    runs = _runs(labels, scores, known, what=f"model {name!r}, slice scores", probability=probability)
    owner, bags = owner[known], bags[known]
    single = (slice_ranking, *((slice_probability_metrics,) if probability else ()))
    many = (resampled_ranking, *((resampled_slice_probability_metrics,) if probability else ()))
    values = [_joined(metrics(*run) for metrics in single) for run in runs]
    behind = patients_behind(runs[0][0], owner)
    yield from _measured(SLICE, values, bootstrap(_mean_of(many, runs), owner), behind, rows)
    yield from _inside([(*run, bags) for run in runs], patients, rows.unlabelled, bootstrap)


def _inside(
    runs: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    patients: np.ndarray,
    unlabelled: int,
    bootstrap: _Bootstrap,
) -> Iterator[Number]:
    """Mean over scans of the AUC within each scan, from labels, scores and scan numbers of slices."""
    found = [auc_inside(*run) for run in runs]
    scans = found[0][0]
    rows = Rows(len(scans), len(scans), len(np.unique(patients[scans])), unlabelled)
    if any(not np.array_equal(ids, scans) for ids, _ in found):
        return _missing(INSIDE, ["auc"], len(runs), rows, "seeds differ in their positive scans")
    if not len(scans):
        return _missing(INSIDE, ["auc"], len(runs), rows, "no scan has slices of both kinds")
    mean = np.mean([aucs for _, aucs in found], axis=0)  # (K,)

    def resampled(counts: np.ndarray) -> dict[str, np.ndarray]:
        return {"auc": mean @ counts / counts.sum(axis=0)}

    values = [{"auc": float(aucs.mean())} for _, aucs in found]
    return _measured(INSIDE, values, bootstrap(resampled, patients[scans]), {"auc": rows.patients}, rows)


def _known(labels: Sequence[np.ndarray], what: str) -> np.ndarray:
    """(n,) whether each scan or slice is labelled; it must be the same in all runs."""
    known = labels[0] != UNKNOWN
    if any(not np.array_equal(one != UNKNOWN, known) for one in labels):
        raise ValueError(f"repeats must have the same {what} labelled")
    return known


def _scores(scores: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Scores of all runs; empty if no run has any."""
    given = [one for one in scores if one is not None]
    if given and len(given) < len(scores):
        raise ValueError(f"repeats must all give scores or none, got {len(given)} of {len(scores)}")
    return given


def _runs(
    labels: Sequence[np.ndarray],
    scores: Sequence[np.ndarray],
    known: np.ndarray,
    *,
    what: str,
    probability: bool,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Checked labels and scores of the `known` rows of each run."""
    checked = (
        check_scores(*pair, what=what, probability=probability) for pair in zip(labels, scores, strict=True)
    )
    return [(truth[known], score[known]) for truth, score in checked]


def _rows(labels: np.ndarray, patients: np.ndarray) -> Rows:
    known = labels != UNKNOWN
    return Rows(
        n=int(known.sum()),
        positives=int((labels == 1).sum()),
        patients=len(np.unique(patients[known])),
        unlabelled=int((~known).sum()),
    )


def _joined(parts: Iterable[Mapping[str, _T]]) -> dict[str, _T]:
    return {name: value for part in parts for name, value in part.items()}


def _mean_of(
    metrics: Sequence[Callable[..., dict[str, np.ndarray]]], runs: Sequence[tuple[np.ndarray, np.ndarray]]
) -> _Statistic:
    """Statistic for the bootstrap: the mean over runs of each metric (R,), for counts (n, R)."""

    def statistic(counts: np.ndarray) -> dict[str, np.ndarray]:
        parts = [_joined(metric(*run, counts) for metric in metrics) for run in runs]
        return {name: np.mean([part[name] for part in parts], axis=0) for name in parts[0]}

    return statistic


def _measured(
    level: str,
    values: Sequence[Mapping[str, float]],
    intervals: Mapping[str, Interval],
    behind: Mapping[str, int],
    rows: Rows,
) -> Iterator[Number]:
    """Numbers of one level, from the metrics of each run and the counts of `patients_behind`."""
    runs = {metric: np.array([one[metric] for one in values]) for metric in values[0]}
    means = {metric: float(every.mean()) for metric, every in runs.items() if not np.isnan(every).any()}
    found = intervals_of(means, intervals, behind)
    for metric, every in runs.items():
        if lacking := int(np.isnan(every).sum()):
            note = _why_nan(metric)
            if len(every) > 1:
                note = f"not defined for {lacking} of {len(every)} seeds: {note}"
            yield Number(level, metric, every, np.nan, np.nan, 0, rows, note)
        else:
            ends = found[metric]
            yield Number(level, metric, every, ends.low, ends.high, ends.ignored, rows, "")


def _missing(level: str, metrics: Sequence[str], count: int, rows: Rows, note: str) -> Iterator[Number]:
    for metric in metrics:
        yield Number(level, metric, np.full(count, np.nan), np.nan, np.nan, 0, rows, note)


def _why_nan(metric: str) -> str:
    if metric == "calibration_slope":
        return "one class only, or one threshold tells the classes apart, or all probabilities are alike"
    if metric in ("ppv", "npv"):
        return "one class only, or no scan is called so"
    return "no scan is positive" if metric == "f1" else "one class only"
