"""Scan and slice scores of one model on one data set.

Shapes: B scans, N slices (packed).
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scores:
    """Scores of one model or baseline for B scans and their N slices; None where the model gives none.

    Attributes:
        name: name of the model in the tables.
        scan: (B,) probability.
        slice: (N,) score; a larger score means a hemorrhage is more likely.
        slice_is_probability: whether `slice` is a probability; if not, only ranking metrics are computed.
        scan_std: (B,) standard deviation over joint samples of the slices.
        scan_std_independent: (B,) standard deviation over independent samples of the slices.
    """

    name: str
    scan: np.ndarray | None
    slice: np.ndarray | None
    slice_is_probability: bool = False
    scan_std: np.ndarray | None = None
    scan_std_independent: np.ndarray | None = None


def known_or_none(values: np.ndarray) -> np.ndarray | None:
    """Return None if all values are NaN (how `FeatureSet` marks missing scores), else `values`."""
    values = np.asarray(values)
    return None if np.isnan(values).all() else values
