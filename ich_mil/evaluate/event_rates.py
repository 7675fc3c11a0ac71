"""Event rate by bin of a predicted value: positives by probability, errors by uncertainty.

In: a predicted value for each scan, a binary outcome, and the patient of the scan. Out: a data frame with a
row for each bin: the event rate and its 95 % interval by patient bootstrap.

Shapes: B scans, K filled bins.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.evaluate.bootstrap import RESAMPLES, of_proportion, patient_bootstrap
from ich_mil.evaluate.metrics import CALIBRATION_BINS, equal_mass, known_scores, patient_keys
from ich_mil.evaluate.uncertainty import scan_rows

DECILES = 10
"""Number of bins of uncertainty in `error_by_decile`."""


def _shares(
    value: np.ndarray, so: np.ndarray, patients: np.ndarray, *, bins: int, seed: int, resamples: int
) -> pd.DataFrame:
    """Event rate in equal-mass bins of the values.

    The bins are fixed; the interval (`of_proportion`) resamples the patients of a bin.

    Returns:
        Columns `bin`, `n`, `mean` of the values, `patients`, `so` (number of events), `share` (event rate),
        `low` and `high`.
    """
    rows = []
    place = equal_mass(value, bins)
    for number in np.unique(place):
        here = place == number
        about = {"bin": int(number), "n": int(here.sum()), "mean": float(value[here].mean())}
        rows.append(about | _share(so[here], patients[here], seed=seed, resamples=resamples))
    return pd.DataFrame(rows)


def _share(so: np.ndarray, patients: np.ndarray, *, seed: int, resamples: int) -> dict[str, float]:
    def statistic(counts: np.ndarray) -> dict[str, np.ndarray]:
        return {"share": so @ counts / counts.sum(axis=0)}

    share, behind = float(so.mean()), len(np.unique(patients))
    resampled = patient_bootstrap(statistic, patients, resamples=resamples, seed=seed)
    ends = of_proportion(resampled["share"], share, behind)
    return {"patients": behind, "so": int(so.sum()), "share": share, "low": ends.low, "high": ends.high}


def calibration_table(
    labels: np.ndarray,
    probability: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Fraction of positive scans in the equal-mass bins of the calibration error (`metrics.equal_mass`).

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        probability: (B,) in [0, 1].
        patients: B patient keys; the interval of a bin resamples the patients of that bin.
        seed: seed of the resampling.
        resamples: number of resamples behind each interval.

    Returns:
        K rows, lowest probability first; columns `bin`, `n`, `probability` (mean), `patients`, `positives`,
        `share` (fraction of positives), and its 95 % interval `low` to `high`, which is NaN for a single
        patient.

    Raises:
        DataError: no label is known; a probability is NaN or outside [0, 1]; a scan has no patient.
        ValueError: the lengths do not match.
    """
    owner = patient_keys(patients, len(labels))
    known = np.asarray(labels) != UNKNOWN
    labels, probability = known_scores(labels, probability, what="calibration", probability=True)
    frame = _shares(probability, labels, owner[known], bins=CALIBRATION_BINS, seed=seed, resamples=resamples)
    return frame.rename(columns={"mean": "probability", "so": "positives"})


def error_by_decile(
    wrong: np.ndarray,
    uncertainty: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    *,
    bins: int = DECILES,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Error rate in equal-mass bins of uncertainty; equal uncertainties share a bin.

    Args:
        wrong: (B,) whether the call was wrong.
        uncertainty: (B,).
        patients: B patient keys; the interval of a bin resamples the patients of that bin.
        bins: largest number of bins.
        seed: seed of the resampling.
        resamples: number of resamples behind each interval.

    Returns:
        K rows, lowest uncertainty first; columns `bin`, `n`, `uncertainty` (mean), `patients`, `wrong`,
        `error_rate`, and its 95 % interval `low` to `high`, which is NaN for a single patient.

    Raises:
        DataError: there is no scan; a value is not finite; a scan has no patient.
        ValueError: the lengths do not match, or `wrong` is not boolean.
    """
    wrong, uncertainty = scan_rows(wrong=wrong, uncertainty=uncertainty)
    if not np.isin(wrong, (0, 1)).all():
        raise ValueError("wrong must be true or false for each scan; `risk_coverage` takes other losses")
    owner = patient_keys(patients, len(wrong))
    frame = _shares(uncertainty, wrong, owner, bins=bins, seed=seed, resamples=resamples)
    return frame.rename(columns={"mean": "uncertainty", "so": "wrong", "share": "error_rate"})
