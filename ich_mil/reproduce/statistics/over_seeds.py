"""Metrics of one model over several seeds: mean, standard deviation over seeds, and interval by patient.

In: the scores of each run (`Repeat`). Out: a data frame with one row for each metric. Two sources of
variation are reported separately. Another seed (folds, inducing points, initial weights of a network) gives
another number on the same scans: `std` is the standard deviation over seeds. Other patients give another
number with the same models: `low` and `high` are the 95 % interval of the mean over seeds, by resampling
patients. A mean ± std over splits, as papers report it, mixes the two.

Shapes: B scans, N slices (packed), S seeds, R resamples.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd

from ich_mil.evaluate.model_metrics import Repeat, measure

COLUMNS = ["level", "metric", "mean", "std", "low", "high", "seeds", "n", "positives", "patients", "note"]


def over_seeds(
    repeats: Sequence[Repeat], *, name: str, slice_is_probability: bool, seed: int, resamples: int
) -> pd.DataFrame:
    """Compute scan and slice metrics over several seeds.

    Args:
        repeats: S runs on the same patients, with scans in the same order.
        name: name of the model, for messages.
        slice_is_probability: whether slice scores are probabilities; if not, only ranking metrics are
            computed.
        seed: seed of the resampling.
        resamples: R.

    Returns:
        One row for each metric, with the columns `COLUMNS`; `note` says why a number is missing.

    Raises:
        DataError: as `levels.measure`.
        ValueError: as `levels.measure`.
    """
    numbers = measure(
        repeats, name=name, slice_is_probability=slice_is_probability, seed=seed, resamples=resamples
    )
    rows = [
        {
            **asdict(number.rows),
            **vars(number),
            "mean": number.values.mean(),
            "std": number.values.std(ddof=1) if len(repeats) > 1 else np.nan,
            "seeds": len(repeats),
        }
        for number in numbers
    ]
    return pd.DataFrame(rows)[COLUMNS]
