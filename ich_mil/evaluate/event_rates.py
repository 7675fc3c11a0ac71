"""Event rate by bin of a predicted value, with 95 % intervals by patient bootstrap.

In: a predicted value for each scan, a binary outcome, and the patient of the scan. Out: a data frame with a
row for each filled bin.

Shapes: B scans, K filled bins.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.evaluate.bootstrap import RESAMPLES, patient_bootstrap, proportion_interval
from ich_mil.evaluate.metrics import CALIBRATION_BINS, equal_mass, known_scores, patient_keys


def event_rates(
    value: np.ndarray, event: np.ndarray, patients: np.ndarray, *, bins: int, seed: int, resamples: int
) -> pd.DataFrame:
    """Event rate in equal-mass bins of the values, which are fixed in the resamples.

    Returns:
        A row for each filled bin, lowest value first; columns `bin`, `n`, `value` (mean), `patients`,
        `events`, `rate`, and its interval `low` to `high`, which resamples the patients of the bin (NaN for
        one patient).
    """
    rows = []
    place = equal_mass(value, bins)
    for number in np.unique(place):
        here = place == number
        events, owner = event[here], patients[here]
        n_patients, rate = len(np.unique(owner)), float(events.mean())

        def statistic(counts: np.ndarray, events: np.ndarray = events) -> dict[str, np.ndarray]:
            return {"rate": events @ counts / counts.sum(axis=0)}

        resampled = patient_bootstrap(statistic, owner, resamples=resamples, seed=seed)["rate"]
        ends = proportion_interval(resampled, rate, n_patients)
        mean = float(value[here].mean())
        rows.append(
            (int(number), len(events), mean, n_patients, int(events.sum()), rate, ends.low, ends.high)
        )
    return pd.DataFrame(rows, columns=["bin", "n", "value", "patients", "events", "rate", "low", "high"])


def calibration_table(
    labels: np.ndarray,
    probability: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Fraction of positive scans in the equal-mass bins of the calibration error.

    Unlabelled scans are left out.

    Returns:
        `event_rates` with the columns `probability`, `positives` and `share` for value, events and rate.

    Raises:
        DataError: no label is known; a probability is NaN or outside [0, 1]; a scan has no patient.
    """
    owner = patient_keys(patients, len(labels))[np.asarray(labels) != UNKNOWN]
    labels, probability = known_scores(labels, probability, what="calibration", probability=True)
    frame = event_rates(probability, labels, owner, bins=CALIBRATION_BINS, seed=seed, resamples=resamples)
    return frame.rename(columns={"value": "probability", "events": "positives", "rate": "share"})
