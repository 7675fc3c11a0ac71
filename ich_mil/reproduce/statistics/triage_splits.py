"""Check of triage guarantees by random splits: thresholds fitted on one half, errors counted on the other.

In: labels and probabilities of one set of scans. Out: one row for each split, and the fraction of splits that
met each guarantee.

A guarantee about all future scans bounds a fraction that cannot be observed; the fraction counted on the m
test scans of a split varies around it. The observed rate of valid splits is therefore reported beside its
expectation. If the n calibration and m test scans of a class are drawn from one pool without replacement,
this expectation is exact and does not depend on the model (`promises.chance_next`). It is exact for
positives. For negatives it is exact only if no patient has scans of both classes; otherwise negatives come
from two pools, and it is approximate.

Shapes: B scans, U patients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import LEVEL
from ich_mil.evaluate.deployment.conformal import Method, allowed, chance_next
from ich_mil.evaluate.deployment.triage import LOOK, Triage, fit_triage, hardest
from ich_mil.evaluate.metrics import check_scores, patient_keys


@dataclass(frozen=True)
class Verification:
    """Result of `verify`.

    Attributes:
        splits: one row for each split: `low`, `high`; the fraction of test scans left to a reader, `look`;
            for positives the number of calibration patients `n_positive` and of test patients
            `test_positives`, the `rank_positive` of the threshold, the number `missed` and the empirical
            `sensitivity`; for negatives `n_negative`, `test_negatives`, `rank_negative`, `false_alarms` and
            `specificity`.
        summary: one row for each guarantee ('sensitivity' and 'specificity'): the value `promised`, the
            `confidence`, the number of `splits`, the fraction `kept` in which the count of test patients met
            it, with its 95 % Monte Carlo interval `kept_low` and `kept_high`, the fraction `expected` by
            theory (a lower bound if probabilities tie or thresholds crossed), and the `mean` and `lowest`
            empirical value. `note` says why `confidence` is NaN.
    """

    splits: pd.DataFrame
    summary: pd.DataFrame


def _by_patient(score: np.ndarray, owner: np.ndarray, n_patients: int) -> np.ndarray:
    """Lowest score (U,) of each patient, NaN for patients without a score."""
    lowest = np.full(n_patients, np.nan)
    lowest[np.unique(owner)] = hardest(score, owner)
    return lowest


def _draw(group: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Random calibration patients (U,) bool: half of each group."""
    chosen = np.zeros(len(group), dtype=bool)
    for value in (False, True):
        members = generator.permutation(np.flatnonzero(group == value))
        chosen[members[: round(len(members) / 2)]] = True
    return chosen


def _row(triage: Triage, missed: int, positives: int, alarms: int, negatives: int) -> dict[str, Any]:
    return {
        "low": triage.low,
        "high": triage.high,
        "n_positive": triage.n_positive,
        "rank_positive": triage.rank_positive,
        "test_positives": positives,
        "missed": missed,
        "sensitivity": 1 - missed / positives,
        "n_negative": triage.n_negative,
        "rank_negative": triage.rank_negative,
        "test_negatives": negatives,
        "false_alarms": alarms,
        "specificity": 1 - alarms / negatives,
    }


def _summary(splits: pd.DataFrame, name: str, share: float, confidence: float | None) -> dict[str, Any]:
    one = name == "sensitivity"
    lost, n, rank, m = (
        splits[column].to_numpy()
        for column in (
            ("missed", "n_positive", "rank_positive", "test_positives")
            if one
            else ("false_alarms", "n_negative", "rank_negative", "test_negatives")
        )
    )
    sizes, times = np.unique(np.stack([rank, n, m]), axis=1, return_counts=True)
    chances = [chance_next(int(k), int(size), share, int(ahead)) for k, size, ahead in sizes.T]
    kept = int(sum(lost[i] <= allowed(share, int(m[i])) for i in range(len(splits))))
    interval = binomtest(kept, len(splits)).proportion_ci(confidence_level=LEVEL)
    return {
        "promise": name,
        "promised": share,
        "confidence": np.nan if confidence is None else confidence,
        "splits": len(splits),
        "kept": kept / len(splits),
        "kept_low": float(interval.low),
        "kept_high": float(interval.high),
        "expected": float(np.average(chances, weights=times)),
        "mean": float(splits[name].mean()),
        "lowest": float(splits[name].min()),
        "note": "conformal promises the mean, without a confidence" if confidence is None else "",
    }


def verify(
    labels: np.ndarray,
    probability: np.ndarray,
    patients: Sequence[str],
    *,
    splits: int = 1000,
    sensitivity: float,
    specificity: float = 0.95,
    confidence: float = 0.90,
    method: Method = "risk_control",
    seed: int,
) -> Verification:
    """Fit a triage on half of the patients and count errors on the other half, many times.

    Patients are drawn separately among those with a positive scan and those without. Each patient counts once
    in a class by the scan that is hardest to classify, as in `fit_triage` with `patients`. `next_scans` uses
    the number of test patients of a class as m.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        probability: (B,) in [0, 1], of a model that has seen none of the scans.
        patients: B patient keys.
        splits: number of random splits.
        sensitivity: guaranteed sensitivity.
        specificity: guaranteed specificity.
        confidence: confidence level of each guarantee separately.
        method: see `promises.py`.
        seed: seed of the splits.

    Raises:
        DataError: too few scans of a class to calibrate or to test on, or an invalid probability.
        ValueError: sizes do not match, or a value is out of range.
    """
    labels, p = check_scores(labels, probability, what="scans to split", probability=True)
    owner = patient_keys(patients, len(labels))
    if splits < 1:
        raise ValueError(f"need one split at least, got {splits}")
    known = labels != UNKNOWN
    labels, p = labels[known], p[known]
    names, owner = np.unique(owner[known], return_inverse=True)
    positive = _by_patient(p[labels == 1], owner[labels == 1], len(names))  # (U,)
    negative = -_by_patient(-p[labels == 0], owner[labels == 0], len(names))  # (U,)
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(splits):
        chosen = _draw(~np.isnan(positive), generator)
        m = [int((~np.isnan(score[~chosen])).sum()) for score in (positive, negative)]
        if min(m) == 0:
            raise DataError(
                f"no {'positive' if m[0] == 0 else 'negative'} scan of {len(labels)} is left to test on; "
                "label more scans"
            )
        scans = chosen[owner]
        triage = fit_triage(
            labels[scans],
            p[scans],
            sensitivity=sensitivity,
            specificity=specificity,
            confidence=confidence,
            method=method,
            patients=names[owner[scans]].tolist(),
            next_positives=m[0] if method == "next_scans" else None,
            next_negatives=m[1] if method == "next_scans" else None,
        )
        missed = int((positive[~chosen] < triage.low).sum())
        alarms = int((negative[~chosen] >= triage.high).sum())
        look = float((triage.decide(p[~scans]) == LOOK).mean())
        rows.append({**_row(triage, missed, m[0], alarms, m[1]), "look": look})
    table = pd.DataFrame(rows)
    summary = [
        _summary(table, name, share, triage.confidence)
        for name, share in (("sensitivity", sensitivity), ("specificity", specificity))
    ]
    return Verification(splits=table, summary=pd.DataFrame(summary))
