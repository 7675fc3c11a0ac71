"""Alarm rate of the drift test within one site: false alarms, and power for shifted features.

Shapes: B scans, N slices, D features.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from ich_mil.evaluate.deployment.drift import DriftAlarm, column_names, summarise

BATCH = 20
"""Number of patients in a batch; the other patients are the reference."""
DRAWS = 100
STEPS = (0.0, 0.01, 0.02, 0.05, 0.25)
"""Step sizes: the shift of every feature of a batch, in standard deviations over scans."""


def alarm_rates(
    x: np.ndarray, offsets: np.ndarray, scores: np.ndarray, patients: Sequence[str], *, seed: int
) -> pd.DataFrame:
    """Test batches of random patients against all other patients, with original and with shifted features.

    `x` (N, D) are slice features, `offsets` (B + 1,); the scan scores (B,) are not shifted.

    Returns:
        Columns `step`, `draws`, `rings` (number of alarms), `share` (their rate), and `low` and `high`, its
        interval over further draws from the same scans.
    """
    table, names = summarise(x, offsets), column_names(x.shape[1])
    owner = np.unique(patients, return_inverse=True)[1]
    deviation = np.zeros(table.shape[1])
    deviation[: x.shape[1]] = table[:, : x.shape[1]].std(axis=0)  # a step shifts the means only
    generator = np.random.default_rng(seed)
    rings = dict.fromkeys(STEPS, 0)
    for _ in range(DRAWS):
        batch = np.isin(owner, generator.permutation(owner.max() + 1)[:BATCH])
        alarm = DriftAlarm.fit(table[~batch], scores[~batch], owner[~batch], names=names, seed=seed)
        for step in STEPS:
            rings[step] += alarm.test(table[batch] + step * deviation, scores[batch], owner[batch]).alarm
    rows = []
    for step, count in rings.items():
        low, high = binomtest(count, DRAWS).proportion_ci()
        rows.append((step, DRAWS, count, count / DRAWS, low, high))
    return pd.DataFrame(rows, columns=["step", "draws", "rings", "share", "low", "high"])
