"""Comparison of uncertainty in a group of scans with that outside it, also at equal probability.

In: the uncertainty of each scan, its membership in the group (readers disagree, another kind of scan, wrong
call), its patient, and for the second comparison its probability p. Out: the probability that a scan of the
group is less certain than a scan outside it (an AUC).

Scans on which readers disagree have p near ½, where a standard deviation is large anyway.
`higher_where_given_p` therefore compares scans within strata of p only. The variation of p within a stratum
remains. The AUC of closeness to ½ as the uncertainty measures its effect; it should be near ½.

Shapes: B scans, R resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu, norm, rankdata

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import RESAMPLES, of_proportion, pairs, patient_bootstrap
from ich_mil.evaluate.metrics import equal_mass, patient_keys
from ich_mil.evaluate.resampled_metrics import divide, resampled_ranking
from ich_mil.evaluate.uncertainty import scan_rows

STRATA = 10
"""Number of strata of p, with about equally many scans each."""


@dataclass(frozen=True)
class HigherWhere:
    """Comparison of the uncertainty in a group of scans and outside it.

    Attributes:
        auc: probability that a scan of the group is less certain than one outside it, ties counted half.
        low: lower end of its 95 % interval by patient bootstrap.
        high: upper end.
        median_there: median uncertainty in the group.
        median_elsewhere: median uncertainty outside the group.
        n_there: number of scans of the group that were compared.
        n_elsewhere: number of scans outside the group that were compared.
        p: two-sided p-value of equal distributions in the group and outside it. It is too small if a small
            group has another spread while the AUC is ½; use the interval then. It treats scans as
            independent, so it is NaN if patients have several scans.
        note: why a number is NaN, or which scans were left out; else empty.
    """

    auc: float
    low: float
    high: float
    median_there: float
    median_elsewhere: float
    n_there: int
    n_elsewhere: int
    p: float
    note: str


def _stratified_auc(
    uncertainty: np.ndarray, where: np.ndarray, stratum: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Σ_s w_s AUC_s / Σ_s w_s with van Elteren's w_s = P_s Q_s / (N_s + 1), (R,); NaN where all w_s are 0."""
    above, below = np.zeros((2, counts.shape[1]))
    for s in np.unique(stratum):
        rows = stratum == s
        there = where[rows].astype(np.float64) @ counts[rows]  # (R,)
        n = counts[rows].sum(axis=0)
        weight = there * (n - there) / (n + 1)
        auc = resampled_ranking(where[rows], uncertainty[rows], counts[rows])["auc"]
        above += np.where(weight > 0, weight * auc, 0)
        below += weight
    return divide(above, below)


def _van_elteren_p(uncertainty: np.ndarray, where: np.ndarray, stratum: np.ndarray) -> float:
    """Two-sided p-value of Σ_s U_s / (N_s + 1), normal approximation with mid-ranks (van Elteren 1960)."""
    excess = variance = 0.0
    for s in np.unique(stratum):
        rows = stratum == s
        ranks, n, there = rankdata(uncertainty[rows]), int(rows.sum()), int(where[rows].sum())
        excess += (ranks[where[rows] == 1].sum() - there * (n + 1) / 2) / (n + 1)
        # rank sum drawn without replacement: P Q / N times the variance of the ranks, denominator N - 1
        variance += there * (n - there) / n * ranks.var(ddof=1) / (n + 1) ** 2
    return float(2 * norm.sf(abs(excess) / np.sqrt(variance))) if variance > 0 else 1.0


def _higher(
    uncertainty: np.ndarray,
    where: np.ndarray,
    stratum: np.ndarray | None,
    patients: Sequence[str] | np.ndarray,
    seed: int,
    resamples: int,
) -> HigherWhere:
    if not np.isin(where, (0, 1)).all():
        raise ValueError("where must be true or false for each scan")
    where, keys = where.astype(np.int64), patient_keys(patients, len(where))
    notes = []
    if stratum is not None:
        both = [s for s in np.unique(stratum) if 0 < where[stratum == s].mean() < 1]
        used = np.isin(stratum, both)
        if not used.all():
            notes.append(f"{int((~used).sum())} scans left out: their stratum of p is all in or all outside")
        uncertainty, where, stratum, keys = uncertainty[used], where[used], stratum[used], keys[used]
    strata = np.zeros(len(where), dtype=np.int64) if stratum is None else stratum
    n_there, n_elsewhere = int(where.sum()), int(len(where) - where.sum())
    if not (n_there and n_elsewhere):
        notes.append(f"{n_there} scans in the group and {n_elsewhere} outside it: nothing to compare")
        nan = float("nan")
        return HigherWhere(nan, nan, nan, nan, nan, n_there, n_elsewhere, nan, "; ".join(notes))
    resampled = patient_bootstrap(
        lambda counts: {"auc": _stratified_auc(uncertainty, where, strata, counts)},
        keys,
        resamples=resamples,
        seed=seed,
    )["auc"]
    auc = float(_stratified_auc(uncertainty, where, strata, np.ones((len(where), 1)))[0])
    ends = of_proportion(resampled, auc, pairs(keys[where == 1], keys[where == 0]))
    if len(np.unique(keys)) == 1:
        notes.append("one patient: no interval")
    if len(np.unique(keys)) < len(keys):
        p = float("nan")
        notes.append("patients have several scans: no p-value, go by the interval")
    elif stratum is None:
        p = float(mannwhitneyu(uncertainty[where == 1], uncertainty[where == 0]).pvalue)
    else:
        p = _van_elteren_p(uncertainty, where, strata)
    return HigherWhere(
        auc=auc,
        low=ends.low,
        high=ends.high,
        median_there=float(np.median(uncertainty[where == 1])),
        median_elsewhere=float(np.median(uncertainty[where == 0])),
        n_there=n_there,
        n_elsewhere=n_elsewhere,
        p=p,
        note="; ".join(notes),
    )


def higher_where(
    uncertainty: np.ndarray,
    where: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> HigherWhere:
    """Mann-Whitney AUC of the uncertainty for a group, with an interval by patient and a two-sided p-value.

    Args:
        uncertainty: (B,).
        where: (B,) bool, membership in the group.
        patients: B patient keys.
        seed: seed of the resampling.
        resamples: number of resamples of patients.

    Raises:
        DataError: there is no scan, or an uncertainty is not finite.
        ValueError: lengths differ, or `where` is not boolean.
    """
    uncertainty, where = scan_rows(uncertainty=uncertainty, where=where)
    return _higher(uncertainty, where, None, patients, seed, resamples)


def higher_where_given_p(
    uncertainty: np.ndarray,
    where: np.ndarray,
    probability: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> HigherWhere:
    """AUC of the uncertainty for a group, stratified by probability.

    Scans are divided into `STRATA` equal-mass strata by p. With P_s scans of the group and Q_s other scans in
    stratum s, and N_s = P_s + Q_s,

        AUC = Σ_s w_s AUC_s / Σ_s w_s,    w_s = P_s Q_s / (N_s + 1)

    This is the statistic of van Elteren (1960) as an AUC: only pairs of scans in one stratum are compared.
    Strata without such a pair are left out, and the note gives the number of their scans. Strata are kept
    fixed in the resamples. The p-value is that of Σ_s U_s / (N_s + 1), by the normal approximation with ties.

    Args:
        uncertainty: (B,).
        where: (B,) bool, membership in the group.
        probability: (B,) p of the scan, in [0, 1].
        patients: B patient keys.
        seed: seed of the resampling.
        resamples: number of resamples of patients.

    Raises:
        DataError: as `higher_where`, or a probability outside [0, 1].
        ValueError: as `higher_where`.
    """
    uncertainty, where, p = scan_rows(uncertainty=uncertainty, where=where, probability=probability)
    if p.min() < 0 or p.max() > 1:
        raise DataError(f"a probability must lie in [0, 1], got {p.min():g} to {p.max():g}")
    return _higher(uncertainty, where, equal_mass(p, STRATA), patients, seed, resamples)
