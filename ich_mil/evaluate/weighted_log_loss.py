"""Weighted log-loss of RSNA 2019: six targets an image, of which `any` weighs twice.

    loss of an image = Σ_k w_k (-log q_k) / Σ_k w_k      w = (1, 1, 1, 1, 1, 2)

with q_k the probability of the true label (page "Evaluation" of the competition). Intervals resample
patients.

Shapes: n images.
"""

from collections.abc import Sequence

import numpy as np

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import Interval, patient_bootstrap
from ich_mil.evaluate.scores import patient_keys
from ich_mil.sets.layouts.rsna_labels import ANY, KINDS

WEIGHTS = np.array([2.0 if kind == ANY else 1.0 for kind in KINDS])


def image_losses(labels: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Loss (n,) of each image, from labels in {0, 1} and probabilities, (n, 6) in the order of `KINDS`.

    Raises:
        DataError: a label or a probability is out of range.
    """
    labels, probability = np.asarray(labels), np.asarray(probability, np.float64)
    if labels.shape != probability.shape or labels.shape[1:] != (len(KINDS),):
        raise ValueError(f"labels {labels.shape} and probabilities {probability.shape} must be (n, 6)")
    if not np.isin(labels, (0, 1)).all():
        raise DataError("weighted log-loss: a label must be 0 or 1")
    if not ((probability >= 0) & (probability <= 1)).all():
        raise DataError("weighted log-loss: a probability is NaN or outside [0, 1]")
    right = np.where(labels == 1, probability, 1 - probability).clip(min=np.finfo(np.float64).eps)
    return np.asarray(-np.log(right) @ WEIGHTS / WEIGHTS.sum())


def mean_loss(losses: np.ndarray, patients: Sequence[str] | np.ndarray) -> tuple[float, Interval]:
    """Mean of losses (n,) of images, or of differences of losses, with its 95 % interval by patient."""
    owner, rows = np.unique(patient_keys(patients, len(losses)), return_inverse=True)
    sums, sizes = np.bincount(rows, weights=losses), np.bincount(rows).astype(np.float64)
    ends = patient_bootstrap(lambda counts: {"mean": sums @ counts / (sizes @ counts)}, owner, seed=0)
    return float(losses.mean()), ends["mean"]
