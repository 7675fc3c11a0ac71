"""Out-of-distribution test of a scan: Mahalanobis distance of slice texture, with a conformal threshold.

    d_n = (t_n - m)ᵀ Σ⁻¹ (t_n - m)     m, Σ: mean and shrunk covariance (Ledoit-Wolf) of all training slices
    score of a scan = mean over its slices of d_n

The texture features t_n of the slices are from the lower blocks of a CNN
(`ich_mil.network.frozen.texture_of`). They differ for phantoms, other reconstruction kernels and other body
parts. The slice features of the head are unsuitable: they separate hemorrhage from no hemorrhage, and place
phantoms among heads.

A scan is out of distribution if its score exceeds the threshold. The threshold is the order statistic of the
scores of held-out training scans that a new scan of the same distribution exceeds with a probability of at
most `FALSE_ALARMS` (split conformal; Vovk et al. 2005, Prop. 4.1), or of 1 / (n + 1) if n scans are too few.

Shapes: B scans, N slices, T texture features.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from safetensors.numpy import save_file

from ich_mil.errors import ModelError
from ich_mil.files import whole_file
from ich_mil.gp.fit_calibration import calibrating
from ich_mil.model_files import read_tensors
from ich_mil.sets.features import FeatureSet

FALSE_ALARMS = 0.05
"""Maximum probability that a scan of the training distribution is rejected."""
FOLDS = 5
FORMAT = "ich_mil.likeness.2"
LIKENESS = "likeness.safetensors"
"""Name of the file in the folder of a run."""


@dataclass(frozen=True)
class Likeness:
    """Texture distribution of the training slices, and the threshold of the scan score.

    Attributes:
        mean: (T,).
        precision: (T, T) inverse covariance.
        threshold: scans with a higher score are out of distribution.
        false_alarms: maximum probability that a scan of the training distribution exceeds the threshold.
    """

    mean: np.ndarray
    precision: np.ndarray
    threshold: float
    false_alarms: float

    @classmethod
    def fit(cls, features: FeatureSet, *, seed: int) -> Self | None:
        """Fit to training scans; None if they are of one patient or have no texture features.

        Scans of a single slice do not contribute to the threshold if the others have both labels.
        """
        scores = np.full(features.n_scans, np.nan)
        folds = min(FOLDS, len(set(features.patients)))
        if folds < 2 or features.texture is None:
            return None
        owner = np.repeat(np.arange(features.n_scans), features.offsets.diff().numpy())  # (N,)
        x = features.texture.double().numpy()
        from sklearn.model_selection import GroupKFold  # slow to import, and predictions do without

        parts = GroupKFold(folds, shuffle=True, random_state=seed)
        for inside, outside in parts.split(scores, groups=features.patients):
            held = features.select([features.scans[b] for b in outside])
            scores[outside] = cls._of(x[np.isin(owner, inside)], math.inf, 0.0).scores(held)
        scores = np.sort(scores[calibrating(features.offsets, features.labels).numpy()])
        rank = min(math.ceil((len(scores) + 1) * (1 - FALSE_ALARMS)), len(scores))
        return cls._of(x, float(scores[rank - 1]), 1 - rank / (len(scores) + 1))

    @classmethod
    def _of(cls, x: np.ndarray, threshold: float, false_alarms: float) -> Self:
        from sklearn.covariance import LedoitWolf

        fitted = LedoitWolf().fit(x)
        return cls(fitted.location_, fitted.get_precision(), threshold, false_alarms)

    def scores(self, features: FeatureSet) -> np.ndarray:
        """(B,) mean squared Mahalanobis distance of the slices of each scan."""
        assert features.texture is not None  # callers pass features of a model with a CNN
        away = features.texture.double().numpy() - self.mean  # (N, T)
        distance = np.einsum("nd,de,ne->n", away, self.precision, away)  # (N,)
        return np.add.reduceat(distance, features.offsets[:-1].numpy()) / features.offsets.diff().numpy()

    def save(self, folder: Path) -> None:
        """Write `likeness.safetensors` into the folder of a run."""
        limits = {name: repr(getattr(self, name)) for name in ("threshold", "false_alarms")}
        with whole_file(folder / LIKENESS) as temporary:
            arrays = {"mean": self.mean, "precision": np.ascontiguousarray(self.precision)}
            save_file(arrays, temporary, metadata={"format": FORMAT, **limits})

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read the file of `save`; None if it does not exist. `ModelError`: damaged or another version."""
        path = folder / LIKENESS
        if not path.is_file():
            return None
        tensors, about = read_tensors(path)
        try:
            if about["format"] != FORMAT:
                raise ValueError("it is of another version")
            mean, precision = (tensors[name].numpy() for name in ("mean", "precision"))
            limits = [float(about[name]) for name in ("threshold", "false_alarms")]
            if not all(map(math.isfinite, limits)) or precision.shape != 2 * mean.shape:
                raise ValueError("its threshold is not finite, or its shapes are wrong")
        except (ValueError, KeyError) as error:
            raise ModelError(f"{path}: cannot be read ({error}); train again") from error
        return cls(mean, precision, *limits)
