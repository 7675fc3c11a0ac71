"""Metrics of `metrics.py` for many bootstrap resamples at once.

In: labels (n,) in {0, 1}, scores (n,) and counts (n, R), how often each row was drawn. Out: the value of each
metric in each resample (R,), computed as a weighted metric: scores are sorted once, then counts are summed
over tie groups by one sparse product. With all counts 1 each function returns the number of `metrics.py`.

Shapes: n rows (scans or slices), R resamples, G groups of equal score.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from ich_mil.evaluate.metrics import CALIBRATION_BINS, OPERATING_POINTS, POINT_NAMES, THRESHOLD


def divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Quotient of two arrays, NaN where `below` is 0."""
    return np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below != 0)


def _sums(group: np.ndarray, weight: np.ndarray, counts: np.ndarray, n_groups: int) -> np.ndarray:
    """Weighted sums (n_groups, R) of counts (n, R) over the rows of each group."""
    rows = np.arange(len(group))
    return csr_matrix((weight.astype(np.float64), (group, rows)), shape=(n_groups, len(group))) @ counts


@dataclass(frozen=True)
class _Descent:
    """Cumulative counts over the G tie groups that contain a positive, from the highest score to the lowest.

    Attributes:
        before: (G, R) rows above the group.
        called: (G, R) rows down to the end of the group.
        positives: (G, R) positives in the group.
        found: (G, R) positives down to the end of the group.
        total: (R,) all rows.
    """

    before: np.ndarray
    called: np.ndarray
    positives: np.ndarray
    found: np.ndarray
    total: np.ndarray


def _descent(labels: np.ndarray, score: np.ndarray, counts: np.ndarray) -> _Descent:
    """Cumulative counts of a ranking; `labels` must contain a positive."""
    tie = np.unique(-score, return_inverse=True)[1]  # (n,) tie group, 0 = highest
    groups = np.unique(tie[labels == 1])  # (G,) tie groups with a positive
    # in order of falling score, stretch 2g lies between groups g - 1 and g, and stretch 2g + 1 is group g
    stretch = np.searchsorted(groups, tie, side="left") + np.searchsorted(groups, tie, side="right")  # (n,)
    reached = _sums(stretch, np.ones(len(score)), counts, 2 * len(groups) + 1).cumsum(axis=0)  # (2G + 1, R)
    positives = _sums(stretch, labels, counts, 2 * len(groups) + 1)[1::2]  # (G, R)
    return _Descent(
        before=reached[:-1:2],
        called=reached[1::2],
        positives=positives,
        found=positives.cumsum(axis=0),
        total=reached[-1],
    )


def resampled_ranking(labels: np.ndarray, score: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """AUC and average precision in each resample.

    In order of falling score, tie group g has P_g positives and Q_g negatives, counted as drawn:

        AUC = 1 - Σ_g P_g (Σ_{h<g} Q_h + ½ Q_g) / (P Q)
        AP  = Σ_g P_g/P · Σ_{h≤g} P_h / Σ_{h≤g} (P_h + Q_h)

    Only groups with a positive contribute to either sum; negatives enter through one cumulative sum.
    `auc` and `ap` are NaN where a resample has one class only.
    """
    if not labels.any():
        return {name: np.full(counts.shape[1], np.nan) for name in ("auc", "ap")}
    down = _descent(labels, score, counts)
    P, found = down.positives, down.found  # (G, R)
    total = found[-1]  # (R,)
    # Σ_{h<g} Q_h = before - (found - P),  Q_g = called - before - P
    above = down.before - (found - P) + (down.called - down.before - P) / 2  # (G, R)
    precision = np.divide(found, down.called, out=np.zeros_like(found), where=down.called > 0)
    return {
        "auc": 1 - divide((P * above).sum(axis=0), total * (down.total - total)),
        "ap": np.where(total < down.total, divide((P * precision).sum(axis=0), total), np.nan),
    }


def resampled_operating_points(
    labels: np.ndarray, score: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """`metrics.operating_points` in each resample, with the thresholds chosen anew in each.

    The ends of tie groups that contain a positive, and the threshold that calls no scan, are all thresholds
    that are needed. NaN where a resample has one class only.
    """
    points = {name: np.full(counts.shape[1], np.nan) for name in POINT_NAMES}
    if not labels.any():
        return points
    down = _descent(labels, score, counts)
    positives = down.found[-1]  # (R,)
    negatives = down.total - positives  # (R,)
    spared = negatives - (down.called - down.found)  # (G, R) negatives that are not called positive
    both = (positives > 0) & (negatives > 0)  # (R,)
    sensitivity = down.found[:, both] / positives[both]  # (G, resamples with both classes)
    specificity = spared[:, both] / negatives[both]
    for x in OPERATING_POINTS:  # calling no scan has specificity 1, sensitivity 0
        reached = np.where(specificity >= x / 100, sensitivity, 0)
        points[f"sensitivity_at_{x}"][both] = reached.max(axis=0)
        reached = np.where(sensitivity >= x / 100, specificity, 0)
        points[f"specificity_at_{x}"][both] = reached.max(axis=0)
    return points


def resampled_ece(labels: np.ndarray, probability: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Expected calibration error, with new bins in each resample; see `metrics.equal_mass`."""
    values, tie = np.unique(probability, return_inverse=True)  # (G,), (n,)
    drawn = _sums(tie, np.ones(len(tie)), counts, len(values))  # (G, R)
    gap = _sums(tie, probability - labels, counts, len(values))  # (G, R)
    total = drawn.sum(axis=0)  # (R,)
    bins = CALIBRATION_BINS
    # the operands are integers below 2⁵³, so the quotient cannot round up to the next bin
    place = (bins * (2 * drawn.cumsum(axis=0) - drawn) / (2 * total)).astype(np.int64).clip(max=bins - 1)
    place += bins * np.arange(counts.shape[1])  # (G, R)
    gaps = np.bincount(place.ravel(), weights=gap.ravel(), minlength=bins * counts.shape[1])
    return np.abs(gaps.reshape(-1, bins)).sum(axis=1) / total


def resampled_losses(
    labels: np.ndarray, probability: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """`log_loss` and `brier` in each resample."""
    tiny = np.finfo(np.float64).eps  # as in scikit-learn
    right = np.where(labels == 1, probability, 1 - probability).clip(tiny, 1 - tiny)
    total = counts.sum(axis=0)
    return {
        "log_loss": -np.log(right) @ counts / total,
        "brier": (probability - labels) ** 2 @ counts / total,
    }


def resampled_slice_probability_metrics(
    labels: np.ndarray, probability: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """`metrics.slice_probability_metrics` in each resample."""
    return {
        **resampled_losses(labels, probability, counts),
        "ece": resampled_ece(labels, probability, counts),
    }


def resampled_recall(labels: np.ndarray, called: np.ndarray, counts: np.ndarray, kind: int) -> np.ndarray:
    """Recall of class `kind`: the fraction of its scans that are called so; NaN if it has no scan."""
    right = ((labels == kind) & (called == kind)).astype(np.float64) @ counts  # (R,)
    return divide(right, (labels == kind).astype(np.float64) @ counts)


def resampled_predictive_values(
    labels: np.ndarray, probability: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """`metrics.predictive_values` in each resample."""
    called = (probability >= THRESHOLD).astype(np.int64)
    positives, total = labels.astype(np.float64) @ counts, counts.sum(axis=0)  # (R,)
    both = (positives > 0) & (positives < total)
    # precision is recall with calls and labels exchanged
    return {
        name: np.where(both, resampled_recall(called, labels, counts, kind), np.nan)
        for name, kind in (("ppv", 1), ("npv", 0))
    }


def resampled_scan_metrics(
    labels: np.ndarray, probability: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """`metrics.scan_metrics` in each resample."""
    called = (probability >= THRESHOLD).astype(np.int64)
    sensitivity, specificity = (resampled_recall(labels, called, counts, kind) for kind in (1, 0))
    f1 = divide(2.0 * (called * labels) @ counts, (called + labels).astype(np.float64) @ counts)
    return {
        **resampled_ranking(labels, probability, counts),
        **resampled_operating_points(labels, probability, counts),
        "accuracy": (called == labels).astype(np.float64) @ counts / counts.sum(axis=0),
        "sensitivity": sensitivity,
        "specificity": specificity,
        "balanced_accuracy": (sensitivity + specificity) / 2,
        "f1": np.where(np.isnan(sensitivity), np.nan, f1),
        **resampled_losses(labels, probability, counts),
        "ece": resampled_ece(labels, probability, counts),
    }
