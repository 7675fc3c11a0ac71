"""Result table of all models and baselines on one data set, with intervals by patient bootstrap.

In: the scores of each model on the same scans, with labels and patients of the scans. Out: a tidy data frame
with one row for each number, the content of `metrics.csv`; `show.py` formats it for reading.

Shapes: B scans, N slices (packed).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ich_mil.data.labels import UNKNOWN, name_some
from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import RESAMPLES
from ich_mil.evaluate.metrics import patient_keys
from ich_mil.evaluate.model_metrics import Repeat, measure

COLUMNS = ["model", "level", "metric", "value", "low", "high", "n", "positives", "patients", "unlabelled"]
COLUMNS += ["resamples", "ignored", "note"]

_NUMBERS = ("value", "low", "high")


@dataclass(frozen=True)
class Scores:
    """Scores of one model or baseline for B scans and their N slices.

    Attributes:
        name: name of the model in the tables.
        scan: (B,) probability, or None if the model gives no scan scores.
        slice: (N,) score, or None if the model gives no slice scores.
        slice_is_probability: whether `slice` is a probability; if not, only ranking metrics are computed.
    """

    name: str
    scan: np.ndarray | None
    slice: np.ndarray | None
    slice_is_probability: bool = False


def evaluate(
    scores: Sequence[Scores],
    *,
    labels: np.ndarray,
    patients: Sequence[str],
    offsets: np.ndarray,
    slice_labels: np.ndarray | None = None,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Compute the metrics of every model on the same scans.

    Args:
        scores: the models and baselines, in the order of the table; names must differ.
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out and counted.
        patients: B patient keys; the intervals resample patients.
        offsets: (B + 1,) scan b owns slices `offsets[b]:offsets[b + 1]`.
        slice_labels: (N,) in {0, 1} or `UNKNOWN`; None if no slice is labelled.
        seed: seed of the resampling; all models share the resamples.
        resamples: number of resamples behind each interval.

    Returns:
        One row for each number, with the columns `COLUMNS`: `model`, `level` ('scan', 'slice' or 'slice
        inside positive scans'), `metric`, `value`, `low`, `high`, `n` (number of scans or slices; scans for
        the last level), `positives` and `patients` among them, the number `unlabelled` that is left out,
        `resamples`, the number of resamples `ignored` because the metric is not defined in them, and `note`:
        the reason if `value` is NaN, else empty.

    Raises:
        DataError: a score is NaN or infinite, or a probability is outside [0, 1] (the message names the
            model); a scan has no patient.
        ValueError: sizes do not match, or names are not unique.
    """
    labels, offsets, owner = np.asarray(labels), np.asarray(offsets), patient_keys(patients)
    if not len(labels) == len(owner) == len(offsets) - 1:
        raise ValueError(f"{len(labels)} labels, {len(owner)} patients and {len(offsets)} offsets do not fit")
    truth = np.full(offsets[-1], UNKNOWN) if slice_labels is None else np.asarray(slice_labels)
    if len(truth) != offsets[-1]:
        raise ValueError(f"{len(truth)} slice labels for {offsets[-1]} slices")
    names = [one.name for one in scores]
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"need at least one model, each under its own name, got {names}")
    rows = [
        {**asdict(number.rows), **vars(number), "model": one.name, "value": number.values[0]}
        for one in scores
        for number in measure(
            [Repeat(labels, owner, offsets, truth, one.scan, one.slice)],
            name=one.name,
            slice_is_probability=one.slice_is_probability,
            seed=seed,
            resamples=resamples,
        )
    ]
    return pd.DataFrame(rows).assign(resamples=resamples)[COLUMNS]


def read_table(path: Path) -> pd.DataFrame:
    """Read a table of `evaluate` that was written with `to_csv(path, index=False)`.

    Raises:
        DataError: the file does not exist or is not a result table.
    """
    texts = {"model": str, "level": str, "metric": str, "note": str}
    try:
        frame = pd.read_csv(
            path, dtype=texts, keep_default_na=False, na_values={name: [""] for name in _NUMBERS}
        )
        if missing := [name for name in COLUMNS if name not in frame]:
            raise ValueError(f"column {name_some(missing)} is missing")
        return frame[COLUMNS].astype(dict.fromkeys(_NUMBERS, np.float64))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a result table ({error}); validate again") from error
