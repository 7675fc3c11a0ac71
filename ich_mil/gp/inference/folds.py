"""Stratified cross-validation folds over scans, grouped by patient.

In: labels (B,) and patients (B,). Out: for each fold the indices of its training and held-out scans.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from ich_mil.errors import DataError

Fold = tuple[tuple[int, ...], tuple[int, ...]]
"""Indices of the training scans and of the held-out scans."""


def folds_of(labels: Tensor, patients: Sequence[str] | None, *, folds: int, seed: int) -> list[Fold]:
    """Split scans into folds stratified by label; the scans of a patient stay in one fold.

    Args:
        labels: (B,) in {0, 1}.
        patients: (B,) patient of each scan; None: each scan is a patient of its own.
        folds: number of folds, at least 2.
        seed: seed of the shuffle.

    Returns:
        Training and held-out scans of each fold; every scan is held out once.

    Raises:
        DataError: fewer patients (without `patients`: scans) of a label than folds; a number of patients that
            differs from the number of scans; a missing patient.
    """
    y = labels.cpu().numpy()
    groups = np.arange(len(y)) if patients is None else np.asarray(patients)
    if groups.shape != y.shape:
        raise DataError(f"there are {len(y)} scans, but patients (groups) of shape {groups.shape}")
    missing = np.flatnonzero(pd.isna(groups))
    if len(missing):
        raise DataError(f"scan {missing[0]} has no patient: its entry in groups is {groups[missing[0]]}")
    few = min(len(set(groups[y == label].tolist())) for label in (0, 1))
    if few < folds:
        remedy = "take fewer folds" if few > 1 else "add scans of other patients of that label"
        raise DataError(
            f"{folds} folds need at least {folds} patients of each label, there are {few} of one; {remedy}"
        )
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold  # slow to import

    if len(set(groups.tolist())) == len(y):
        parts = StratifiedKFold(folds, shuffle=True, random_state=seed).split(groups, y)
    else:
        parts = StratifiedGroupKFold(folds, shuffle=True, random_state=seed).split(groups, y, groups)
    return [(tuple(train.tolist()), tuple(held.tolist())) for train, held in parts]
