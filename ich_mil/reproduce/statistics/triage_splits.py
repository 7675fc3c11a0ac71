"""Whether a triage keeps its promise: fitted and checked on many random halves of one set of scans.

In: scored and labelled scans. Out: one row a split, and how often the promises were kept.

Two things are told apart. A promise on all future scans is about a share nobody can count; on the m test
scans of a split the share scatters around it. So beside how often the counted share kept to the promise
stands how often it must: with the n calibration and m test scans of a class drawn from one pool without
replacement, that chance is exact and needs no model (`promises.chance_next`). Positives are drawn so;
negatives only where no patient has scans of both labels: else they come from two pools, and the chance is
near.

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
from ich_mil.evaluate.metrics import check_scores, patient_keys
from ich_mil.evaluate.promises import Method, allowed, chance_next
from ich_mil.evaluate.triage import LOOK, Triage, fit_triage, hardest


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    Attributes:
        splits: a row a split: `low`, `high`, the share of test scans to `look` at, and of each class the
            patients to calibrate on (`n_positive`) and to test on (`test_positives`), the `rank_positive` of
            the threshold, how many were `missed` and the empirical `sensitivity`; for negatives `n_negative`,
            `test_negatives`, `rank_negative`, `false_alarms` and `specificity`.
        summary: a row a promise ('sensitivity' and 'specificity'): what is `promised`, the `confidence`,
            the number of `splits`, the share of them that `kept` it in the count of test patients, its 95 %
            Monte Carlo interval `kept_low` and `kept_high`, the share `expected` by theory (the least, where
            probabilities tie or the thresholds crossed), and the `mean` and `lowest` empirical value. `note`
            says why `confidence` is NaN.
    """

    splits: pd.DataFrame
    summary: pd.DataFrame


def _by_patient(score: np.ndarray, owner: np.ndarray, n_patients: int) -> np.ndarray:
    """The lowest score (U,) of each patient, NaN for those who have none."""
    lowest = np.full(n_patients, np.nan)
    lowest[np.unique(owner)] = hardest(score, owner)
    return lowest


def _draw(group: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Calibration patients (U,) bool: half of each group."""
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
    """Fit a triage on half of the patients, count on the others, many times over.

    Patients are drawn, those with a positive scan apart from those without, and each counts once in a class
    by the hardest scan, as in `fit_triage` with `patients`. `next_scans` promises for as many patients of a
    class as the test part has.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`, which is left out.
        probability: (B,) in [0, 1], of a model that has seen none of the scans.
        patients: B patient keys.
        splits: number of random splits.
        sensitivity: promised.
        specificity: promised.
        confidence: of each promise by itself.
        method: see `promises.py`.
        seed: of the draws.

    Raises:
        DataError: too few scans of a class to calibrate or to test on, or probabilities that cannot be used.
        ValueError: sizes that do not fit together, or a value out of range.
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
