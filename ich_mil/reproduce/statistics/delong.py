"""DeLong's test for the difference of two AUCs on the same scans.

In: labels and the scores of two models. Out: both AUCs, their difference with its interval, a p-value.
Source: DeLong, DeLong and Clarke-Pearson 1988 (10.2307/2531595), computed with mid-ranks as in Sun and Xu
2014 (10.1109/LSP.2014.2337313).

The test treats scans as independent. If patients have several scans, interval and p-value are too optimistic;
use the bootstrap over patients (`bootstrap.py`, `compare.py`) instead.

Shapes: B scans, P positive and Q negative scans.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import LEVEL
from ich_mil.evaluate.metrics import check_scores

_Z = float(norm.ppf((1 + LEVEL) / 2))


@dataclass(frozen=True)
class DeLongTest:
    """Comparison of two AUCs on the same scans.

    Attributes:
        auc_a: AUC of the first model.
        auc_b: AUC of the second model.
        difference: `auc_a - auc_b`.
        low: lower end of its 95 % interval; NaN for the reason in `note`.
        high: upper end.
        z: difference in units of its standard error; 0 if the difference and its variance are both 0.
        p: two-sided p-value of equal AUCs.
        note: remark on a variance of 0, else empty.
    """

    auc_a: float
    auc_b: float
    difference: float
    low: float
    high: float
    z: float
    p: float
    note: str


def _placements(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number of negatives below each positive, and of positives below each negative; a tie counts ½.

    V₁₀ = the first / Q and V₀₁ = 1 - the second / P are the structural components of the paper. Here they are
    kept as integers or half-integers, so that components that are all equal have a variance of exactly 0.

    Args:
        labels: (B,) in {0, 1}, or `UNKNOWN`; unlabelled scans are left out.
        scores: (2, B), one row for each model.

    Returns:
        (2, P) and (2, Q).
    """
    positive, negative = scores[:, labels == 1], scores[:, labels == 0]
    P = positive.shape[1]
    ranks = rankdata(np.hstack([positive, negative]), axis=1)  # (2, P + Q), mid-ranks among all
    return ranks[:, :P] - rankdata(positive, axis=1), ranks[:, P:] - rankdata(negative, axis=1)


def delong_test(labels: np.ndarray, a: np.ndarray, b: np.ndarray) -> DeLongTest:
    """Test whether two models have equal AUC on the same scans.

        z = (AUC_a - AUC_b) / √(S₁₀/P + S₀₁/Q)

    S₁₀ and S₀₁ are the sample variances (denominators P - 1, Q - 1), over positives and over negatives, of
    the difference between the structural components of the two models. The radicand equals Var_a + Var_b - 2
    Cov_ab of the paper. The interval of the difference is the normal one, clipped to [-1, 1].

    If the variance is 0 and the AUCs are equal (both models rank alike, or both rank perfectly), the data
    contain no evidence against equality: z = 0, p = 1, no interval. If the variance is 0 and the AUCs differ
    (one model ranks perfectly, the other is constant), z and p are NaN. `note` reports both cases.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        a: (B,) scores of the first model, finite; a larger score means a hemorrhage is more likely.
        b: (B,) scores of the second model.

    Raises:
        ValueError: the shapes do not match.
        DataError: an invalid label or score, or fewer than two scans of a class.
    """
    _, a = check_scores(labels, a, what="scores of the first model", probability=False)
    labels, b = check_scores(labels, b, what="scores of the second model", probability=False)
    P, Q = (int((labels == kind).sum()) for kind in (1, 0))
    if min(P, Q) < 2:
        raise DataError(
            f"DeLong's test needs at least 2 positive and 2 negative scans, got {P} and {Q} "
            f"({int((labels == UNKNOWN).sum())} unlabelled)"
        )
    of_positives, of_negatives = _placements(labels, np.stack([a, b]))
    auc_a, auc_b = (float(auc) for auc in of_positives.mean(axis=1) / Q)
    # variance of the difference of the components, which is exactly 0 for identical rankings
    variance = np.var(of_positives[0] - of_positives[1], ddof=1) / (Q * Q * P)
    variance += np.var(of_negatives[0] - of_negatives[1], ddof=1) / (P * P * Q)
    difference = float((of_positives[0] - of_positives[1]).mean() / Q)
    if variance == 0:
        same = difference == 0
        note = "variance 0: no scan tells the two apart" if same else "variance 0: the test says nothing"
        z, p = (0.0, 1.0) if same else (np.nan, np.nan)
        return DeLongTest(auc_a, auc_b, difference, np.nan, np.nan, z, p, note)
    error = float(np.sqrt(variance))
    z = difference / error
    return DeLongTest(
        auc_a=auc_a,
        auc_b=auc_b,
        difference=difference,
        low=max(-1.0, difference - _Z * error),
        high=min(1.0, difference + _Z * error),
        z=z,
        p=float(2 * norm.sf(abs(z))),
        note="",
    )
