"""Is uncertainty higher in a group of scans, and is it higher than the probability already says?

In: the uncertainty of each scan, whether it belongs to the group (readers disagree, another kind of scan, the
call was wrong), its patient, and for the second question its probability p. Out: the chance that a scan of
the group is less certain than one outside it.

Scans that readers disagree on have p near ½, and there a standard deviation is large whatever it knows. So
`higher_where_given_p` compares scans within strata of p only. What a stratum leaves of p still counts: give
closeness to ½ itself as the uncertainty to see how much that is; it should be near ½.

Shapes: B scans, R resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu, norm, rankdata

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import RESAMPLES, of_proportion, pairs, patient_bootstrap
from ich_mil.evaluate.metrics import equal_mass, patient_keys
from ich_mil.evaluate.uncertainty import scan_rows
from ich_mil.evaluate.weighted import divide, resampled_ranking

STRATA = 10
"""Strata of p, with about equally many scans each."""


@dataclass(frozen=True)
class HigherWhere:
    """Whether uncertainty is higher in a group of scans.

    Attributes:
        auc: chance that a scan of the group is less certain than one outside it, ties half.
        low: lower end of its 95 % interval over patients.
        high: upper end.
        median_there: median uncertainty in the group.
        median_elsewhere: outside it.
        n_there: scans of the group that were compared.
        n_elsewhere: scans outside it that were compared.
        p: two-sided, of uncertainties that are distributed alike in the group and outside it. Another spread
            in a small group makes it too small where the AUC is ½: go by the interval then. It takes scans as
            independent, so it is NaN where patients have several.
        note: why a number is NaN, or which scans were left out; '' otherwise.
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
    """Two-sided p of Σ_s U_s / (N_s + 1), normal approximation with mid-ranks (van Elteren 1960)."""
    excess = variance = 0.0
    for s in np.unique(stratum):
        rows = stratum == s
        ranks, n, there = rankdata(uncertainty[rows]), int(rows.sum()), int(where[rows].sum())
        excess += (ranks[where[rows] == 1].sum() - there * (n + 1) / 2) / (n + 1)
        # a sum of ranks drawn without replacement: P Q / N times the variance of the ranks, N - 1 below
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
    """The Mann-Whitney AUC of uncertainty for a group, with a patient interval and scipy's two-sided p.

    Args:
        uncertainty: (B,).
        where: (B,) bool, whether a scan belongs to the group.
        patients: B patient keys.
        seed: of the resamples.
        resamples: of patients.

    Raises:
        DataError: no scan, or an uncertainty that is not finite.
        ValueError: arrays of different length; `where` is not true or false.
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
    """The same among scans of like probability.

    Scans are put into `STRATA` strata of equal mass by p. With P_s scans of the group and Q_s others in
    stratum s, and N_s = P_s + Q_s,

        AUC = Σ_s w_s AUC_s / Σ_s w_s,    w_s = P_s Q_s / (N_s + 1)

    which is van Elteren's (1960) statistic as an AUC: only pairs of scans in one stratum are compared. Strata
    without such a pair are left out, and the note says how many scans that were. Strata stay as they are in
    the resamples. p is of Σ_s U_s / (N_s + 1), normal approximation with ties.

    Args:
        uncertainty: (B,).
        where: (B,) bool, whether a scan belongs to the group.
        probability: (B,) p of the scan, in [0, 1].
        patients: B patient keys.
        seed: of the resamples.
        resamples: of patients.

    Raises:
        DataError: as `higher_where`, or a probability outside [0, 1].
        ValueError: as `higher_where`.
    """
    uncertainty, where, p = scan_rows(uncertainty=uncertainty, where=where, probability=probability)
    if p.min() < 0 or p.max() > 1:
        raise DataError(f"a probability must lie in [0, 1], got {p.min():g} to {p.max():g}")
    return _higher(uncertainty, where, equal_mass(p, STRATA), patients, seed, resamples)
