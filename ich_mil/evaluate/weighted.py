"""The metrics of `metrics.py` for many resamples at once.

A resample is how often each row was drawn, so every metric is a weighted one: sort once, then sums over tie
groups. With all counts 1 each function gives the single number of `metrics.py`; tests hold them to that and
to scikit-learn on the repeated rows.

Shapes: n rows (scans or slices), R resamples, G groups of equal score, K bins. Counts are (n, R), so
that sums over rows are one sparse product; slices of whole data sets stay affordable.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from ich_mil.evaluate.metrics import CALIBRATION_BINS, OPERATING_POINTS, POINT_NAMES, THRESHOLD


def divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The quotient, NaN where `below` is 0."""
    return np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below != 0)


def _sums(group: np.ndarray, weight: np.ndarray, counts: np.ndarray, n_groups: int) -> np.ndarray:
    """Weighted sum of counts (n, R) over the rows of each group: (n_groups, R)."""
    rows = np.arange(len(group))
    return csr_matrix((weight.astype(np.float64), (group, rows)), shape=(n_groups, len(group))) @ counts


@dataclass(frozen=True)
class _Descent:
    """Rows called positive, and those rightly, from high scores to low at the G tie groups with a positive.

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
    """`labels` must hold a positive."""
    tie = np.unique(-score, return_inverse=True)[1]  # (n,) tie group, 0 = highest
    groups = np.unique(tie[labels == 1])  # (G,) those that hold a positive
    # row by row from the highest score: stretch 2g lies between groups g - 1 and g, stretch 2g + 1 is group g
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
    """AUC and average precision.

    From high scores to low, tie group g holds P_g positives and Q_g negatives (as drawn):

        AUC = 1 - Σ_g P_g (Σ_{h<g} Q_h + ½ Q_g) / (P Q)
        AP  = Σ_g P_g/P · Σ_{h≤g} P_h / Σ_{h≤g} (P_h + Q_h)

    Only groups that hold a positive add to either, and negatives enter through one cumulative sum.

    Args:
        labels: (n,) in {0, 1}.
        score: (n,).
        counts: (n, R) how often each row was drawn.

    Returns:
        `auc` and `ap`, (R,), NaN where a resample holds one class only.
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
    """`metrics.operating_points` in each resample, its thresholds chosen anew in each.

    Sensitivity rises only at the end of a tie group that holds a positive, and the best specificity for a
    given sensitivity stands there too, so these ends (and "none called") are all the thresholds needed.

    Args:
        labels: (n,) in {0, 1}.
        score: (n,).
        counts: (n, R) how often each row was drawn.

    Returns:
        One (R,) a name; NaN where a resample holds one class only.
    """
    points = {name: np.full(counts.shape[1], np.nan) for name in POINT_NAMES}
    if not labels.any():
        return points
    down = _descent(labels, score, counts)
    positives = down.found[-1]  # (R,)
    negatives = down.total - positives  # (R,)
    spared = negatives - (down.called - down.found)  # (G, R) negatives that are not called
    both = (positives > 0) & (negatives > 0)  # (R,)
    sensitivity = down.found[:, both] / positives[both]  # (G, those with both)
    specificity = spared[:, both] / negatives[both]
    for x in OPERATING_POINTS:  # calling none always reaches the specificity, at a sensitivity of 0
        reached = np.where(specificity >= x / 100, sensitivity, 0)
        points[f"sensitivity_at_{x}"][both] = reached.max(axis=0)
        reached = np.where(sensitivity >= x / 100, specificity, 0)
        points[f"specificity_at_{x}"][both] = reached.max(axis=0)
    return points


def resampled_ece(
    labels: np.ndarray, probability: np.ndarray, counts: np.ndarray, *, bins: int = CALIBRATION_BINS
) -> np.ndarray:
    """Calibration error (R,), its bins drawn anew in each resample; see `metrics.calibration_bins`."""
    values, tie = np.unique(probability, return_inverse=True)  # (G,), (n,)
    drawn = _sums(tie, np.ones(len(tie)), counts, len(values))  # (G, R)
    gap = _sums(tie, probability - labels, counts, len(values))  # (G, R)
    total = drawn.sum(axis=0)  # (R,)
    # whole numbers below 2⁵³, so the quotient never rounds up to the next bin
    place = (bins * (2 * drawn.cumsum(axis=0) - drawn) / (2 * total)).astype(np.int64).clip(max=bins - 1)
    place += bins * np.arange(counts.shape[1])  # (G, R)
    gaps = np.bincount(place.ravel(), weights=gap.ravel(), minlength=bins * counts.shape[1])
    return np.abs(gaps.reshape(-1, bins)).sum(axis=1) / total


def resampled_losses(
    labels: np.ndarray, probability: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """`log_loss` and `brier` of each resample, each (R,); arguments as `resampled_ranking`."""
    tiny = np.finfo(np.float64).eps  # scikit-learn's own limit
    right = np.where(labels == 1, probability, 1 - probability).clip(tiny, 1 - tiny)
    total = counts.sum(axis=0)
    return {
        "log_loss": -np.log(right) @ counts / total,
        "brier": (probability - labels) ** 2 @ counts / total,
    }


def resampled_slice_probability_metrics(
    labels: np.ndarray, probability: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """The metrics of `metrics.slice_probability_metrics` in each resample; as `resampled_scan_metrics`."""
    return {
        **resampled_losses(labels, probability, counts),
        "ece": resampled_ece(labels, probability, counts),
    }


def resampled_recall(labels: np.ndarray, called: np.ndarray, counts: np.ndarray, kind: int) -> np.ndarray:
    """Share (R,) of the scans of one class, `kind`, that are called rightly; NaN where there is none."""
    right = ((labels == kind) & (called == kind)).astype(np.float64) @ counts  # (R,)
    return divide(right, (labels == kind).astype(np.float64) @ counts)


def resampled_predictive_values(
    labels: np.ndarray, probability: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """`metrics.predictive_values` of each resample, each (R,); arguments as `resampled_ranking`."""
    called = (probability >= THRESHOLD).astype(np.int64)
    positives, total = labels.astype(np.float64) @ counts, counts.sum(axis=0)  # (R,)
    both = (positives > 0) & (positives < total)
    # calls and labels change places: of what is called so, how much is so
    return {
        name: np.where(both, resampled_recall(called, labels, counts, kind), np.nan)
        for name, kind in (("ppv", 1), ("npv", 0))
    }


def resampled_scan_metrics(
    labels: np.ndarray, probability: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """The metrics of `metrics.scan_metrics` in each resample, each (R,); arguments as `resampled_ranking`."""
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
