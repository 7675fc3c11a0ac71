"""Value of each metric in many bootstrap resamples at once, from labels, scores and counts.

A value is that of a weighted metric: scores are sorted once, then counts are summed over groups of equal
score by one sparse product. With all counts 1 it equals scikit-learn's. A metric that is not defined (one
class only) is NaN. `metrics.py` holds the table of the metrics.

Shapes: n rows (scans or slices), R resamples, G groups of equal score.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np
from scipy.sparse import csr_matrix
from scipy.stats import rankdata

from ich_mil.evaluate.calibration_line import calibration_line
from ich_mil.ledger import THRESHOLD

CALIBRATION_BINS = 10
"""Number of equal-mass bins of the expected calibration error (ECE)."""


def divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Quotient of two arrays, NaN where `below` is 0."""
    return np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below != 0)


def equal_mass(values: np.ndarray, bins: int) -> np.ndarray:
    """Bin number (B,), from 0, of each value, in bins that hold about equally many values.

    The value with mid-rank r (from 1, averaged over ties) goes to bin floor(bins · (r - ½) / B). Equal values
    therefore share a bin, and the order of the scans does not matter.
    """
    # the operands are integers below 2⁵³, so the division cannot round across a bin boundary
    return (bins * (2 * rankdata(values) - 1) // (2 * len(values))).astype(np.int64)


def _sums(group: np.ndarray, weight: np.ndarray, counts: np.ndarray, n_groups: int) -> np.ndarray:
    """Weighted sums (n_groups, R) of counts (n, R) over the rows of each group."""
    rows = np.arange(len(group))
    return csr_matrix((weight.astype(np.float64), (group, rows)), shape=(n_groups, len(group))) @ counts


@dataclass(frozen=True)
class Ranking:
    """Cumulative counts over the G tie groups that contain a positive, from the highest score to the lowest.

    Attributes:
        before: (G, R) rows above the group.
        called: (G, R) rows down to the end of the group.
        positives: (G, R) positives in the group.
        tp: (G, R) positives down to the end of the group.
    """

    before: np.ndarray
    called: np.ndarray
    positives: np.ndarray
    tp: np.ndarray


class Sample:
    """Rows of labels (n,) in {0, 1} and scores (n,), each drawn `counts` (n, R) times.

    Quantities that several metrics share are computed once.
    """

    def __init__(self, labels: np.ndarray, score: np.ndarray, counts: np.ndarray) -> None:
        self.labels, self.score, self.counts = labels, score, counts
        self.total = counts.sum(axis=0)  # (R,)
        self.positives = labels.astype(np.float64) @ counts  # (R,)
        self.called = score >= THRESHOLD  # (n,)

    @property
    def both(self) -> np.ndarray:
        """(R,) whether a resample holds both classes."""
        return (self.positives > 0) & (self.positives < self.total)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Mean (R,) of values (n,)."""
        return values.astype(np.float64) @ self.counts / self.total

    def share(self, among: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Fraction (R,) of the rows `among` (n,) bool that are in `rows` (n,) bool."""
        masks = ((among & rows).astype(np.float64), among.astype(np.float64))
        return divide(*(mask @ self.counts for mask in masks))

    @cached_property
    def ranking(self) -> Ranking:
        """Cumulative counts of the rows by falling score."""
        tie = np.unique(-self.score, return_inverse=True)[1]  # (n,) tie group, 0 = highest
        groups = np.unique(tie[self.labels == 1])  # (G,) tie groups with a positive
        # by falling score, stretch 2g lies between groups g - 1 and g, and stretch 2g + 1 is group g
        stretch = np.searchsorted(groups, tie, side="left") + np.searchsorted(groups, tie, side="right")
        sums = partial(_sums, stretch, counts=self.counts, n_groups=2 * len(groups) + 1)
        reached = sums(np.ones(len(tie))).cumsum(axis=0)  # (2G + 1, R)
        positives = sums(self.labels)[1::2]  # (G, R)
        return Ranking(reached[:-1:2], reached[1::2], positives, positives.cumsum(axis=0))

    @cached_property
    def line(self) -> tuple[np.ndarray, np.ndarray]:
        """Intercept and slope of the calibration line, (R,) each."""
        return calibration_line(self.labels, self.score, self.counts)


def auc(s: Sample) -> np.ndarray:
    """AUC = 1 - Σ_g P_g (Σ_{h<g} Q_h + ½ Q_g) / (P Q), with P_g positives, Q_g negatives in tie group g."""
    down = s.ranking
    # Σ_{h<g} Q_h = before - (tp - P_g),  Q_g = called - before - P_g
    above = down.before - (down.tp - down.positives) + (down.called - down.before - down.positives) / 2
    return 1 - divide((down.positives * above).sum(axis=0), s.positives * (s.total - s.positives))


def average_precision(s: Sample) -> np.ndarray:
    """AP = Σ_g P_g/P · Σ_{h≤g} P_h / Σ_{h≤g} (P_h + Q_h); NaN with one class."""
    down = s.ranking
    precision = np.divide(down.tp, down.called, out=np.zeros_like(down.tp), where=down.called > 0)
    return np.where(s.both, divide((down.positives * precision).sum(axis=0), s.positives), np.nan)


def operating_point(s: Sample, name: Literal["sensitivity", "specificity"], percent: int) -> np.ndarray:
    """Best sensitivity (specificity) of a threshold whose specificity (sensitivity) is at least `percent` %.

    The ends of tie groups that contain a positive, and the threshold that calls no scan, are all thresholds
    that are needed. They are chosen on the evaluated scans, so the metric is optimistic.
    """
    best = np.full(len(s.total), np.nan)
    if not s.both.any():
        return best
    down, positives = s.ranking, s.positives[s.both]
    negatives = s.total[s.both] - positives
    sensitivity = down.tp[:, s.both] / positives  # (G, resamples with both classes)
    specificity = (negatives - (down.called - down.tp)[:, s.both]) / negatives
    given, wanted = (specificity, sensitivity) if name == "sensitivity" else (sensitivity, specificity)
    # calling no scan has specificity 1, sensitivity 0
    best[s.both] = np.where(given >= percent / 100, wanted, 0).max(axis=0)
    return best


def ece(s: Sample) -> np.ndarray:
    """Σ_k n_k/n · |mean probability - fraction positive| over bins of `equal_mass`, new in each resample.

    It is never negative, so a perfectly calibrated model has an expected ECE above 0 (simulated: 0.15 to 0.26
    with 20 scans, 0.09 to 0.15 with 60, 0.03 to 0.05 with 490).
    """
    values, tie = np.unique(s.score, return_inverse=True)  # (G,), (n,)
    drawn = _sums(tie, np.ones(len(tie)), s.counts, len(values))  # (G, R)
    gap = _sums(tie, s.score - s.labels, s.counts, len(values))  # (G, R)
    bins, columns = CALIBRATION_BINS, len(s.total)
    # the operands are integers below 2⁵³, so the quotient cannot round up to the next bin
    number = (bins * (2 * drawn.cumsum(axis=0) - drawn) / (2 * s.total)).astype(np.int64).clip(max=bins - 1)
    number += bins * np.arange(columns)  # (G, R)
    gaps = np.bincount(number.ravel(), weights=gap.ravel(), minlength=bins * columns)
    return np.abs(gaps.reshape(-1, bins)).sum(axis=1) / s.total


def log_loss(s: Sample) -> np.ndarray:
    """Mean of -log of the probability of the true class."""
    tiny = np.finfo(np.float64).eps  # as in scikit-learn
    right = np.where(s.labels == 1, s.score, 1 - s.score).clip(tiny, 1 - tiny)
    return s.mean(-np.log(right))


def f1(s: Sample) -> np.ndarray:
    """F1 of the calls; NaN without positives."""
    above, below = 2.0 * (s.called * s.labels) @ s.counts, (s.called + s.labels).astype(np.float64) @ s.counts
    return np.where(s.positives > 0, divide(above, below), np.nan)


def recall(s: Sample, kind: int) -> np.ndarray:
    """Fraction of the rows of class `kind` that are called so: sensitivity (1) or specificity (0)."""
    return s.share(s.labels == kind, s.called == kind)


def predictive_value(s: Sample, kind: int) -> np.ndarray:
    """Fraction of the calls of class `kind` that are correct: PPV (1) or NPV (0); NaN with one class."""
    return np.where(s.both, s.share(s.called == kind, s.labels == kind), np.nan)
