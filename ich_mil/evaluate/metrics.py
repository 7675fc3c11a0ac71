"""Metrics of scan probabilities and slice scores, by scikit-learn where it has the metric.

In: labels in {0, 1} or `UNKNOWN`, and the scores of a model. Out: dictionaries of numbers. Unlabelled rows
are left out. A metric that is not defined (one class only) is NaN.

Arguments: labels (n,) in {0, 1} or `UNKNOWN`, probabilities (n,) in [0, 1], scores (n,) that are larger where
a hemorrhage is more likely. Errors: `ValueError` if arrays do not match; `DataError` if no label is known, a
label is not 0, 1 or `UNKNOWN`, a score is not finite, or a probability is outside [0, 1].

Shapes: B scans, N slices (packed), K filled bins or scans as stated.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import rankdata
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    f1_score,
    log_loss,
    precision_score,
    recall_score,
    roc_auc_score,
    roc_curve,
)

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.ledger import THRESHOLD

OPERATING_POINTS = (90, 95)
"""Specificity (sensitivity) in per cent that a threshold must reach; the metric is the other of the two."""

POINT_NAMES = tuple(f"{kind}_at_{x}" for x in OPERATING_POINTS for kind in ("sensitivity", "specificity"))
"""Names of the metrics returned by `operating_points`."""

CALIBRATION_BINS = 10
"""Number of equal-mass bins of the expected calibration error (ECE)."""


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
    bad = np.flatnonzero(~np.isfinite(score))
    if len(bad):
        raise DataError(
            f"{what}: {len(bad)} of {len(score)} scores are NaN or infinite, the first is number {bad[0]}; "
            "nothing can be measured from them"
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


def _two_classes(labels: np.ndarray) -> bool:
    return len(np.unique(labels)) == 2


def auc(labels: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve for labels in {0, 1}; NaN if only one class is present."""
    return float(roc_auc_score(labels, score)) if _two_classes(labels) else float("nan")


def _ap(labels: np.ndarray, score: np.ndarray) -> float:
    # with positives only, every ranking has an average precision of 1
    return float(average_precision_score(labels, score)) if _two_classes(labels) else float("nan")


def _losses(labels: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    return {
        "log_loss": float(log_loss(labels, probability, labels=[0, 1])),
        "brier": float(brier_score_loss(labels, probability, labels=[0, 1])),
    }


def equal_mass(values: np.ndarray, bins: int) -> np.ndarray:
    """Bin number (B,), from 0, of each value, in bins that hold about equally many values.

    The value with mid-rank r (from 1, averaged over ties) goes to bin floor(bins · (r - ½) / B). Equal values
    therefore share a bin, and the order of the scans does not matter.
    """
    # the operands are integers below 2⁵³, so the division cannot round across a bin boundary
    return (bins * (2 * rankdata(values) - 1) // (2 * len(values))).astype(np.int64)


def _ece(labels: np.ndarray, probability: np.ndarray) -> float:
    place = equal_mass(probability, CALIBRATION_BINS)
    count = np.bincount(place)
    filled = count > 0
    count = count[filled]
    mean, share = (np.bincount(place, weights=values)[filled] / count for values in (probability, labels))
    return float(np.sum(count * np.abs(mean - share)) / np.sum(count))


def operating_points(labels: np.ndarray, score: np.ndarray) -> dict[str, float]:
    """Best sensitivity at fixed specificity, and best specificity at fixed sensitivity.

    For x in `OPERATING_POINTS`:

        sensitivity_at_x = max over t of sensitivity(t) with specificity(t) ≥ x %
        specificity_at_x = max over t of specificity(t) with sensitivity(t) ≥ x %

    Scans with a score of at least t are called positive. The thresholds are chosen on the evaluated scans, so
    the metrics are optimistic: they do not estimate the performance of a threshold that was fixed beforehand.
    NaN if only one class is present.
    """
    labels, score = known_scores(labels, score, what="scan scores", probability=False)
    points = dict.fromkeys(POINT_NAMES, np.nan)
    if _two_classes(labels):
        false_alarms, sensitivity, _ = roc_curve(labels, score, drop_intermediate=False)  # (K,)
        specificity = 1 - false_alarms  # (K,)
        for x in OPERATING_POINTS:
            points[f"sensitivity_at_{x}"] = float(sensitivity[specificity >= x / 100].max())
            points[f"specificity_at_{x}"] = float(specificity[sensitivity >= x / 100].max())
    return points


def scan_metrics(labels: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    """Metrics of scan probabilities.

    `ece` = Σ_k n_k/B · |mean probability - fraction positive| over the filled bins k of `equal_mass`. It is
    never negative, so a perfectly calibrated model has an expected ECE above 0 (simulated: 0.15 to 0.26 with
    20 scans, 0.09 to 0.15 with 60, 0.03 to 0.05 with 490). `log_loss` clips probabilities of exactly 0 and 1
    at the float64 epsilon.

    Returns:
        `auc`, `ap` (average precision), the `operating_points`, `accuracy`, `sensitivity`, `specificity`,
        `balanced_accuracy`, `f1` (these five at `THRESHOLD`), `log_loss`, `brier`, `ece`. `sensitivity` and
        `f1` are NaN without positive scans, `specificity` without negative scans, and `auc`, `ap`,
        `balanced_accuracy` and the operating points without either.
    """
    labels, probability = known_scores(labels, probability, what="scan probabilities", probability=True)
    called = (probability >= THRESHOLD).astype(np.int64)
    return {
        "auc": auc(labels, probability),
        "ap": _ap(labels, probability),
        **operating_points(labels, probability),
        "accuracy": float(accuracy_score(labels, called)),
        "sensitivity": float(recall_score(labels, called, pos_label=1, zero_division=np.nan)),
        "specificity": float(recall_score(labels, called, pos_label=0, zero_division=np.nan)),
        "balanced_accuracy": (
            float(balanced_accuracy_score(labels, called)) if _two_classes(labels) else float("nan")
        ),
        "f1": float(f1_score(labels, called)) if labels.any() else float("nan"),
        **_losses(labels, probability),
        "ece": _ece(labels, probability),
    }


def predictive_values(labels: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    """Positive and negative predictive value of the calls at `THRESHOLD`, at the prevalence of these scans.

    NaN if no scan gets that call, or if only one class is present, since every call of it is then correct.
    """
    labels, probability = known_scores(labels, probability, what="scan probabilities", probability=True)
    if not _two_classes(labels):
        return {"ppv": float("nan"), "npv": float("nan")}
    called = (probability >= THRESHOLD).astype(np.int64)
    return {
        name: float(precision_score(labels, called, pos_label=kind, zero_division=np.nan))
        for name, kind in (("ppv", 1), ("npv", 0))
    }


def slice_probability_metrics(labels: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    """`log_loss`, `brier` and `ece` of slice probabilities over all labelled slices; see `scan_metrics`."""
    labels, probability = known_scores(labels, probability, what="slice probabilities", probability=True)
    return {**_losses(labels, probability), "ece": _ece(labels, probability)}


def slice_ranking(labels: np.ndarray, score: np.ndarray) -> dict[str, float]:
    """`auc` and `ap` of slice scores (N,) over all slices.

    This AUC is optimistic as a measure of localisation, because a good scan score alone raises every slice of
    a positive scan. `auc_inside` compares slices within a scan only.
    """
    labels, score = known_scores(labels, score, what="slice scores", probability=False)
    return {"auc": auc(labels, score), "ap": _ap(labels, score)}


def auc_inside(labels: np.ndarray, score: np.ndarray, scans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AUC among the slices of each scan that has labelled slices of both classes.

    Mann-Whitney: AUC = (Σ ranks of positives - P(P + 1)/2) / (P Q), with mid-ranks for ties.

    `scans` (N,) int is the scan of each slice.

    Returns:
        Numbers (K,) of the K scans with slices of both classes, ascending, and their AUC (K,).
    """
    labels, score = check_scores(labels, score, what="slice scores", probability=False)
    scans, known = np.asarray(scans), labels != UNKNOWN
    if scans.shape != labels.shape or not np.issubdtype(scans.dtype, np.integer):
        raise ValueError(
            f"scans must be a whole number for each of {len(labels)} slices, got {scans.dtype} {scans.shape}"
        )
    labels, score, scans = labels[known], score[known], scans[known]
    ids, owner, sizes = np.unique(scans, return_inverse=True, return_counts=True)
    ranks = pd.Series(score).groupby(owner).rank().to_numpy()  # mid-ranks within the scan
    P = np.bincount(owner, weights=labels, minlength=len(ids))
    wins = np.bincount(owner, weights=ranks * labels, minlength=len(ids)) - P * (P + 1) / 2
    both = (P > 0) & (sizes > P)
    return ids[both], (wins[both] / (P * (sizes - P))[both]).astype(np.float64)
