"""Out-of-distribution test of a scan: Mahalanobis distance of its mean texture, with a conformal threshold.

    score = (t̄ - m)ᵀ Σ⁻¹ (t̄ - m) / (T (ρ + (1 - ρ) / n))     t̄: mean texture of the n slices of the scan

m and Σ are mean and shrunk covariance (Ledoit-Wolf) of all training slices, ρ is the share of this variance
that lies between scans. So the mean of n slices has the covariance Σ (ρ + (1 - ρ) / n), as in Kish's design
effect, and scans of any number of slices have a mean score of 1. The average distance of the slices separates
worse: two thirds of it are the anatomy along the head.

The texture features of the slices are from the lower blocks of a CNN (`ich_mil.network.frozen.texture_of`).
They differ for phantoms and other reconstruction kernels; studies of other body parts are refused before
(`ich_mil.study.anatomy`). The slice features of the head are unsuitable: they separate hemorrhage from no
hemorrhage, and place phantoms among heads.

A scan is out of distribution if its score exceeds the threshold. The threshold is an order statistic of the
scores of held-out training scans. With several sources (training sets), each source is scored by the others:
a new scan is of a source that was not learned, and such scans lie further away. With one source, folds of
patients are held out. A new scan that is exchangeable with the held-out ones exceeds the threshold with a
probability of at most `FALSE_ALARMS` (split conformal; Vovk et al. 2005, Prop. 4.1), or of 1 / (n + 1) if
n scans are too few.

Shapes: B scans, N slices, T texture features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
"""Maximum probability that a scan like the held-out ones is rejected."""
FOLDS = 5
FORMAT = "ich_mil.likeness.3"
LIMITS = ("correlation", "threshold", "false_alarms")
LIKENESS = "likeness.safetensors"
"""Name of the file in the folder of a run."""


@dataclass(frozen=True)
class Likeness:
    """Texture distribution of the training slices, and the threshold of the scan score.

    Attributes:
        mean: (T,).
        precision: (T, T) inverse covariance.
        correlation: ρ in [0, 1], correlation of two slices of one scan.
        threshold: scans with a higher score are out of distribution.
        false_alarms: maximum probability that a scan like the held-out ones exceeds the threshold.
    """

    mean: np.ndarray
    precision: np.ndarray
    correlation: float
    threshold: float
    false_alarms: float

    @classmethod
    def fit(cls, features: FeatureSet, *, sources: Sequence[str], seed: int) -> Self | None:
        """Fit to training scans.

        Args:
            features: training scans; those of a single slice do not contribute to the threshold if the others
                have both labels.
            sources: training set of each scan, B names.
            seed: seed of the folds of patients.

        Returns:
            The check. None for scans of one source and one patient, without texture features, or all of a
            single slice.
        """
        several = len({*sources}) > 1
        groups = list(sources) if several else features.patients
        folds = len({*groups}) if several else min(FOLDS, len({*groups}))
        if folds < 2 or features.texture is None or len(features.offsets) == len(features.x) + 1:
            return None
        owner = np.repeat(np.arange(features.n_scans), features.offsets.diff().numpy())  # (N,)
        x = features.texture.double().numpy()
        whole = cls._of(x, math.nan)
        whole = replace(whole, correlation=whole._correlation(x, owner))
        from sklearn.model_selection import GroupKFold  # slow to import, and predictions do without

        scores = np.full(features.n_scans, np.nan)
        splitter = GroupKFold(folds, shuffle=True, random_state=seed)
        for inside, outside in splitter.split(scores, groups=groups):
            held = features.select([features.scans[b] for b in outside])
            scores[outside] = cls._of(x[np.isin(owner, inside)], whole.correlation).scores(held)
        scores = np.sort(scores[calibrating(features.offsets, features.labels).numpy()])
        rank = min(math.ceil((len(scores) + 1) * (1 - FALSE_ALARMS)), len(scores))
        return replace(whole, threshold=float(scores[rank - 1]), false_alarms=1 - rank / (len(scores) + 1))

    @classmethod
    def _of(cls, x: np.ndarray, correlation: float) -> Self:
        """Distribution of slices x (N, T), without a threshold."""
        from sklearn.covariance import LedoitWolf

        fitted = LedoitWolf().fit(x)
        return cls(fitted.location_, fitted.get_precision(), correlation, math.inf, 0.0)

    def _correlation(self, x: np.ndarray, owner: np.ndarray) -> float:
        """1 - tr(Σ⁻¹ W) / T for slices x (N, T) of the scans `owner` (N,), W the covariance within scans."""
        n_slices = np.bincount(owner)  # (B,)
        sums = np.add.reduceat(x, n_slices.cumsum() - n_slices)  # (B, T)
        within = x - (sums / n_slices[:, None])[owner]  # (N, T)
        W = within.T @ within / (n_slices - 1).sum()  # (T, T)
        return float(np.clip(1 - np.sum(self.precision * W) / len(W), 0, 1))

    def scores(self, features: FeatureSet) -> np.ndarray:
        """(B,) distance of the mean texture of each scan, with a mean of 1 over training scans."""
        assert features.texture is not None  # callers pass features of a model with a CNN
        n = features.offsets.diff().numpy()  # (B,)
        sums = np.add.reduceat(features.texture.double().numpy(), features.offsets[:-1].numpy())  # (B, T)
        away = sums / n[:, None] - self.mean
        distance = np.einsum("bd,de,be->b", away, self.precision, away)  # (B,)
        return distance / (len(self.mean) * (self.correlation + (1 - self.correlation) / n))

    def save(self, folder: Path) -> None:
        """Write `likeness.safetensors` into the folder of a run."""
        limits = {name: repr(getattr(self, name)) for name in LIMITS}
        with whole_file(folder / LIKENESS) as temporary:
            arrays = {"mean": self.mean, "precision": np.ascontiguousarray(self.precision)}
            save_file(arrays, temporary, metadata={"format": FORMAT, **limits})

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read the file of `save`; None if it does not exist. `ModelError`: damaged or another version."""
        path = folder / LIKENESS
        if not path.is_file():
            return None
        tensors, metadata = read_tensors(path)
        try:
            if metadata["format"] != FORMAT:
                raise ValueError("it is of another version")
            mean, precision = (tensors[name].numpy() for name in ("mean", "precision"))
            limits = [float(metadata[name]) for name in LIMITS]
            if not all(map(math.isfinite, limits)) or precision.shape != 2 * mean.shape:
                raise ValueError("a limit is not finite, or its shapes are wrong")
        except (ValueError, KeyError) as error:
            raise ModelError(f"{path}: cannot be read ({error}); train again") from error
        return cls(mean, precision, *limits)
