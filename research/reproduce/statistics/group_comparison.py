"""Comparison of the uncertainty in a group of scans with that outside it, also at equal probability.

Scans on which readers disagree have p near ½, where a standard deviation is large anyway. With p, scans are
therefore compared within strata of p only. The variation of p within a stratum remains; the AUC of closeness
to ½ measures its effect and should be near ½.

Shapes: B scans, R resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ich_mil.evaluate.bootstrap import RESAMPLES, disjoint_pairs, patient_bootstrap, proportion_interval
from ich_mil.evaluate.metrics import SCAN, metrics_of, resampled
from ich_mil.evaluate.sample import divide, equal_mass
from ich_mil.evaluate.scores import patient_keys

STRATA = 10
"""Number of strata of p, with about equally many scans each."""


@dataclass(frozen=True)
class GroupComparison:
    """Comparison of the uncertainty in a group of scans ('there') and outside it ('elsewhere').

    Attributes:
        auc: probability that a scan of the group is less certain than one outside it, ties counted half.
        low, high: its 95 % interval by patient bootstrap.
        median_there, median_elsewhere: median uncertainties.
        n_there, n_elsewhere: numbers of scans that were compared.
        note: why a number is NaN, or which scans were left out; else empty.
    """

    auc: float
    low: float
    high: float
    median_there: float
    median_elsewhere: float
    n_there: int
    n_elsewhere: int
    note: str


def _stratified_auc(
    uncertainty: np.ndarray, inside: np.ndarray, stratum: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Σ_s w_s AUC_s / Σ_s w_s with van Elteren's w_s = P_s Q_s / (N_s + 1), (R,); NaN where all w_s are 0."""
    above, below = np.zeros((2, counts.shape[1]))
    for s in np.unique(stratum):
        rows = stratum == s
        there = inside[rows].astype(np.float64) @ counts[rows]  # (R,)
        n = counts[rows].sum(axis=0)
        weight = there * (n - there) / (n + 1)
        auc = resampled(metrics_of(SCAN, "auc"), inside[rows], uncertainty[rows], counts[rows])["auc"]
        above += np.where(weight > 0, weight * auc, 0)
        below += weight
    return divide(above, below)


def compare_groups(
    uncertainty: np.ndarray,
    inside: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    *,
    probability: np.ndarray | None = None,
    seed: int,
    resamples: int = RESAMPLES,
) -> GroupComparison:
    """Mann-Whitney AUC of the uncertainty for a group, with an interval by patient.

    With `probability`, scans are divided into `STRATA` equal-mass strata by p. With P_s scans of the group
    and Q_s other scans in stratum s, and N_s = P_s + Q_s,

        AUC = Σ_s w_s AUC_s / Σ_s w_s,    w_s = P_s Q_s / (N_s + 1)

    This is the statistic of van Elteren (1960) as an AUC. Strata without a pair are left out. Strata are kept
    fixed in the resamples.

    `inside` (B,) bool is the membership in the group; `probability` None compares all scans.
    """
    inside, keys = inside.astype(np.int64), patient_keys(patients, len(inside))
    stratum = np.zeros(len(inside)) if probability is None else equal_mass(probability, STRATA)
    notes = []
    if probability is not None:
        both = [s for s in np.unique(stratum) if 0 < inside[stratum == s].mean() < 1]
        used = np.isin(stratum, both)
        if not used.all():
            notes.append(f"{(~used).sum()} scans left out: their stratum of p is all inside or all outside")
        uncertainty, inside, stratum, keys = uncertainty[used], inside[used], stratum[used], keys[used]
    n_there, n_elsewhere = int(inside.sum()), int(len(inside) - inside.sum())
    if not (n_there and n_elsewhere):
        notes.append(f"{n_there} scans in the group and {n_elsewhere} outside it: nothing to compare")
        nan = float("nan")
        return GroupComparison(nan, nan, nan, nan, nan, n_there, n_elsewhere, "; ".join(notes))
    interval = patient_bootstrap(
        lambda counts: {"auc": _stratified_auc(uncertainty, inside, stratum, counts)},
        keys,
        resamples=resamples,
        seed=seed,
    )["auc"]
    auc = float(_stratified_auc(uncertainty, inside, stratum, np.ones((len(inside), 1)))[0])
    ends = proportion_interval(interval, auc, disjoint_pairs(keys[inside == 1], keys[inside == 0]))
    if len(np.unique(keys)) == 1:
        notes.append("one patient: no interval")
    return GroupComparison(
        auc=auc,
        low=ends.low,
        high=ends.high,
        median_there=float(np.median(uncertainty[inside == 1])),
        median_elsewhere=float(np.median(uncertainty[inside == 0])),
        n_there=n_there,
        n_elsewhere=n_elsewhere,
        note="; ".join(notes),
    )
