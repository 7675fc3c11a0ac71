"""One model on one set, for several seeds: mean, spread over seeds, and an interval over patients.

Two kinds of chance are kept apart. Another seed (folds, inducing points, a network's first weights) gives
another number on the same scans: `std` is its standard deviation over seeds. Other patients give another
number from the same models: `low` and `high` bound 95 % of resamples of patients, each number being the mean
over the seeds. A paper that gives mean ± std over splits mixes the two.

Shapes: B scans, N slices (packed), S seeds, R resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.evaluate.bootstrap import Interval, patient_bootstrap
from ich_mil.evaluate.calibration_line import calibration_line, resampled_line
from ich_mil.evaluate.metrics import auc_inside, scan_metrics, slice_metrics, slice_probability_metrics
from ich_mil.evaluate.table import INSIDE, SCAN, SLICE, interval_of, patients_behind
from ich_mil.evaluate.weighted import resampled_losses, resampled_ranking, resampled_scan_metrics

COLUMNS = ["level", "metric", "mean", "std", "low", "high", "seeds", "n", "positives", "patients", "note"]


@dataclass(frozen=True)
class Repeat:
    """What a model said with one seed.

    Attributes:
        labels: (B,) in {0, 1} or `UNKNOWN`.
        patients: B patient keys.
        offsets: (B + 1,).
        slice_labels: (N,) in {0, 1} or `UNKNOWN`.
        scan: (B,) probability; NaN throughout where the model says nothing of scans.
        slice: (N,) score; NaN throughout where it says nothing of slices.
    """

    labels: np.ndarray
    patients: Sequence[str]
    offsets: np.ndarray
    slice_labels: np.ndarray
    scan: np.ndarray
    slice: np.ndarray

    @property
    def bags(self) -> np.ndarray:
        """(N,) the scan of each slice."""
        return np.repeat(np.arange(len(self.labels)), np.diff(self.offsets))


def over_seeds(
    repeats: Sequence[Repeat], *, slice_is_probability: bool, seed: int, resamples: int
) -> pd.DataFrame:
    """Metrics of scans and slices.

    Args:
        repeats: S runs on the same patients, scans in the same order.
        slice_is_probability: whether slice scores are probabilities; if not, only their ranks are measured.
        seed: of the resampling.
        resamples: R.

    Returns:
        One row a metric, with the columns `COLUMNS`; `note` says why a number is absent.

    Raises:
        DataError: a score is NaN for some and not for all, or no probability where it must be one.
        ValueError: no repeat; repeats of different patients, with other slices, or with other scans or slices
            labelled.
    """
    if not repeats or any(list(one.patients) != list(repeats[0].patients) for one in repeats):
        raise ValueError("repeats must be at least one, all of the same patients in the same order")
    return pd.concat(
        [
            _scans(repeats, seed=seed, resamples=resamples),
            _slices(repeats, slice_is_probability, seed=seed, resamples=resamples),
        ],
        ignore_index=True,
    )[COLUMNS]


def _rows(
    level: str,
    values: Sequence[Mapping[str, float]],
    intervals: Mapping[str, Interval],
    facts: Mapping[str, object],
    behind: Mapping[str, int],
) -> pd.DataFrame:
    """`values` holds the metrics of each seed, `behind` is of `patients_behind`."""
    rows = []
    for metric in values[0]:
        every = np.array([one[metric] for one in values])
        undefined = np.isnan(every)
        note = f"not defined for {undefined.sum()} of {len(every)} seeds" if undefined.any() else ""
        row = {"level": level, "metric": metric, "mean": every.mean()}
        row |= {"std": every.std(ddof=1) if len(every) > 1 else np.nan}
        ends = interval_of(metric, float(every.mean()), intervals[metric], behind)
        row |= {"low": ends.low, "high": ends.high}
        rows.append(row | {"seeds": len(every), "note": note} | dict(facts))
    return pd.DataFrame(rows)


def _missing(level: str, metric: str, note: str) -> pd.DataFrame:
    return pd.DataFrame([dict.fromkeys(COLUMNS, np.nan) | {"level": level, "metric": metric, "note": note}])


def _mean_of(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The mean over seeds of each (R,) number."""
    return {name: np.mean([part[name] for part in parts], axis=0) for name in parts[0]}


def _scans(repeats: Sequence[Repeat], *, seed: int, resamples: int) -> pd.DataFrame:
    known = repeats[0].labels != UNKNOWN
    if any(not np.array_equal(one.labels != UNKNOWN, known) for one in repeats):
        raise ValueError("repeats must have the same scans labelled")
    if not known.any():
        return _missing(SCAN, "auc", "no scan is labelled")
    if all(np.isnan(one.scan).all() for one in repeats):
        return _missing(SCAN, "auc", "gives no scan score")
    pairs = [(one.labels[known], one.scan[known]) for one in repeats]
    patients = np.asarray(repeats[0].patients)[known]

    def statistic(counts: np.ndarray) -> dict[str, np.ndarray]:
        return _mean_of(
            [resampled_scan_metrics(*pair, counts) | resampled_line(*pair, counts) for pair in pairs]
        )

    labels = pairs[0][0]
    facts = {"n": len(labels), "positives": int(labels.sum()), "patients": len(np.unique(patients))}
    intervals = patient_bootstrap(statistic, patients, resamples=resamples, seed=seed)
    values = [scan_metrics(*pair) | calibration_line(*pair) for pair in pairs]
    return _rows(SCAN, values, intervals, facts, patients_behind(labels, patients))


def _slices(repeats: Sequence[Repeat], probability: bool, *, seed: int, resamples: int) -> pd.DataFrame:
    first = repeats[0]
    known = first.slice_labels != UNKNOWN
    if not known.any():
        return _missing(SLICE, "auc", "no slice is labelled")
    if all(np.isnan(one.slice).all() for one in repeats):
        return _missing(SLICE, "auc", "gives no slice score")
    if any(not np.array_equal(one.offsets, first.offsets) for one in repeats):
        raise ValueError("repeats must have the same number of slices in each scan")
    if any(not np.array_equal(one.slice_labels != UNKNOWN, known) for one in repeats):
        raise ValueError("repeats must have the same slices labelled")
    triples = [(one.slice_labels[known], one.slice[known], first.bags[known]) for one in repeats]
    owner = np.asarray(first.patients)[first.bags[known]]

    def one_seed(labels: np.ndarray, score: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
        ranking = resampled_ranking(labels, score, counts)
        return ranking | (resampled_losses(labels, score, counts) if probability else {})

    def statistic(counts: np.ndarray) -> dict[str, np.ndarray]:
        return _mean_of([one_seed(labels, score, counts) for labels, score, _ in triples])

    values, insides = [], []
    for labels, score, bags in triples:
        single = slice_metrics(labels, score, bags)
        of_seed = {"auc": single["slice_auc"], "ap": single["slice_ap"]}
        if probability:
            losses = slice_probability_metrics(labels, score)
            of_seed |= {name: losses[name] for name in ("log_loss", "brier")}
        values.append(of_seed)
        insides.append(auc_inside(labels, score, bags))
    facts = {"n": int(known.sum()), "positives": int(triples[0][0].sum()), "patients": len(np.unique(owner))}
    intervals = patient_bootstrap(statistic, owner, resamples=resamples, seed=seed)
    table = _rows(SLICE, values, intervals, facts, patients_behind(triples[0][0], owner))
    scans = insides[0][0]
    if not len(scans) or any(not np.array_equal(ids, scans) for ids, _ in insides):
        note = (
            "no scan has slices of both kinds" if not len(scans) else "seeds differ in their positive scans"
        )
        return pd.concat([table, _missing(INSIDE, "auc", note)])
    patients = np.asarray(first.patients)[scans]
    mean = np.mean([values for _, values in insides], axis=0)  # (K,)
    inside = patient_bootstrap(
        lambda counts: {"auc": mean @ counts / counts.sum(axis=0)},
        patients,
        resamples=resamples,
        seed=seed,
    )
    facts = {"n": len(scans), "positives": len(scans), "patients": len(np.unique(patients))}
    each = [{"auc": float(values.mean())} for _, values in insides]
    return pd.concat([table, _rows(INSIDE, each, inside, facts, {"auc": len(np.unique(patients))})])
