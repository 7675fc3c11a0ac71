"""Evaluation of scan uncertainty: does it detect errors better than the probability does?

For a calibrated probability p the probability of an error is min(p, 1 - p), so the closeness of p to ½ is the
baseline: a standard deviation that is a function of p adds nothing. If p is miscalibrated at a new site, a
measure that is merely larger on the side with the errors also beats closeness. Recalibrate first and check
that the gain remains.

Shapes: B scans, R resamples, G groups of equal uncertainty, K points.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ich_mil.evaluate.bootstrap import RESAMPLES, patient_bootstrap, proportion_interval
from ich_mil.evaluate.curves import event_rates, group_sums
from ich_mil.evaluate.scores import patient_keys

CLOSENESS = "closeness of p to ½"
"""Name of the baseline uncertainty, 1 - |2p - 1|."""

DECILES = 10


def uncertainties(probability: np.ndarray, std: np.ndarray) -> dict[str, np.ndarray]:
    """Uncertainties (B,) of scan probabilities by name: `CLOSENESS`, and 'standard deviation' (`std`)."""
    return {CLOSENESS: 1 - np.abs(2 * probability - 1), "standard deviation": std}


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


def _kept(
    loss: np.ndarray, uncertainty: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scans drawn and their loss in each tie group, most certain first, and both cumulated; (G, R) each."""
    drawn, lost = group_sums(loss, uncertainty, counts)
    return drawn, lost, drawn.cumsum(axis=0), lost.cumsum(axis=0)


def resampled_aurc(loss: np.ndarray, uncertainty: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """AURC in each resample (R,), for counts (B, R); tied uncertainties contribute the mean over all orders.

    A tie group of d scans with total loss s, after c scans with total loss t, adds Σ (t + i s/d) / (c + i)
    over i = 1..d, which is s + (t - c s/d) (H(c + d) - H(c)) with the harmonic numbers H.
    """
    drawn, lost, reached, total = _kept(loss, uncertainty, counts)
    harmonic = np.concatenate([[0], np.cumsum(1 / np.arange(1, reached[-1].max() + 1))])
    before = reached - drawn
    span = harmonic[reached.astype(np.int64)] - harmonic[before.astype(np.int64)]
    mean = np.divide(lost, drawn, out=np.zeros_like(lost), where=drawn > 0)
    return (total[-1] + ((total - lost - before * mean) * span).sum(axis=0)) / reached[-1]


def risk_coverage(loss: np.ndarray, uncertainty: np.ndarray) -> RiskCoverage:
    """Risk-coverage curve (Geifman & El-Yaniv 2017) and the area under it.

    Scans of equal uncertainty are kept or rejected together in the curve; the area uses the mean over all
    their orders, so a constant uncertainty equals a random order. `loss` (B,) is any loss, or whether the
    call was wrong; a larger `uncertainty` (B,) means less certain.
    """
    loss, uncertainty = np.asarray(loss, dtype=np.float64), np.asarray(uncertainty, dtype=np.float64)
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

    The interval of an AURC is that of a number between 0 and 1; for an AURC of 0.03 (13 % wrong) its
    simulated coverage is 0.98 with 30 patients and 0.92 with 490. Differences use percentile intervals.

    `loss` (B,) is whether the call was wrong; `measures` are from `uncertainties`. All rows share the
    resamples, so differences are paired.

    Returns:
        One row for each measure: `uncertainty, n, patients, aurc, low, high, random, best, e_aurc,
        difference, difference_low, difference_high, note`. `difference` is the AURC minus that of
        `CLOSENESS`; below 0 is better.
    """
    owner = patient_keys(patients, len(loss))
    loss = np.asarray(loss, dtype=np.float64)

    def statistic(counts: np.ndarray) -> dict[str, np.ndarray]:
        areas = {name: resampled_aurc(loss, values, counts) for name, values in measures.items()}
        return areas | {f"{name} - ": area - areas[CLOSENESS] for name, area in areas.items()}

    intervals = patient_bootstrap(statistic, owner, resamples=resamples, seed=seed)
    n_patients = len(np.unique(owner))
    closeness = risk_coverage(loss, measures[CLOSENESS]).aurc
    rows = []
    for name, values in measures.items():
        found, gap = risk_coverage(loss, values), intervals[f"{name} - "]
        ends = proportion_interval(intervals[name], found.aurc, n_patients)
        note = "one patient: no interval" if n_patients == 1 else ""
        if name != CLOSENESS and not note and np.ptp(loss) == 0:
            gap = replace(gap, low=np.nan, high=np.nan)
            note = "all losses are equal, so no interval of the difference"
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
                "e_aurc": found.aurc - found.aurc_best,
                "difference": found.aurc - closeness,
                "difference_low": gap.low,
                "difference_high": gap.high,
                "note": note,
            }
        )
    return pd.DataFrame(rows)


def error_by_decile(
    wrong: np.ndarray,
    uncertainty: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Error rate by decile of uncertainty: `event_rates` as `uncertainty`, `wrong` and `error_rate`."""
    owner = patient_keys(patients, len(wrong))
    frame = event_rates(uncertainty, wrong, owner, bins=DECILES, seed=seed, resamples=resamples)
    return frame.rename(columns={"value": "uncertainty", "events": "wrong", "rate": "error_rate"})
