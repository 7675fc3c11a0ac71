"""Paired comparison of models with a reference model on the same scans, by bootstrap over patients.

Both models are evaluated on the same resamples, so variation between scans that affects both cancels: a
difference may be clear although the two intervals in the result table overlap. An interval that excludes 0
means that the models differ on scans from this population; it does not include the variation between training
runs, and one in twenty such intervals is wrong by chance.

Shapes: B scans, N slices (packed), K scans with slices of both classes, R resamples.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm, rankdata

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import RESAMPLES, ROUNDING, Interval, patient_bootstrap
from ich_mil.evaluate.metrics import METRICS, SCAN, Metric, auc_inside, measured, resampled
from ich_mil.evaluate.scores import patient_keys
from ich_mil.sets.labels import UNKNOWN

COLUMNS = ["model", "reference", "metric", "value", "reference_value", "difference", "low", "high", "better"]
COLUMNS += ["delong_p", "n", "positives", "patients", "resamples", "ignored", "note"]

COMPARED = tuple(metric for metric in METRICS if metric.level == SCAN and metric.better)
"""Metrics of a comparison: those of which a higher, or a lower, value is better."""

_Row = dict[str, Any]


def delong_p(labels: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Two-sided p-value of equal AUCs of two models on the same scans, which count as independent.

        z = (AUC_a - AUC_b) / √(S₁₀/P + S₀₁/Q)

    S₁₀ and S₀₁ are the sample variances, over P positives and over Q negatives, of the difference between the
    structural components of the two models (DeLong, DeLong and Clarke-Pearson 1988, 10.2307/2531595),
    computed with mid-ranks as in Sun and Xu 2014 (10.1109/LSP.2014.2337313). If the variance is 0, p is 1 for
    equal AUCs, else NaN (one model ranks perfectly, the other is constant).

    Args:
        labels: (B,) in {0, 1}, at least two of each.
        a: (B,) finite scores of one model.
        b: (B,) finite scores of the other model.
    """
    scores = np.stack([a, b])
    positive, negative = scores[:, labels == 1], scores[:, labels == 0]
    P, Q = positive.shape[1], negative.shape[1]
    ranks = rankdata(np.hstack([positive, negative]), axis=1)  # (2, P + Q), mid-ranks among all
    # negatives below each positive and positives below each negative, ties count ½: multiples of ½, so that
    # components that are all equal have a variance of exactly 0
    of_positives = ranks[:, :P] - rankdata(positive, axis=1)  # (2, P)
    of_negatives = ranks[:, P:] - rankdata(negative, axis=1)  # (2, Q)
    variance = np.var(of_positives[0] - of_positives[1], ddof=1) / (Q * Q * P)
    variance += np.var(of_negatives[0] - of_negatives[1], ddof=1) / (P * P * Q)
    difference = float((of_positives[0] - of_positives[1]).mean() / Q)
    if variance == 0:
        return 1.0 if difference == 0 else np.nan
    return float(2 * norm.sf(abs(difference / float(np.sqrt(variance)))))


def _paired_bootstrap(
    differences: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    patients: np.ndarray,
    *,
    resamples: int,
    seed: int,
) -> tuple[dict[str, Interval], dict[str, np.ndarray]]:
    """Interval of each difference, and the differences (R,) themselves, NaN where not defined."""
    parts: list[Mapping[str, np.ndarray]] = []

    def statistic(counts: np.ndarray) -> Mapping[str, np.ndarray]:
        parts.append(differences(counts))
        return parts[-1]

    intervals = patient_bootstrap(statistic, patients, resamples=resamples, seed=seed)
    return intervals, {name: np.concatenate([part[name] for part in parts]) for name in intervals}


def _row(
    metric: str,
    values: tuple[float, float],
    interval: Interval,
    draws: np.ndarray,
    *,
    lower: bool = False,
    few: bool = False,
) -> _Row:
    """Columns of one row, from the values of model and reference."""
    gain = draws[~np.isnan(draws)] * (-1 if lower else 1)
    note = _why_no_interval(metric, interval, len(gain), few)
    return {
        "metric": metric,
        "value": values[0],
        "reference_value": values[1],
        "difference": values[0] - values[1],
        "low": np.nan if note else interval.low,
        "high": np.nan if note else interval.high,
        "better": np.nan if note else float(((gain > 0) + (gain == 0) / 2).mean()),
        "ignored": interval.ignored,
        "delong_p": np.nan,
        "note": note,
    }


def _why_no_interval(metric: str, interval: Interval, usable: int, few: bool) -> str:
    """Reason why the resamples give no valid interval, else empty."""
    if metric == "ece":  # inflated more for the better calibrated model: simulated coverage 0 to 0.06
        return "resampling adds to an ECE, so there is no interval of its difference"
    if np.isnan(interval.low):
        return "no resample holds both classes" if usable == 0 else "one patient only, so no interval"
    if few:
        return "too few patients of a class, so no interval"
    if interval.high - interval.low < ROUNDING:  # that two models agree on ten scans bounds no difference
        return "all resamples agree, so no interval"
    return ""


def _rests_on_one_patient(metric: Metric, labels: np.ndarray, owner: np.ndarray) -> bool:
    parts = [one for one in METRICS if one.level == SCAN and one.name in (metric.name, *metric.mean_of)]
    none = np.zeros(len(labels), dtype=bool)
    return any(one.patients is not None and one.patients(labels, owner, none) == 1 for one in parts)


def _facts(reference: str, labels: np.ndarray, owner: np.ndarray, resamples: int) -> _Row:
    return {
        "reference": reference,
        "n": len(labels),
        "positives": int(labels.sum()),
        "patients": len(np.unique(owner)),
        "resamples": resamples,
    }


def compare(
    labels: np.ndarray,
    scores: Mapping[str, np.ndarray],
    patients: Sequence[str] | np.ndarray,
    *,
    reference: str,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Compare the scan probabilities of each model with the reference, in every metric of `COMPARED`.

    `scores` are (B,) probabilities by the name of the model.

    Returns:
        One row for each model and metric, with the columns `COLUMNS`: `difference` (`value -
        reference_value`), its interval, and `better`, the fraction of resamples in which the model is better,
        a tie counting one half; `delong_p` for `auc` only; the number of resamples `ignored` because they
        have one class only.

    Raises:
        DataError: there is one class only.
    """
    owner = patient_keys(patients, len(labels))
    known = np.asarray(labels) != UNKNOWN
    truth, owner = labels[known], owner[known]
    others = {name: score[known] for name, score in scores.items()}
    facts = _facts(reference, truth, owner, resamples)
    if len(np.unique(truth)) < 2:
        raise DataError(
            f"{facts['positives']} of {facts['n']} labelled scans are positive; models can only be compared "
            "on scans of both classes"
        )
    base = others.pop(reference)
    base_values = measured(COMPARED, truth, base)
    rows = []
    for name, score in others.items():

        def differences(counts: np.ndarray, score: np.ndarray = score) -> dict[str, np.ndarray]:
            one, two = (resampled(COMPARED, truth, each, counts) for each in (score, base))
            return {metric: one[metric] - two[metric] for metric in one}

        intervals, draws = _paired_bootstrap(differences, owner, resamples=resamples, seed=seed)
        own = measured(COMPARED, truth, score)
        for metric in COMPARED:
            key = metric.name
            pair = own[key], base_values[key]
            few = _rests_on_one_patient(metric, truth, owner)
            row = _row(key, pair, intervals[key], draws[key], lower=metric.better == "lower", few=few)
            if key == "auc":
                notes = [row["note"]]
                if min(facts["positives"], facts["n"] - facts["positives"]) < 2:
                    notes.append("DeLong needs two scans of each class")
                else:
                    row["delong_p"] = delong_p(truth, score, base)
                    if facts["n"] > facts["patients"]:
                        notes.append("DeLong counts the scans of a patient as independent: use the interval")
                row["note"] = "; ".join(filter(None, notes))
            rows.append({**facts, **row, "model": name})
    return pd.DataFrame(rows, columns=COLUMNS)


def compare_slices(
    slice_labels: np.ndarray,
    scores: Mapping[str, np.ndarray],
    patients: Sequence[str] | np.ndarray,
    offsets: np.ndarray,
    *,
    reference: str,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Compare slice scores of each model with those of the reference, by the mean AUC within positive scans.

    `scores` are (N,) finite scores by the name of the model; scan b owns slices `offsets[b]:offsets[b + 1]`.

    Returns:
        As `compare`, one row for each model with the metric `slice_auc_inside`; `n` and `positives` are the
        number of scans K. `delong_p` is NaN, because the test does not apply to a mean over scans.

    Raises:
        DataError: no scan has slices of both classes.
    """
    owner = patient_keys(patients)
    bags = np.repeat(np.arange(len(owner)), np.diff(offsets))  # (N,)
    inside = {}
    for name, score in scores.items():
        scans, inside[name] = auc_inside(slice_labels, score, bags)  # (K,), (K,)
    if not len(scans):
        raise DataError("no scan has labelled slices of both classes, so the AUC inside scans is not defined")
    owner = owner[scans]
    facts = _facts(reference, np.ones(len(scans)), owner, resamples)
    base = inside.pop(reference)
    rows = []
    for name, values in inside.items():
        gap = values - base  # (K,)

        def differences(counts: np.ndarray, gap: np.ndarray = gap) -> dict[str, np.ndarray]:
            return {"slice_auc_inside": gap @ counts / counts.sum(axis=0)}

        intervals, draws = _paired_bootstrap(differences, owner, resamples=resamples, seed=seed)
        means = float(values.mean()), float(base.mean())
        for metric, interval in intervals.items():
            rows.append({**facts, **_row(metric, means, interval, draws[metric]), "model": name})
    return pd.DataFrame(rows, columns=COLUMNS)
