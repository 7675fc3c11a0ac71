"""How often the drift alarm rings within one site: falsely, and where features have moved by a known step.

In: scans that the model was not fitted to. Out: a table with one row a step.

Shapes: B scans, N slices, D features.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from ich_mil.evaluate.drift import DriftAlarm, column_names, summarise

BATCH = 20
"""Patients of a batch; the others are the reference."""
DRAWS = 100
STEPS = (0.0, 0.01, 0.02, 0.05, 0.25)
"""Every feature of a batch is moved by so many of its deviations over scans."""


def alarm_rates(
    x: np.ndarray, offsets: np.ndarray, scores: np.ndarray, patients: Sequence[str], *, seed: int
) -> pd.DataFrame:
    """Test random patients against all others, as they are and with their features moved.

    Args:
        x: (N, D) slice features.
        offsets: (B + 1,).
        scores: (B,) scan scores; they are not moved.
        patients: B patient keys.
        seed: of the draws.

    Returns:
        Columns `step`, `draws`, `rings`, `share`, and `low` and `high`, 95 % for more draws from these scans.

    Raises:
        DataError: as in `DriftAlarm.fit` and `test`: `BATCH` patients leave too few others.
    """
    table, names = summarise(x, offsets), column_names(x.shape[1])
    owner = np.unique(patients, return_inverse=True)[1]
    deviation = np.zeros(table.shape[1])
    deviation[: x.shape[1]] = table[:, : x.shape[1]].std(axis=0)  # a step moves means and no spread
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
