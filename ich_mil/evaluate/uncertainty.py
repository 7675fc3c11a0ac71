"""Risk-coverage evaluation of uncertainty: does it detect errors better than the probability does?

In: for each scan a loss (or whether the call was wrong), its uncertainty and its patient. Out: risk-coverage
curves and a table of the areas under them; `bins.error_by_decile` gives error rates by decile of uncertainty.

For a calibrated probability p the probability of an error is min(p, 1 - p), so the closeness of p to ½ is the
baseline: a standard deviation that is a function of p adds nothing. Each table therefore has the difference
to closeness, and `groups.higher_where_given_p` compares scans of similar p only. If p is miscalibrated at a
new site, a measure that is merely larger on the side with the errors also beats closeness. Recalibrate first
(`shift.recalibrate`) and check that the gain remains.

Shapes: B scans, L samples, R resamples, G groups of equal uncertainty, K points.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import RESAMPLES, of_proportion, patient_bootstrap
from ich_mil.evaluate.metrics import patient_keys

CLOSENESS = "closeness of p to ½"
"""Name of the baseline uncertainty, 1 - |2p - 1|."""

_ALIKE = "all losses are alike, so no interval of the difference"


def scan_rows(**columns: np.ndarray) -> list[np.ndarray]:
    """Columns as float64. `DataError` if a column is empty or not finite, `ValueError` if lengths differ."""
    arrays = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    if len({a.shape for a in arrays.values()}) > 1 or any(a.ndim != 1 for a in arrays.values()):
        shapes = ", ".join(f"{name} {a.shape}" for name, a in arrays.items())
        raise ValueError(f"need one value a scan, got {shapes}")
    for name, a in arrays.items():
        if len(a) == 0:
            raise DataError(f"{name}: there is no scan, so nothing can be measured")
        if not np.isfinite(a).all():
            first = int(np.flatnonzero(~np.isfinite(a))[0])
            raise DataError(
                f"{name}: values must be finite, got {a[first]} for scan number {first}; leave such scans out"
            )
    return list(arrays.values())


def uncertainties(probability: np.ndarray, std: np.ndarray) -> dict[str, np.ndarray]:
    """Uncertainties of a scan probability: closeness of p to ½, and standard deviation.

    The entropy of p is left out: it is a monotonic function of closeness, so it ranks scans identically.

    Args:
        probability: (B,) mean p.
        std: (B,) standard deviation of its samples.

    Returns:
        (B,) by name: `CLOSENESS` (1 - |2p - 1|) and 'standard deviation'.
    """
    p, std = scan_rows(probability=probability, std=std)
    return {CLOSENESS: 1 - np.abs(2 * p - 1), "standard deviation": std}


@dataclass(frozen=True)
class RiskCoverage:
    """Risk-coverage curve: mean loss of the scans that are kept if the least certain ones are rejected.

    Attributes:
        coverage: (K,) fraction of scans kept, rising to 1; one point for each distinct uncertainty.
        risk: (K,) mean loss of the scans kept.
        aurc: mean over k = 1..B of the risk at coverage k/B (Geifman et al. 2019).
        aurc_random: AURC of a random order, which is the mean loss.
        aurc_best: AURC of the order of the losses themselves.
    """

    coverage: np.ndarray
    risk: np.ndarray
    aurc: float
    aurc_random: float
    aurc_best: float

    @property
    def e_aurc(self) -> float:
        """Excess AURC over the best order: aurc - aurc_best."""
        return self.aurc - self.aurc_best


def _kept(
    loss: np.ndarray, uncertainty: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scans drawn and their loss in each tie group, most certain first, and both cumulated; (G, R) each."""
    order = np.argsort(uncertainty, kind="stable")
    starts = np.flatnonzero(np.diff(uncertainty[order], prepend=-np.inf))  # (G,)
    drawn = np.add.reduceat(counts[order], starts)
    lost = np.add.reduceat(loss[order, None] * counts[order], starts)
    return drawn, lost, drawn.cumsum(axis=0), lost.cumsum(axis=0)


def resampled_aurc(loss: np.ndarray, uncertainty: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """AURC in each resample; tied uncertainties contribute the mean over all their orders.

    A tie group of d scans with total loss s, after c scans with total loss t, adds Σ (t + i s/d) / (c + i)
    over i = 1..d, which is s + (t - c s/d) (H(c + d) - H(c)) with the harmonic numbers H.

    Args:
        loss: (B,).
        uncertainty: (B,).
        counts: (B, R) how often each scan was drawn.

    Returns:
        (R,).
    """
    drawn, lost, reached, total = _kept(loss, uncertainty, counts)
    harmonic = np.concatenate([[0], np.cumsum(1 / np.arange(1, reached[-1].max() + 1))])
    before = reached - drawn
    span = harmonic[reached.astype(np.int64)] - harmonic[before.astype(np.int64)]
    mean = np.divide(lost, drawn, out=np.zeros_like(lost), where=drawn > 0)
    return (total[-1] + ((total - lost - before * mean) * span).sum(axis=0)) / reached[-1]


def risk_coverage(loss: np.ndarray, uncertainty: np.ndarray) -> RiskCoverage:
    """Risk-coverage curve (Geifman & El-Yaniv 2017) and the area under it.

    In the curve, scans of equal uncertainty are kept or rejected together. The area uses the mean over all
    their orders. The order of the scans therefore does not matter, and a constant uncertainty equals a random
    order.

    Args:
        loss: (B,) any loss, or whether the call was wrong.
        uncertainty: (B,) a larger value means less certain.

    Raises:
        DataError: there is no scan, or a value is not finite.
    """
    loss, uncertainty = scan_rows(loss=loss, uncertainty=uncertainty)
    one = np.ones((len(loss), 1))
    _, _, reached, total = _kept(loss, uncertainty, one)
    return RiskCoverage(
        coverage=reached[:, 0] / len(loss),
        risk=total[:, 0] / reached[:, 0],
        aurc=float(resampled_aurc(loss, uncertainty, one)[0]),
        aurc_random=float(loss.mean()),
        aurc_best=float(resampled_aurc(loss, loss, one)[0]),
    )


def uncertainty_table(
    loss: np.ndarray,
    measures: Mapping[str, np.ndarray],
    patients: Sequence[str] | np.ndarray,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """AURC of several uncertainties on the same scans, each compared with `CLOSENESS`.

    The interval of an AURC is that of a number between 0 and 1 (`of_proportion`). For an AURC of 0.03 (13 %
    wrong) its simulated coverage is 0.98 with 30 patients and 0.92 with 490. Percentile intervals cover 0.83
    and 0.91, and without a wrong call they have zero width. Differences still use percentile intervals.

    Args:
        loss: (B,) in [0, 1]: whether the call was wrong.
        measures: uncertainties (B,) by name, from `uncertainties`; must include `CLOSENESS`.
        patients: B patient keys.
        seed: seed of the resampling.
        resamples: number of resamples of patients; all rows share them, so differences are paired.

    Returns:
        One row for each measure: `uncertainty, n, patients, aurc, low, high, random, best, e_aurc,
        difference, difference_low, difference_high, note`. `difference` is the AURC minus that of
        `CLOSENESS`; below 0 is better. With one patient the ends of the intervals are NaN. If all losses are
        equal the interval of the difference is NaN. The note gives the reason.

    Raises:
        DataError: there is no scan, or a value is not finite.
        ValueError: lengths do not match, a loss is outside [0, 1], or `CLOSENESS` is missing.
    """
    if CLOSENESS not in measures:
        raise ValueError(f"measures must hold {CLOSENESS!r} to compare with, got {', '.join(measures)}")
    columns = {name: scan_rows(loss=loss, **{name: values})[1] for name, values in measures.items()}
    owner = patient_keys(patients, len(loss))
    loss = np.asarray(loss, dtype=np.float64)
    if loss.min() < 0 or loss.max() > 1:
        raise ValueError(f"a loss must lie in [0, 1], got {loss.min():g} to {loss.max():g}")

    def statistic(counts: np.ndarray) -> dict[str, np.ndarray]:
        areas = {name: resampled_aurc(loss, values, counts) for name, values in columns.items()}
        return areas | {f"{name} - ": area - areas[CLOSENESS] for name, area in areas.items()}

    intervals = patient_bootstrap(statistic, owner, resamples=resamples, seed=seed)
    n_patients = len(np.unique(owner))
    closeness = risk_coverage(loss, columns[CLOSENESS]).aurc
    rows = []
    for name, values in columns.items():
        found, gap = risk_coverage(loss, values), intervals[f"{name} - "]
        ends = of_proportion(intervals[name], found.aurc, n_patients)
        note = "one patient: no interval" if n_patients == 1 else ""
        if name != CLOSENESS and not note and np.ptp(loss) == 0:
            gap, note = replace(gap, low=np.nan, high=np.nan), _ALIKE
        rows.append(
            {
                "uncertainty": name,
                "n": len(loss),
                "patients": n_patients,
                "aurc": found.aurc,
                "low": ends.low,
                "high": ends.high,
                "random": found.aurc_random,
                "best": found.aurc_best,
                "e_aurc": found.e_aurc,
                "difference": found.aurc - closeness,
                "difference_low": gap.low,
                "difference_high": gap.high,
                "note": note,
            }
        )
    return pd.DataFrame(rows)
