"""The baselines that every result table carries: where a slice lies, how many bleed, and no image at all.

In: positions and labels of slices, labels of the training scans. Out: scores to put beside the model's.

Shapes: B scans, N slices (packed).
"""

import numpy as np

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError

CENTRE = 0.5
"""Peak of the score, as a fraction of the scan from its lowest slice to its highest."""

WIDTH = 0.2
"""Standard deviation of the score, as a fraction of the scan. Ranks do not depend on it."""


def position_score(positions: np.ndarray) -> np.ndarray:
    """Slice score exp(-(p - `CENTRE`)² / (2 · `WIDTH`²)): highest at mid-scan, whatever the image shows.

    Args:
        positions: (N,) in [0, 1]; NaN where unknown.

    Returns:
        (N,) float64 in (0, 1]; NaN where the position is unknown. It is a score, not a probability.
    """
    positions = np.asarray(positions, dtype=np.float64)
    return np.exp(-((positions - CENTRE) ** 2) / (2 * WIDTH**2))


def position_scan(training_labels: np.ndarray, n_scans: int) -> np.ndarray:
    """Scan probability of the position baseline: the training prevalence, for it knows nothing of a scan.

    Args:
        training_labels: labels of the training scans in {0, 1} or `UNKNOWN`, which is left out.
        n_scans: number B of scans to score.

    Returns:
        (B,) float64, one value throughout; its AUC is ½.

    Raises:
        DataError: no training label is known.
    """
    labels = np.asarray(training_labels)
    labels = labels[labels != UNKNOWN]
    if len(labels) == 0:
        raise DataError("no training scan has a label, so there is no prevalence for the position baseline")
    return np.full(n_scans, labels.mean(dtype=np.float64))


def slice_prevalence(slice_labels: np.ndarray) -> np.ndarray | None:
    """The share of slices with a bleed, said of each: what a slice probability must beat.

    It is taken from the very slices it is measured on; nobody trained on scan labels knows it.

    Args:
        slice_labels: (N,) in {0, 1} or `UNKNOWN`, which is left out.

    Returns:
        (N,) float64, one value throughout, with an AUC of ½; None if no slice is labelled.
    """
    known = slice_labels[slice_labels != UNKNOWN]
    return np.full(len(slice_labels), known.mean(dtype=np.float64)) if len(known) else None
