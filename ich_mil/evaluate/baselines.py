"""Baselines of every result table: the calibrated CNN, and scores that do not use the image.

Shapes: B scans, N slices (packed).
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ich_mil.evaluate.deployment.recalibration import fit_intercept
from ich_mil.files import write_json
from ich_mil.gp.calibration import platt
from ich_mil.model_files import read_json, record
from ich_mil.sets.labels import UNKNOWN

CNN_SIGMOID = "cnn_sigmoid.json"
"""Name of the file of `CnnSigmoid` in the folder of a run."""

CENTRE = 0.5
"""Position of the maximum of the score, as a fraction of the scan from its lowest slice to its highest."""

WIDTH = 0.2
"""Standard deviation of the score, as a fraction of the scan. Ranking metrics do not depend on it."""


def _logit(p: Tensor) -> Tensor:
    return torch.logit(p.double(), eps=1e-6)


@dataclass(frozen=True)
class CnnSigmoid:
    """Platt scaling of the CNN's own scan probability, fitted to the scans that calibrate a head.

    A comparison of a calibrated head with an uncalibrated CNN would measure the calibration, not the head.
    """

    slope: float
    intercept: float

    @classmethod
    def fit(cls, probability: Tensor, labels: Tensor) -> Self | None:
        """Fit to held-out scans: probabilities (B,), NaN where the CNN gives none, and labels (B,) in {0, 1}.

        None if the scans with a probability lack a label, or if the fitted slope is not above 0, which would
        reverse the ranking (heads reject such a fit too).
        """
        known = ~probability.isnan()
        if len(labels[known].unique()) < 2:
            return None
        slope, intercept, _ = platt(_logit(probability[known]), labels[known])
        return cls(slope, intercept) if slope > 0 else None

    def at_site(self, probability: Tensor, labels: Tensor) -> Self | None:
        """Refit the intercept to the scans of a site, as for a head; None if they lack a label."""
        known = ~probability.isnan()
        if len(labels[known].unique()) < 2:
            return None
        intercept = fit_intercept(_logit(probability[known]), labels[known], slope=self.slope)
        return replace(self, intercept=intercept)

    def __call__(self, probability: Tensor) -> Tensor:
        """Calibrated probabilities (B,) float64 for probabilities of the CNN."""
        return torch.sigmoid(self.slope * _logit(probability) + self.intercept)

    def save(self, path: Path) -> None:
        """Write the parameters as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Read the file of `save`; None if it does not exist. `ModelError` if its content is invalid."""
        return record(cls, read_json(path), path) if path.is_file() else None


def position_score(positions: np.ndarray) -> np.ndarray:
    """Slice score exp(-(p - `CENTRE`)² / (2 · `WIDTH`²)) of the position p, independent of the image.

    NaN where the position (N,), in [0, 1] along the scan, is unknown.
    """
    positions = np.asarray(positions, dtype=np.float64)
    return np.exp(-((positions - CENTRE) ** 2) / (2 * WIDTH**2))


def slice_prevalence(slice_labels: np.ndarray) -> np.ndarray | None:
    """Fraction of positive slices as a constant slice probability (N,); None if no slice is labelled.

    It is taken from the evaluated slices (N,) themselves. A model trained on scan labels does not know it.
    """
    known = slice_labels[slice_labels != UNKNOWN]
    return np.full(len(slice_labels), known.mean(dtype=np.float64)) if len(known) else None
