"""Logistic regression of one kind of bleed on the features of all networks, with refits for its uncertainty.

In: a table of scan features per network, 0/1 labels, patients. Out: probability, deviation over refits.

    p = mean over refits of logistic(b + Σ_h x_h w_h / √D_h)      x standardised, penalty ½ |w|²

The part of each network has prior variance 1 whatever its number of columns, as a kernel has at the prior
mean of its weight in `ich_mil.multikernel`. Each refit weights the patients by draws of Exp(1) (Bayesian
bootstrap; Rubin 1981).

Shapes: B scans, D_h features of network h, D of all d networks, L refits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from ich_mil.errors import DataError, ModelError
from ich_mil.model_files import read_tensors, write_tensors

REFITS = 50


@dataclass(frozen=True)
class LogisticKind:
    """Fitted logistic regression with its refits.

    Attributes:
        widths: D_h (d,).
        mean: of the columns (D,).
        scale: standard deviation times √D_h (D,).
        coefficients: w of each refit (L, D).
        intercepts: b of each refit (L,).
    """

    widths: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    coefficients: np.ndarray
    intercepts: np.ndarray

    @classmethod
    def fit(cls, sources: Mapping[str, np.ndarray], y: np.ndarray, patients: Sequence[str] | None) -> Self:
        """Fit to tables (B, D_h) by network, labels (B,) of both classes, and the patient of each scan.

        Without patients there is one fit, in which all rows count alike, and no uncertainty.

        Raises:
            DataError: every scan has the same features.
        """
        x, generator = np.hstack(list(sources.values())), np.random.default_rng(0)
        widths = np.array([table.shape[1] for table in sources.values()])
        scaler = StandardScaler().fit(x)
        if not scaler.var_.any():
            raise DataError("every scan has the same features; predict the scans again")
        scale = scaler.scale_ * np.repeat(widths, widths) ** 0.5
        z = (x - scaler.mean_) / scale
        if patients is None:
            refits = [LogisticRegression(max_iter=1000).fit(z, y)]
        else:
            owner = np.unique(list(patients), return_inverse=True)[1]
            refits = [
                LogisticRegression(max_iter=1000).fit(z, y, sample_weight=weights[owner])
                for weights in generator.exponential(size=(REFITS, owner.max() + 1))
            ]
        coefficients = np.vstack([refit.coef_ for refit in refits])
        intercepts = np.concatenate([refit.intercept_ for refit in refits])
        return cls(widths, scaler.mean_, scale, coefficients, intercepts)

    def predict_proba(
        self, sources: Mapping[str, np.ndarray], *, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Probability (B, 2) of no kind and of the kind; with `return_std` also its deviation over refits."""
        z = (np.hstack(list(sources.values())) - self.mean) / self.scale
        p = expit(z @ self.coefficients.T + self.intercepts)  # (B, L)
        mean, std = np.stack([1 - p.mean(1), p.mean(1)], 1), p.std(1)
        return (mean, np.stack([std, std], 1)) if return_std else mean

    @property
    def shares(self) -> np.ndarray:
        """Share (d,) of each network in the variance of the linear predictor, without correlations."""
        squares = np.split(self.coefficients**2, np.cumsum(self.widths)[:-1], axis=1)
        variances = np.stack([part.mean(1) for part in squares])  # (d, L)
        return np.asarray((variances / variances.sum(0)).mean(1))

    def save(self, path: Path) -> None:
        """Write the model to a safetensors file."""
        write_tensors(path, {name: torch.as_tensor(value) for name, value in asdict(self).items()})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. `ModelError`: the file is missing or damaged."""
        try:
            model = cls(**{name: value.numpy() for name, value in read_tensors(path)[0].items()})
            model.predict_proba({"all": np.zeros((1, model.widths.sum()))})
        except (TypeError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read ({error}); run 'ich-mil subtype' again") from error
        return model
