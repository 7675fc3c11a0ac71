"""The baselines that every result table carries: the CNN's own word set right, and no image at all.

In: what a CNN says of scans; positions and labels of slices, labels of the training scans. Out: scores to put
beside the model's.

Shapes: B scans, N slices (packed).
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError, ModelError
from ich_mil.evaluate.shift import fit_intercept
from ich_mil.files import write_json
from ich_mil.gp.calibration import platt

CNN_SIGMOID = "cnn_sigmoid.json"
"""File of `CnnSigmoid` in a run's folder."""

CENTRE = 0.5
"""Peak of the score, as a fraction of the scan from its lowest slice to its highest."""

WIDTH = 0.2
"""Standard deviation of the score, as a fraction of the scan. Ranks do not depend on it."""


def _logit(p: Tensor) -> Tensor:
    return torch.logit(p.double(), eps=1e-6)


@dataclass(frozen=True)
class CnnSigmoid:
    """Platt's sigmoid over the CNN's own scan probability, from the scans that calibrate a head.

    A calibrated head against a CNN as it is would show what calibration does, not what the head does.

    Attributes:
        slope: above 0.
        intercept: any.
    """

    slope: float
    intercept: float

    @classmethod
    def fit(cls, probability: Tensor, labels: Tensor) -> Self | None:
        """Fit to held-out scans.

        Args:
            probability: (B,) in [0, 1]; NaN where the CNN says nothing.
            labels: (B,) in {0, 1}.

        Returns:
            None if no scan has a probability, if those that have one share a label, or if the slope would
            turn their order round: such a one is not used, as with a head.
        """
        known = ~probability.isnan()
        if len(labels[known].unique()) < 2:
            return None
        slope, intercept, _ = platt(_logit(probability[known]), labels[known])
        return cls(slope, intercept) if slope > 0 else None

    def at_site(self, probability: Tensor, labels: Tensor) -> Self | None:
        """The same slope with the intercept that fits scans of a site, as a head is recalibrated.

        Args:
            probability: (B,) in [0, 1]; NaN where the CNN says nothing.
            labels: (B,) in {0, 1}.

        Returns:
            None if no scan has a probability, or those that have one share a label.
        """
        known = ~probability.isnan()
        if len(labels[known].unique()) < 2:
            return None
        intercept = fit_intercept(_logit(probability[known]), labels[known], slope=self.slope)
        return replace(self, intercept=intercept)

    def __call__(self, probability: Tensor) -> Tensor:
        """Calibrated probabilities (B,) float64 of the CNN's."""
        return torch.sigmoid(self.slope * _logit(probability) + self.intercept)

    def save(self, path: Path) -> None:
        """Write it as JSON, for `load`."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """What `save` wrote; None if there is no such file. `ModelError` if it holds something else."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls(float(found["slope"]), float(found["intercept"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{path}: cannot be read ({error}); train again") from error


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
