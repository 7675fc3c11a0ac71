"""Scan and slice scores of one model on one data set, and checks of scores, labels and patients.

Shapes: B scans, N slices (packed), n rows of either.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.sets.labels import UNKNOWN


@dataclass(frozen=True)
class Scores:
    """Scores of one model or baseline for B scans and their N slices; None where the model gives none.

    Attributes:
        name: name of the model in the tables.
        scan: (B,) probability.
        slice: (N,) score; a larger score means a hemorrhage is more likely.
        slice_is_probability: whether `slice` is a probability; if not, only ranking metrics are computed.
        scan_std: (B,) standard deviation over samples.
    """

    name: str
    scan: np.ndarray | None
    slice: np.ndarray | None
    slice_is_probability: bool = False
    scan_std: np.ndarray | None = None


def known_or_none(values: np.ndarray) -> np.ndarray | None:
    """Return None if all values are NaN (how `FeatureSet` marks missing scores), else `values`."""
    values = np.asarray(values)
    return None if np.isnan(values).all() else values


def check_scores(
    labels: np.ndarray, score: np.ndarray, *, what: str, probability: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Check labels (n,) and scores (n,), and convert them to int64 and float64; `what` prefixes errors."""
    labels, score = np.asarray(labels), np.asarray(score, dtype=np.float64)
    if labels.ndim != 1 or labels.shape != score.shape:
        raise ValueError(f"{what}: labels {labels.shape} and scores {score.shape} must be two equal rows")
    strange = ~np.isin(labels, (0, 1, UNKNOWN))
    if strange.any():
        raise DataError(
            f"{what}: a label must be 0, 1 or {UNKNOWN} (unknown), got {labels[strange].tolist()[0]!r}"
        )
    if bad := np.flatnonzero(~np.isfinite(score)).tolist():
        raise DataError(
            f"{what}: {len(bad)} of {len(score)} scores are NaN or infinite, the first is number {bad[0]}"
        )
    if probability and len(score) and (score.min() < 0 or score.max() > 1):
        raise DataError(
            f"{what}: a probability must lie in [0, 1], got {score.min():.9g} to {score.max():.9g}"
        )
    return labels.astype(np.int64), score


def known_scores(
    labels: np.ndarray, score: np.ndarray, *, what: str, probability: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores of the labelled rows, checked by `check_scores`."""
    labels, score = check_scores(labels, score, what=what, probability=probability)
    known = labels != UNKNOWN
    if not known.any():
        raise DataError(f"{what}: none of the {len(labels)} labels is known, so nothing can be measured")
    return labels[known], score[known]


def patient_keys(patients: Sequence[str] | np.ndarray, scans: int | None = None) -> np.ndarray:
    """Check the patient keys of scans and convert them to text, (B,).

    Raises:
        ValueError: the number of patients differs from `scans`.
        DataError: a key is missing. All scans without a key would otherwise count as one patient.
    """
    if scans is not None and len(patients) != scans:
        raise ValueError(f"{len(patients)} patients for {scans} scans")
    if isinstance(patients, np.ndarray) and patients.dtype.kind == "U":
        return patients
    keys = np.asarray(patients, dtype=object)
    missing = np.flatnonzero(pd.isna(keys))
    if len(missing):
        raise DataError(
            f"patients: {len(missing)} of {len(keys)} are {keys[missing[0]]}, the first is number "
            f"{missing[0]}; give each scan without a known patient a key of its own"
        )
    return keys.astype(str)
