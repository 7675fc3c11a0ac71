"""One model on one set, for several seeds: mean, spread over seeds, and an interval over patients.

Two kinds of chance are kept apart. Another seed (folds, inducing points, a network's first weights) gives
another number on the same scans: `std` is its standard deviation over seeds. Other patients give another
number from the same models: `low` and `high` bound 95 % of resamples of patients, each number being the mean
over the seeds. A paper that gives mean ± std over splits mixes the two.

Shapes: B scans, N slices (packed), S seeds, R resamples.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd

from ich_mil.evaluate.levels import Repeat, measure

COLUMNS = ["level", "metric", "mean", "std", "low", "high", "seeds", "n", "positives", "patients", "note"]


def over_seeds(
    repeats: Sequence[Repeat], *, name: str, slice_is_probability: bool, seed: int, resamples: int
) -> pd.DataFrame:
    """Metrics of scans and slices.

    Args:
        repeats: S runs on the same patients, scans in the same order.
        name: of the model, for messages.
        slice_is_probability: whether slice scores are probabilities; if not, only their ranks are measured.
        seed: of the resampling.
        resamples: R.

    Returns:
        One row a metric, with the columns `COLUMNS`; `note` says why a number is absent.

    Raises:
        DataError: as `levels.measure`.
        ValueError: likewise.
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
