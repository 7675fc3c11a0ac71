"""Metrics of scan probabilities and slice scores.

In: labels in {0, 1} or `UNKNOWN`, and the scores of a model. Out: dictionaries of numbers, computed by
scikit-learn where it has the metric. Unlabelled rows are left out. A metric that is not defined (one class
only) is NaN. A score that is NaN raises an error.

Shapes: B scans, N slices (packed), K bins or scans as stated.
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
    roc_curve,
)
from sklearn.metrics import roc_auc_score as sklearn_auc

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.threshold import THRESHOLD

OPERATING_POINTS = (90, 95)
"""Specificity (sensitivity) in per cent that a threshold must reach; the metric is the other of the two."""

POINT_NAMES = tuple(f"{kind}_at_{x}" for x in OPERATING_POINTS for kind in ("sensitivity", "specificity"))
"""Names of the metrics returned by `operating_points`."""

CALIBRATION_BINS = 10
"""Number of equal-mass bins of the expected calibration error (ECE)."""


def check_scores(
    labels: np.ndarray, score: np.ndarray, *, what: str, probability: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Check labels and scores, and convert them to int64 and float64.

    Args:
        labels: (n,) in {0, 1} or `UNKNOWN`.
        score: (n,).
        what: prefix of error messages.
        probability: whether scores must lie in [0, 1].

    Returns:
        Labels (n,) and scores (n,).

    Raises:
        ValueError: the arrays are not one-dimensional and equally long.
        DataError: a label is not 0, 1 or `UNKNOWN`; a score is NaN or infinite; a probability is outside
            [0, 1].
    """
    labels, score = np.asarray(labels), np.asarray(score, dtype=np.float64)
    if labels.ndim != 1 or labels.shape != score.shape:
        raise ValueError(f"{what}: labels {labels.shape} and scores {score.shape} must be two equal rows")
    if not np.isin(labels, (0, 1, UNKNOWN)).all():
        bad = labels[~np.isin(labels, (0, 1, UNKNOWN))].tolist()[0]
        raise DataError(f"{what}: a label must be 0, 1 or {UNKNOWN} (unknown), got {bad!r}")
    wrong = ~np.isfinite(score)
    if wrong.any():
        raise DataError(
            f"{what}: {int(wrong.sum())} of {len(score)} scores are NaN or infinite, the first is number "
            f"{int(np.flatnonzero(wrong)[0])}; nothing can be measured from them"
        )
    if probability and len(score) and (score.min() < 0 or score.max() > 1):
        ends = f"{score.min():.9g} to {score.max():.9g}"
        raise DataError(f"{what}: a probability must lie in [0, 1], got {ends}")
    return labels.astype(np.int64), score


def patient_keys(patients: Sequence[str] | np.ndarray, scans: int | None = None) -> np.ndarray:
    """Check patient keys and convert them to text.

    Args:
        patients: the patient key of each scan.
        scans: number of scans B, if known.

    Returns:
        (B,) keys as text.

    Raises:
        ValueError: the number of patients differs from the number of scans.
        DataError: a key is missing. All scans without a key would otherwise count as one patient.
    """
    if scans is not None and len(patients) != scans:
        raise ValueError(f"{len(patients)} patients for {scans} scans")
    if isinstance(patients, np.ndarray) and patients.dtype.kind == "U":
        return patients
    keys = np.asarray(patients, dtype=object)
    missing = np.flatnonzero(pd.isna(keys))
    if len(missing):
        first = missing[0]
        raise DataError(
            f"patients: {len(missing)} of {len(keys)} are {keys[first]}, the first is number {first}; "
            "give each scan without a known patient a key of its own"
        )
    return keys.astype(str)


def known_scores(
    labels: np.ndarray, score: np.ndarray, *, what: str, probability: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Check labels and scores, and drop the unlabelled rows; arguments as in `check_scores`.

    Returns:
        Labels in {0, 1} and scores of the labelled rows.

    Raises:
        ValueError: as `check_scores`.
        DataError: as `check_scores`, or no label is known.
    """
    labels, score = check_scores(labels, score, what=what, probability=probability)
    known = labels != UNKNOWN
    if not known.any():
        raise DataError(f"{what}: none of the {len(labels)} labels is known, so nothing can be measured")
    return labels[known], score[known]


def auc(labels: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve for labels in {0, 1}; NaN if only one class is present."""
    return float(sklearn_auc(labels, score)) if len(np.unique(labels)) == 2 else float("nan")


def _ap(labels: np.ndarray, score: np.ndarray) -> float:
    # with positives only, every ranking has an average precision of 1
    return float(average_precision_score(labels, score)) if len(np.unique(labels)) == 2 else float("nan")


def _losses(labels: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    return {
        "log_loss": float(log_loss(labels, probability, labels=[0, 1])),
        "brier": float(brier_score_loss(labels, probability, labels=[0, 1])),
    }


def equal_mass(values: np.ndarray, bins: int) -> np.ndarray:
    """Assign values to bins that hold about equally many of them.

    The value with mid-rank r (from 1, averaged over ties) goes to bin floor(bins · (r - ½) / B). Equal values
    therefore share a bin, and the order of the scans does not matter.

    Returns:
        Bin number (B,) of each value, in 0 ... bins - 1.
    """
    # the operands are integers below 2⁵³, so the division cannot round across a bin boundary
    return (bins * (2 * rankdata(values) - 1) // (2 * len(values))).astype(np.int64)


def calibration_bins(
    labels: np.ndarray, probability: np.ndarray, *, bins: int = CALIBRATION_BINS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean probability and fraction of positives in equal-mass bins.

    The bins are those of `equal_mass`; empty bins are left out.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        probability: (B,) in [0, 1].
        bins: largest number of bins.

    Returns:
        Mean probability (K,), fraction of positives (K,) and number of scans (K,) of the K filled bins.
    """
    labels, probability = known_scores(labels, probability, what="calibration", probability=True)
    place = equal_mass(probability, bins)
    count = np.bincount(place, minlength=bins)
    filled = count > 0
    mean = np.bincount(place, weights=probability, minlength=bins)[filled] / count[filled]
    fraction = np.bincount(place, weights=labels, minlength=bins)[filled] / count[filled]
    return mean, fraction, count[filled]


def _ece(labels: np.ndarray, probability: np.ndarray) -> float:
    mean, fraction, count = calibration_bins(labels, probability)
    return float(np.sum(count * np.abs(mean - fraction)) / np.sum(count))


def operating_points(labels: np.ndarray, score: np.ndarray) -> dict[str, float]:
    """Best sensitivity at fixed specificity, and best specificity at fixed sensitivity.

    For x in `OPERATING_POINTS`:

        sensitivity_at_x = max over t of sensitivity(t) with specificity(t) ≥ x %
        specificity_at_x = max over t of specificity(t) with sensitivity(t) ≥ x %

    A threshold t calls a scan positive if its score is at least t, so scans with equal scores get the same
    call. The thresholds that call no scan or every scan positive are included, so each maximum exists. The
    thresholds are chosen on the evaluated scans: the metrics are optimistic, and do not estimate the
    performance of a threshold that was fixed beforehand.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        score: (B,) finite; a larger score means a hemorrhage is more likely.

    Returns:
        One number for each of `POINT_NAMES`; NaN if only one class is present.

    Raises:
        DataError: no label is known, or a score is NaN.
    """
    labels, score = known_scores(labels, score, what="scan scores", probability=False)
    points = dict.fromkeys(POINT_NAMES, np.nan)
    if len(np.unique(labels)) == 2:
        false_alarms, sensitivity, _ = roc_curve(labels, score, drop_intermediate=False)  # (K,)
        specificity = 1 - false_alarms  # (K,)
        for x in OPERATING_POINTS:
            points[f"sensitivity_at_{x}"] = float(sensitivity[specificity >= x / 100].max())
            points[f"specificity_at_{x}"] = float(specificity[sensitivity >= x / 100].max())
    return points


def scan_metrics(labels: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    """Metrics of scan probabilities.

    `ece` = Σ_k n_k/B · |mean probability - fraction positive| over `calibration_bins`. It is never negative,
    so a perfectly calibrated model has an expected ECE above 0, which grows as bins hold fewer scans
    (simulated: 0.15 to 0.26 with 20 scans, 0.09 to 0.15 with 60, 0.03 to 0.05 with 490). For the same reason
    a bootstrap resample has a higher ECE than its sample, see `bootstrap.of_error`. `log_loss` clips
    probabilities of exactly 0 and 1 at the float64 epsilon, as scikit-learn does.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        probability: (B,) in [0, 1].

    Returns:
        `auc`, `ap` (average precision), the `operating_points` (optimistic: their thresholds are chosen on
        the same scans), `accuracy`, `sensitivity`, `specificity`, `balanced_accuracy`, `f1` (these five at
        `THRESHOLD`), `log_loss`, `brier`, `ece`. With one class only, `auc`, `ap`, `balanced_accuracy` and
        the operating points are NaN. `sensitivity` and `f1` are NaN without positive scans, `specificity`
        without negative scans.

    Raises:
        DataError: no label is known, or a probability is NaN or outside [0, 1].
    """
    labels, probability = known_scores(labels, probability, what="scan probabilities", probability=True)
    called = (probability >= THRESHOLD).astype(np.int64)
    both = len(np.unique(labels)) == 2
    return {
        "auc": auc(labels, probability),
        "ap": _ap(labels, probability),
        **operating_points(labels, probability),
        "accuracy": float(accuracy_score(labels, called)),
        "sensitivity": float(recall_score(labels, called, pos_label=1, zero_division=np.nan)),
        "specificity": float(recall_score(labels, called, pos_label=0, zero_division=np.nan)),
        "balanced_accuracy": float(balanced_accuracy_score(labels, called)) if both else float("nan"),
        "f1": float(f1_score(labels, called)) if labels.any() else float("nan"),
        **_losses(labels, probability),
        "ece": _ece(labels, probability),
    }


def predictive_values(labels: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    """Positive and negative predictive value of the calls at `THRESHOLD`.

    Unlike sensitivity and specificity, they depend on the prevalence, so they hold only for a population with
    the prevalence of these scans.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        probability: (B,) in [0, 1].

    Returns:
        `ppv` and `npv`: the fraction of positive and of negative calls that are correct. NaN if no scan gets
        that call, or if only one class is present, since every call of that class is then correct.

    Raises:
        DataError: no label is known, or a probability is NaN or outside [0, 1].
    """
    labels, probability = known_scores(labels, probability, what="scan probabilities", probability=True)
    if len(np.unique(labels)) < 2:
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


def auc_inside(labels: np.ndarray, score: np.ndarray, scans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AUC among the slices of each scan that has labelled slices of both classes.

    Mann-Whitney: AUC = (Σ ranks of positives - P(P + 1)/2) / (P Q), with mid-ranks for ties.

    Args:
        labels: (N,) in {0, 1} or `UNKNOWN`; unlabelled slices are left out.
        score: (N,) finite.
        scans: (N,) int, the scan of each slice.

    Returns:
        Numbers (K,) of the K scans with slices of both classes, ascending, and their AUC (K,).

    Raises:
        ValueError: as `check_scores`, or `scans` is not one integer for each slice.
        DataError: as `check_scores`.
    """
    labels, score = check_scores(labels, score, what="slice scores", probability=False)
    scans, known = np.asarray(scans), labels != UNKNOWN
    if scans.shape != labels.shape or not np.issubdtype(scans.dtype, np.integer):
        raise ValueError(
            f"scans must be a whole number for each of {len(labels)} slices, got {scans.dtype} {scans.shape}"
        )
    labels, score, scans = labels[known], score[known], scans[known]
    order = np.argsort(scans, kind="stable")
    starts = np.flatnonzero(np.diff(scans[order], prepend=scans[order][:1] - 1))
    ids, values = [], []
    for rows in np.split(order, starts[1:]):
        positives = int(labels[rows].sum())
        negatives = len(rows) - positives
        if positives and negatives:
            ranks = rankdata(score[rows])[labels[rows] == 1].sum()
            ids.append(int(scans[rows[0]]))
            values.append((ranks - positives * (positives + 1) / 2) / (positives * negatives))
    return np.array(ids, dtype=np.int64), np.array(values, dtype=np.float64)


def slice_ranking(labels: np.ndarray, score: np.ndarray) -> dict[str, float]:
    """AUC and average precision of slice scores over all slices.

    This AUC is optimistic as a measure of localisation, because a good scan score alone raises every slice of
    a positive scan. `auc_inside` compares slices within a scan only.

    Args:
        labels: (N,) in {0, 1} or `UNKNOWN`; unlabelled slices are left out.
        score: (N,) finite; a larger score means a hemorrhage is more likely.

    Returns:
        `auc` and `ap` (average precision) over all slices; NaN if not defined.

    Raises:
        DataError: no label is known, or a score is NaN.
    """
    labels, score = known_scores(labels, score, what="slice scores", probability=False)
    return {"auc": auc(labels, score), "ap": _ap(labels, score)}
