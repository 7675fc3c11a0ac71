"""Stratified cross-validation folds over scans, grouped by patient.

In: labels (B,) and patients (B,). Out: for each fold the indices of its training and held-out scans.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ich_mil.errors import DataError, ScanError
from ich_mil.gp.bags import Bags
from ich_mil.gp.predict import FURTHEST

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
        splits = StratifiedKFold(folds, shuffle=True, random_state=seed).split(groups, y)
    else:
        splits = StratifiedGroupKFold(folds, shuffle=True, random_state=seed).split(groups, y, groups)
    return [(tuple(train.tolist()), tuple(held.tolist())) for train, held in splits]


def check_distances(train: Bags, folds: Sequence[Fold]) -> None:
    """Raise `ScanError` for a feature further than `FURTHEST` from the slices of the other folds."""
    centre = train.x.median(0).values.double()  # keeps sums of squares exact beside a value far out
    by_fold = [train.take(out).x.double() - centre for _, out in folds]
    sums = torch.stack([torch.stack([y.sum(0), y.square().sum(0)]) for y in by_fold])  # (F, 2, D)
    for f, (y, (_, out)) in enumerate(zip(by_fold, folds, strict=True)):
        others = [g for g in range(len(folds)) if g != f]
        mean, square = sums[others].sum(0) / sum(len(by_fold[g]) for g in others)
        std = (square - mean.square()).clamp(min=0.0).sqrt()
        away = (y - mean).abs() / torch.where(std <= 1e-12 * centre.abs(), 1.0, std)
        if bool((away <= FURTHEST).all()):
            continue
        n, d = divmod(int((away > FURTHEST).flatten().nonzero()[0]), away.shape[1])
        ends = train.take(out).offsets.tolist()
        b = next(b for b, end in enumerate(ends[1:]) if n < end)
        reason = (
            f"feature {d} of slice {n - ends[b]} lies {float(away[n, d]):.1e} deviations from the slices of "
            "the other folds; correct it, or leave the slice out"
        )
        raise ScanError(out[b], reason)
