"""The head as scikit-learn users expect it: an estimator over bags, with every setting as a parameter.

In: features (N, D) as numpy array or tensor, the bag of each row, a label a bag. Out: probabilities of bags
and instances with their uncertainty, as numpy arrays.

    head = Head(density="gamma", n_inducing=100)
    head.fit(X, bags, labels, validation=(X_val, bags_val, labels_val))
    p, std = head.predict_bag_proba(X_new, bags_new, return_std=True)

`bags` is either offsets (B + 1,), from 0 to N, bag b owning rows `offsets[b]:offsets[b + 1]`; or the bag of
each row (N,), any values in any order: then bags are numbered in the sorted order of their values, as by
`np.unique`.

Shapes: B bags (scans), N instances (slices), D features.
"""

from collections.abc import Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Self

import gpytorch
import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.gp.ascent import FitReport
from ich_mil.gp.calibrate import calibrate, cross_fit
from ich_mil.gp.densities import Density
from ich_mil.gp.fit import Bags, check_bags, fit
from ich_mil.gp.predict import Predictions, predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.gp.storage import load_head, save_head

SAMPLES = 1000
"""Posterior samples behind a prediction."""


def pack(x: ArrayLike | Tensor, bags: ArrayLike | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features and bags in any accepted form, packed.

    Args:
        x: (N, D) features.
        bags: (B + 1,) offsets or (N,) the bag of each row.

    Returns:
        Packed features (N, D), offsets (B + 1,), and the rows of `x` they came from (N,).

    Raises:
        DataError: features that are not a table of numbers; an empty bag; offsets that do not fit.
    """
    try:
        features = torch.as_tensor(x if isinstance(x, Tensor) else np.asarray(x))
    except (TypeError, ValueError) as error:
        raise DataError(f"X must be a table (N, D) of numbers ({error})") from error
    if features.ndim != 2 or features.is_complex() or 0 in features.shape:
        raise DataError(f"X must be a table (N, D) of numbers, got shape {tuple(features.shape)}")
    if not features.is_floating_point():
        features = features.double()
    index = np.asarray(bags.cpu() if isinstance(bags, Tensor) else bags)
    n = len(features)
    if index.ndim != 1 or len(index) == 0:
        raise DataError(
            f"bags must be one-dimensional, offsets or the bag of each row, got shape {index.shape}"
        )
    whole = np.issubdtype(index.dtype, np.integer)
    if whole and index[0] == 0 and index[-1] == n and bool((np.diff(index) >= 0).all()):
        empty = np.flatnonzero(np.diff(index) == 0)
        if len(empty):
            raise DataError(f"every bag needs at least one row, bag {empty[0]} of the offsets has none")
        return features, torch.as_tensor(index.astype(np.int64)), torch.arange(n)
    if len(index) != n:
        raise DataError(
            f"bags must be offsets from 0 to the number of rows, or name the bag of each of the {n} rows; "
            f"got {len(index)} values from {index[0]} to {index[-1]}"
        )
    missing = np.flatnonzero(pd.isna(index))
    if len(missing):
        raise DataError(f"row {missing[0]} of X has no bag: its entry in bags is {index[missing[0]]}")
    _, number = np.unique(index, return_inverse=True)
    order = torch.as_tensor(np.argsort(number, kind="stable"))
    offsets = np.concatenate([[0], np.bincount(number).cumsum()])
    return features[order], torch.as_tensor(offsets), order


def _labelled(x: ArrayLike | Tensor, bags: ArrayLike | Tensor, labels: ArrayLike | Tensor) -> Bags:
    """Packed features, offsets and labels. `DataError` if there is not one label 0 or 1 a bag."""
    features, offsets, _ = pack(x, bags)
    values = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if values.shape != (len(offsets) - 1,):
        raise DataError(f"there are {len(offsets) - 1} bags, but labels of shape {values.shape}")
    other = values[~np.isin(values, (0, 1))]
    if len(other):
        raise DataError(f"labels must be 0 or 1, got {other[0]}; leave unlabelled bags out")
    return features, offsets.to(features.device), torch.as_tensor(values.astype(np.int64)).to(features.device)


class Head(BaseEstimator):
    """A Gaussian-process head of the VGPMIL family; every field of `HeadSettings` is a parameter.

    Besides its name, `density` may be an object with `theta` and `log_psi`
    (`ich_mil.gp.densities.LogDensity` makes one of any differentiable log ψ), and `kernel` a GPyTorch
    kernel, used as it is.

    Attributes:
        model_: the fitted `SparseGP`, with its calibration.
        report_: what happened in the fit.
        n_features_in_: D.
        classes_: [0, 1].
    """

    model_: SparseGP
    report_: FitReport
    n_features_in_: int

    def __init__(self, **parameters: Any) -> None:
        """Take settings by name; they are checked in `fit`.

        Raises:
            TypeError: an unknown name.
        """
        defaults = vars(HeadSettings())
        unknown = sorted(set(parameters) - set(defaults))
        if unknown:
            raise TypeError(f"Head has no parameter {unknown[0]!r}; it has {', '.join(defaults)}")
        for name, value in (defaults | parameters).items():
            setattr(self, name, value)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted(HeadSettings.names())

    def _parts(self) -> tuple[HeadSettings, Density | None, gpytorch.kernels.Kernel | None]:
        """Checked settings, and density and kernel where they were given as objects."""
        parameters = self.get_params(deep=False)
        density = None if isinstance(parameters["density"], str) else parameters.pop("density")
        kernel = None if isinstance(parameters["kernel"], str) else parameters.pop("kernel")
        return HeadSettings(**parameters), density, kernel

    def fit(
        self,
        X: ArrayLike | Tensor,
        bags: ArrayLike | Tensor,
        labels: ArrayLike | Tensor,
        *,
        validation: tuple[ArrayLike | Tensor, ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
        groups: Sequence[str] | None = None,
    ) -> Self:
        """Fit and calibrate.

        Args:
            X: (N, D) features, in any unit: they are standardised inside.
            bags: offsets (B + 1,) or the bag of each row (N,).
            labels: (B,) in {0, 1}, in the order of the offsets, or of `np.unique(bags)`.
            validation: X, bags and labels of other scans: for early stopping, and to calibrate on. Without,
                the fit runs to its end and is calibrated on held-out folds of the training scans.
            groups: (B,) patients, whose scans stay in one fold; not needed with `validation`.

        Returns:
            Itself.

        Raises:
            DataError: input that cannot be used.
            ValueError: a parameter out of range.
        """
        settings, density, kernel = self._parts()
        train = _labelled(X, bags, labels)
        held = None if validation is None else _labelled(*validation)
        check_bags(*train, "training scans")
        calibration = None
        if held is None:  # first, so that too few scans for the folds are told at once
            calibration = cross_fit(
                train, settings, patients=groups, samples=SAMPLES, density=density, kernel=kernel
            )
        model, report = fit(*train, settings=settings, validation=held, density=density, kernel=kernel)
        model.calibration = calibration if held is None else calibrate(model, held, samples=SAMPLES)
        self.model_, self.report_ = model, report
        self.n_features_in_ = train[0].shape[1]
        self.classes_ = np.array([0, 1])
        return self

    def predict(self, X: ArrayLike | Tensor, bags: ArrayLike | Tensor) -> np.ndarray:
        """The label (B,) of each bag at a probability of ½."""
        return (self._predictions(X, bags)[0].scan_mean.numpy() >= 0.5).astype(np.int64)

    def predict_bag_proba(
        self, X: ArrayLike | Tensor, bags: ArrayLike | Tensor, *, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Calibrated probability (B,) that a bag is positive, and its standard deviation if asked for.

        Bags come in the order of the offsets, or of `np.unique(bags)`.
        """
        predictions, _ = self._predictions(X, bags)
        mean, std = predictions.scan_mean.numpy(), predictions.scan_std.numpy()
        return (mean, std) if return_std else mean

    def predict_instance_proba(
        self, X: ArrayLike | Tensor, bags: ArrayLike | Tensor, *, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Calibrated probability (N,) of each row of `X`, and its standard deviation if asked for."""
        predictions, order = self._predictions(X, bags)
        mean, std = (np.empty(len(order)) for _ in range(2))
        mean[order], std[order] = predictions.slice_mean.numpy(), predictions.slice_std.numpy()
        return (mean, std) if return_std else mean

    def score(self, X: ArrayLike | Tensor, bags: ArrayLike | Tensor, labels: ArrayLike | Tensor) -> float:
        """Accuracy over bags, as of any scikit-learn classifier."""
        return float(accuracy_score(_labelled(X, bags, labels)[2].numpy(), self.predict(X, bags)))

    def _predictions(self, X: ArrayLike | Tensor, bags: ArrayLike | Tensor) -> tuple[Predictions, np.ndarray]:
        if not hasattr(self, "model_"):
            raise NotFittedError("this Head is not fitted yet; call 'fit' first")
        x, offsets, order = pack(X, bags)
        calibration = self.model_.calibration
        return predict(self.model_, x, offsets, None, samples=SAMPLES, calibration=calibration), order.numpy()

    def save(self, folder: Path) -> None:
        """Write the fitted head to a folder: safetensors and JSON."""
        if not hasattr(self, "model_"):
            raise NotFittedError("this Head is not fitted yet; call 'fit' first")
        save_head(self.model_, Path(folder))

    @classmethod
    def load(cls, folder: Path, *, kernel: gpytorch.kernels.Kernel | None = None) -> Self:
        """Read what `save` wrote; it predicts the same to the bit.

        The report of the fit is not stored, nor a density object: its parameter is then `logistic`.

        Args:
            folder: of a saved head.
            kernel: one like it, if the head was fitted with a kernel object of yours.
        """
        model = load_head(Path(folder), kernel=kernel)
        head = cls(**vars(model.settings) | ({} if kernel is None else {"kernel": kernel}))
        head.model_, head.n_features_in_ = model, len(model.x_mean)
        head.classes_ = np.array([0, 1])
        return head


Head.__signature__ = Signature(
    [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in vars(HeadSettings()).items()]
)
