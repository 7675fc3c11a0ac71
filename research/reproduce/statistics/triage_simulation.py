"""Check of triage guarantees by random splits: thresholds fitted on one half, errors counted on the other.

A guarantee about all future scans bounds a fraction that cannot be observed; the fraction counted on the m
test scans of a split varies around it. The observed rate of valid splits is therefore reported beside its
expectation (`next_scans_confidence`). This is exact for positives and does not depend on the model;
for negatives it is exact only if no patient has scans of both classes, since they come from two pools
otherwise.

Shapes: B scans, U patients, T splits.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest, hypergeom

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import LEVEL
from ich_mil.evaluate.deployment.triage import fit_triage
from ich_mil.evaluate.scores import known_scores, patient_keys
from ich_mil.sets.labels import UNKNOWN


def allowed_losses(target: float, m: int) -> int:
    """⌊m (1 - target)⌋ in exact decimal arithmetic: 1 for m = 10 and target 0.9, where floats give 0."""
    return math.floor(m * (1 - Fraction(str(float(target)))))


def next_scans_confidence(rank: int, n: int, target: float, m: int) -> float:
    """P(M ≤ a), a = ⌊m (1 - target)⌋: M of the next m scans of a class are lost at `rank` of `n`.

    With n + m scores in random order, M ≤ a if and only if the rank + a lowest scores contain at least `rank`
    calibration scores (Wilks 1942).
    """
    return float(hypergeom.sf(rank - 1, n + m, n, rank + allowed_losses(target, m)))


def _lowest(score: np.ndarray, owner: np.ndarray, n_patients: int) -> np.ndarray:
    """Lowest score (U,) of each patient, NaN for patients without a score."""
    return pd.Series(score).groupby(owner).min().reindex(range(n_patients)).to_numpy()


def _half_of_each(group: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Random calibration patients (U,) bool: half of each group."""
    chosen = np.zeros(len(group), dtype=bool)
    for value in (False, True):
        members = generator.permutation(np.flatnonzero(group == value))
        chosen[members[: round(len(members) / 2)]] = True
    return chosen


def _summary(name: str, target: float, confidence: float, counts: np.ndarray) -> dict[str, Any]:
    """Row of one guarantee; counts (T, 4): rank, calibration size, test size, losses of each split."""
    sizes, times = np.unique(counts[:, :3], axis=0, return_counts=True)
    chances = [next_scans_confidence(rank, n, target, m) for rank, n, m in sizes.tolist()]
    met = sum(lost <= allowed_losses(target, m) for _, _, m, lost in counts.tolist())
    interval = binomtest(met, len(counts)).proportion_ci(confidence_level=LEVEL)
    share = 1 - counts[:, 3] / counts[:, 2]
    return {
        "promise": name,
        "promised": target,
        "confidence": confidence,
        "splits": len(counts),
        "kept": met / len(counts),
        "kept_low": float(interval.low),
        "kept_high": float(interval.high),
        "expected": float(np.average(chances, weights=times)),
        "mean": float(share.mean()),
        "lowest": float(share.min()),
    }


def simulate_triage(
    labels: np.ndarray,
    probability: np.ndarray,
    patients: Sequence[str],
    *,
    splits: int = 1000,
    sensitivity: float,
    specificity: float = 0.95,
    confidence: float = 0.90,
    seed: int,
) -> pd.DataFrame:
    """Fit a triage on half of the patients and count errors on the other half, many times.

    Patients are drawn separately among those with a positive scan and those without. Each patient counts once
    in a class by the scan that is hardest to classify, as in `fit_triage` with `patients`.

    Returns:
        One row for each guarantee ('sensitivity' and 'specificity'): the value `promised`, the `confidence`,
        the number of `splits`, the fraction `kept` in which the count of test patients met the guarantee,
        with its Monte Carlo interval `kept_low` and `kept_high`, the fraction `expected` by theory (a lower
        bound if probabilities tie or thresholds crossed), and the `mean` and `lowest` empirical value.

    Raises:
        DataError: too few scans of a class to calibrate or to test on, or an invalid probability.
    """
    known = np.asarray(labels) != UNKNOWN
    owners = patient_keys(patients, len(labels))[known]
    labels, p = known_scores(labels, probability, what="scans to split", probability=True)
    names, owner = np.unique(owners, return_inverse=True)
    positive = _lowest(p[labels == 1], owner[labels == 1], len(names))  # (U,)
    negative = -_lowest(-p[labels == 0], owner[labels == 0], len(names))  # (U,)
    generator = np.random.default_rng(seed)
    positives, negatives = [], []
    for _ in range(splits):
        chosen = _half_of_each(~np.isnan(positive), generator)
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
            patients=owners[scans].tolist(),
        )
        missed = int((positive[~chosen] < triage.low).sum())
        alarms = int((negative[~chosen] >= triage.high).sum())
        positives.append((triage.rank_positive, triage.n_positive, m[0], missed))
        negatives.append((triage.rank_negative, triage.n_negative, m[1], alarms))
    return pd.DataFrame(
        [
            _summary("sensitivity", sensitivity, triage.confidence, np.array(positives)),
            _summary("specificity", specificity, triage.confidence, np.array(negatives)),
        ]
    )
