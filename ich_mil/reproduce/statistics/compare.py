"""Paired comparison of models with a reference model on the same scans, by bootstrap over patients.

In: labels and the scores of several models on the same scans. Out: a row for each other model and metric: the
difference to the reference, its interval, and how often the model is better. Both models are evaluated on the
same resamples, so variation between scans that affects both cancels: a difference may be clear although the
two intervals in the result table overlap.

Shapes: B scans, N slices (packed), K scans with slices of both classes, R resamples.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import RESAMPLES, ROUNDING, Interval, patient_bootstrap, patients_behind
from ich_mil.evaluate.metrics import auc_inside, check_scores, patient_keys, scan_metrics
from ich_mil.evaluate.resampled_metrics import resampled_scan_metrics
from ich_mil.reproduce.statistics.delong import delong_test

COLUMNS = ["model", "reference", "metric", "value", "reference_value", "difference", "low", "high", "better"]
COLUMNS += ["delong_p", "n", "positives", "patients", "resamples", "ignored", "note"]

LOWER_IS_BETTER = frozenset({"log_loss", "brier", "ece"})

_Row = dict[str, Any]


def _others(scores: Mapping[str, np.ndarray], reference: str) -> list[str]:
    if reference not in scores or len(scores) < 2:
        raise ValueError(
            f"need the reference {reference!r} and a model to compare with it, got {list(scores)}"
        )
    return [name for name in scores if name != reference]


def _join(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


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


def _measured(
    metric: str,
    value: float,
    other: float,
    interval: Interval,
    draws: np.ndarray,
    behind: Mapping[str, int],
) -> _Row:
    """Bootstrap columns of one row; ties count one half in `better`.

    An ECE gets no interval. Resampling inflates it, and more so for the better calibrated model: for two
    models with ECEs of 0 and 0.06, simulated with 60 or 490 scans, the coverage of the interval of the
    difference was 0 to 0.06.
    """
    gain = draws[~np.isnan(draws)] * (-1 if metric in LOWER_IS_BETTER else 1)
    row = {
        "metric": metric,
        "value": value,
        "reference_value": other,
        "difference": value - other,
        "low": interval.low,
        "high": interval.high,
        "ignored": interval.ignored,
        "delong_p": np.nan,
    }
    if metric == "ece":
        nothing = dict.fromkeys(("low", "high", "better"), np.nan)
        return {**row, **nothing, "note": "resampling adds to an ECE, so it says nothing of a difference"}
    if note := _why_no_interval(interval, len(gain), behind.get(metric)):
        return {**row, **dict.fromkeys(("low", "high", "better"), np.nan), "note": note}
    return {**row, "better": float(((gain > 0) + (gain == 0) / 2).mean()), "note": ""}


def _why_no_interval(interval: Interval, usable: int, patients: int | None) -> str:
    """Reason why the resamples give no valid interval, else empty.

    If all resamples agree, their spread is 0 and the interval would have no width. That two models are
    correct on each of ten scans, or that only one of them finds the single positive scan, does not bound a
    difference.

    `patients` is the number of patients as in `bootstrap.of_proportion`.
    """
    if np.isnan(interval.low):
        return "no resample holds both classes" if usable == 0 else "one patient only, so no interval"
    if patients == 1:
        return "too few patients of a class, so no interval"
    if interval.high - interval.low < ROUNDING:
        return "all resamples agree, so no interval"
    return ""


def _delong(labels: np.ndarray, score: np.ndarray, other: np.ndarray, *, several: bool) -> tuple[float, str]:
    """p-value of the AUC difference, and remarks on it; `several`: some patient has several scans."""
    if min((labels == 1).sum(), (labels == 0).sum()) < 2:
        return np.nan, "DeLong needs two scans of each class"
    result = delong_test(labels, score, other)
    clustered = "DeLong counts scans as independent, but patients have several: read the interval"
    return result.p, _join(result.note, clustered if several else "")


def compare(
    labels: np.ndarray,
    scores: Mapping[str, np.ndarray],
    patients: Sequence[str] | np.ndarray,
    *,
    reference: str,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Compare the scan probabilities of each model with the reference, in every metric of `scan_metrics`.

    An interval that excludes 0 means that the models differ on scans from this population. It does not
    include the variation between training runs. One in twenty such intervals is wrong by chance, so consider
    how many are read.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        scores: (B,) probabilities of each model, by its name.
        patients: B patient keys; the intervals resample patients.
        reference: name of the reference model.
        seed: seed of the resampling.
        resamples: number of resamples R.

    Returns:
        One row for each model and metric, in the order given, with the columns `COLUMNS`: `value`,
        `reference_value`, `difference` (`value - reference_value`), `low` and `high` of its 95 % interval,
        `better`: the fraction of resamples in which the model is better (lower for `LOWER_IS_BETTER`), a tie
        counting one half. These three are NaN for `ece`, if all resamples agree, and if a metric rests on one
        patient of a class. `delong_p` is for `auc` only, else NaN; `n` scans, `positives` and `patients`
        among them; `resamples`, the number `ignored` because they have one class only; `note`: why a number
        is missing, or a remark on it.

    Raises:
        DataError: a score is NaN or not a probability (the message names the model), or there is one class
            only.
        ValueError: lengths do not match, or the reference or a model to compare is missing.
    """
    others, owner = _others(scores, reference), patient_keys(patients, len(labels))
    checked = {}
    for name, score in scores.items():
        truth, checked[name] = check_scores(labels, score, what=f"model {name!r}", probability=True)
    known = truth != UNKNOWN
    truth, owner = truth[known], owner[known]
    checked = {name: score[known] for name, score in checked.items()}
    facts: _Row = {
        "reference": reference,
        "n": len(truth),
        "positives": int(truth.sum()),
        "patients": len(np.unique(owner)),
        "resamples": resamples,
    }
    if len(np.unique(truth)) < 2:
        raise DataError(
            f"{facts['positives']} of {facts['n']} labelled scans are positive; models can only be compared "
            "on scans of both classes"
        )
    base, base_values = checked[reference], scan_metrics(truth, checked[reference])
    behind = patients_behind(truth, owner)
    rows = []
    for name in others:
        score = checked[name]

        def differences(counts: np.ndarray, score: np.ndarray = score) -> dict[str, np.ndarray]:
            one, two = (resampled_scan_metrics(truth, each, counts) for each in (score, base))
            return {metric: one[metric] - two[metric] for metric in one}

        intervals, draws = _paired_bootstrap(differences, owner, resamples=resamples, seed=seed)
        for metric, value in scan_metrics(truth, score).items():
            row = _measured(metric, value, base_values[metric], intervals[metric], draws[metric], behind)
            if metric == "auc":
                p, note = _delong(truth, score, base, several=facts["n"] > facts["patients"])
                row |= {"delong_p": p, "note": _join(row["note"], note)}
            rows.append({**facts, **row, "model": name})
    return pd.DataFrame(rows)[COLUMNS]


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
    """Compare slice scores of each model with those of the reference, by the AUC within positive scans.

    Each scan with slices of both classes gives one difference of AUCs; the result is the mean of these.

    Args:
        slice_labels: (N,) in {0, 1} or `UNKNOWN`; unlabelled slices are left out.
        scores: (N,) finite scores of each model, by its name; a larger score means a hemorrhage is more
            likely.
        patients: B patient keys; the intervals resample patients.
        offsets: (B + 1,) scan b owns slices `offsets[b]:offsets[b + 1]`.
        reference: name of the reference model.
        seed: seed of the resampling.
        resamples: number of resamples R.

    Returns:
        As `compare`, one row for each model with the metric `slice_auc_inside`; `n` and `positives` are the
        number of scans K. `delong_p` is NaN, because DeLong's test does not apply to a mean over scans.

    Raises:
        DataError: a score is NaN (the message names the model), or no scan has slices of both classes.
        ValueError: lengths do not match, or the reference or a model to compare is missing.
    """
    others, owner = _others(scores, reference), patient_keys(patients)
    offsets = np.asarray(offsets)
    if len(offsets) != len(owner) + 1 or offsets[-1] != len(slice_labels):
        raise ValueError(
            f"{len(owner)} patients, {len(offsets)} offsets and {len(slice_labels)} slice labels do not fit"
        )
    bags = np.repeat(np.arange(len(owner)), np.diff(offsets))  # (N,)
    inside = {}
    for name, score in scores.items():
        truth, score = check_scores(slice_labels, score, what=f"model {name!r}", probability=False)
        scans, inside[name] = auc_inside(truth, score, bags)  # (K,), (K,)
    if not len(scans):
        raise DataError("no scan has labelled slices of both kinds, so the AUC inside scans is not defined")
    owner = owner[scans]
    facts = {
        "reference": reference,
        "n": len(scans),
        "positives": len(scans),
        "patients": len(np.unique(owner)),
        "resamples": resamples,
    }
    rows = []
    for name in others:
        gap = inside[name] - inside[reference]  # (K,)

        def differences(counts: np.ndarray, gap: np.ndarray = gap) -> dict[str, np.ndarray]:
            return {"slice_auc_inside": gap @ counts / counts.sum(axis=0)}

        intervals, draws = _paired_bootstrap(differences, owner, resamples=resamples, seed=seed)
        (metric,) = intervals
        values = float(inside[name].mean()), float(inside[reference].mean())
        row = _measured(metric, *values, intervals[metric], draws[metric], {})
        rows.append({**facts, **row, "model": name})
    return pd.DataFrame(rows)[COLUMNS]
