"""scikit-learn estimator over bags for the sparse GP heads.

In: features (N, D) as numpy array, tensor or DataFrame, the bag of each row, and one label per bag; or a list
with the features of each bag. Out: probabilities of bags and instances with their standard deviations.

    head = Head(density="gamma", n_inducing=100)
    head.fit(X, bags, labels, validation=(X_val, bags_val, labels_val))
    p, std = head.predict_bag_proba(X_new, bags_new, return_std=True)

With a list, `fit(X, y)`, `predict_proba(X)` and `score(X, y)` are those of scikit-learn, as `cross_val_score`
and `GridSearchCV` call them.

`bags` is either offsets (B + 1,) from 0 to N, where bag b owns rows `offsets[b]:offsets[b + 1]`; or the bag
of each row (N,), any values in any order, where bags come in the sorted order of their values, as by
`np.unique`.

A head is fitted on the device of `X` and stays there; a loaded head is on the CPU. Processes started by
`torchrun` fit one head together: each calls `fit` with the same scans and works on a share of them.

Shapes: B bags (scans), N instances (slices), D features.
"""

from collections.abc import Sequence
from dataclasses import fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Self

import gpytorch
import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from ich_mil.errors import DataError
from ich_mil.gp.bags import (
    Values,
    check_both_labels,
    labels_of_list,
    pack,
    pack_held,
)
from ich_mil.gp.fit_calibration import fit_calibrated
from ich_mil.gp.inference.kernel_choice import choose_kernel
from ich_mil.gp.inference.report import FitReport
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.predict import Predictions, predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.gp.storage import load_head, save_head
from ich_mil.gp.tables import check_columns, column_names
from ich_mil.gp.threads import few_threads

SAMPLES = 1000
"""Number of posterior samples of a prediction."""

Tables = Values | Sequence[Values]
"""(N, D) features, or a list of the features (n, D) of each bag."""


class Head(ClassifierMixin, BaseEstimator):
    """Gaussian-process head of the VGPMIL family, with the interface of scikit-learn.

    `Head(settings)` takes `HeadSettings`, `Head(density="gamma", alpha=1.0)` the same settings by name. They
    are attributes, and parameters of `get_params` and `set_params`; `fit` checks them. `density` may also be
    an object such as `LogDensity`, `kernel` a GPyTorch kernel, used without scale or bias.

    Attributes:
        model_: fitted `SparseGP`, with its calibration and the chosen settings.
        report_: report of the fit.
        n_features_in_: D.
        feature_names_in_: column names (D,) if `X` was a DataFrame; a DataFrame given to `predict` must have
            the same columns in the same order.
        classes_: [0, 1].
    """

    model_: SparseGP
    report_: FitReport
    n_features_in_: int
    feature_names_in_: np.ndarray
    classes_: np.ndarray

    def __init__(self, settings: HeadSettings | None = None, /, **parameters: Any) -> None:
        if unknown := sorted({*parameters} - {*HeadSettings.names()}):
            raise TypeError(f"Head has no parameter {unknown[0]!r}; it has {', '.join(HeadSettings.names())}")
        for name in HeadSettings.names():
            setattr(self, name, parameters.get(name, getattr(settings or HeadSettings, name)))

    # scikit-learn reads the names and defaults of the parameters here
    __init__.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter("self", Parameter.POSITIONAL_ONLY)]
        + [Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default) for f in fields(HeadSettings)]
    )

    def _parts(self) -> tuple[HeadSettings, Density | None, gpytorch.kernels.Kernel | None]:
        """Validated settings, and density and kernel if they are objects."""
        parameters = self.get_params(deep=False)
        density = parameters.pop("density") if isinstance(self.density, Density) else None
        kernel = parameters.pop("kernel") if isinstance(self.kernel, gpytorch.kernels.Kernel) else None
        # numbers of a grid may be numpy's
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in parameters.items()}
        return HeadSettings(**plain), density, kernel

    def fit(
        self,
        X: Tables,
        bags: Values | None = None,
        labels: Values | None = None,
        *,
        validation: Sequence[Any] | None = None,
        groups: Sequence[str] | None = None,
        calibrates: Values | None = None,
    ) -> Self:
        """Fit the head and its calibration.

        Args:
            X: (N, D) features in any unit; they are standardised internally. Or, without `bags`, the tables
                (n, D) of B bags: a list, Series or object array of them, or an array (B, n, D).
            bags: offsets (B + 1,) or the bag of each row (N,); for a list without `labels`, the labels.
            labels: (B,) in {0, 1}, in the order of the list, of the offsets, or of `np.unique(bags)`.
            validation: X, bags, labels of other scans, for early stopping and for calibration; bags is None
                for a list. Without them the fit runs until convergence or the sweep
                limit, and the calibration is fitted to held-out folds of the training scans.
            groups: (B,) patient of each bag, in the order of the labels; the scans of a patient stay in one
                fold.
            calibrates: (B,) boolean, in the order of the labels: whether the calibration is fitted to this
                bag; None: to all. If some bags are single labelled instances, select only the bags of
                several instances.

        Raises:
            DataError: input that cannot be used.
            ConfigError: a kernel or density that cannot be used.
            ValueError: a parameter out of range, or a malformed `validation`.
        """
        settings, density, kernel = self._parts()
        bags, labels = labels_of_list(X, bags, labels)
        if labels is None:
            raise DataError(
                "labels must be given, one for each bag: fit(X, bags, labels); without bags X must be a list "
                "of 2-D arrays"
            )
        train, _ = pack(X, bags, labels, groups=groups, calibrates=calibrates)
        used = None if calibrates is None else np.asarray(calibrates)
        if used is not None and (used.dtype != bool or used.shape != (len(train.truth),)):
            raise DataError(
                f"calibrates must be {len(train.truth)} booleans, one for each bag, got {used.dtype} of "
                f"shape {used.shape}"
            )
        names = column_names(X)
        held = None if validation is None else pack_held(validation)
        if validation is not None:
            check_columns(validation[0], names)
        check_both_labels(train, "training scans")
        with few_threads(len(train.x)):
            if kernel is None:
                settings = choose_kernel(train, settings, patients=groups, density=density)
            model, self.report_ = fit_calibrated(
                train,
                settings,
                validation=held,
                patients=groups,
                calibrates=None if used is None else torch.as_tensor(np.flatnonzero(used)),
                density=density,
                kernel=kernel,
            )
        model.feature_names = names
        self._adopt(model)
        return self

    def _adopt(self, model: SparseGP) -> None:
        """Set the fitted attributes from `model`."""
        self.model_, self.n_features_in_ = model, len(model.x_mean)
        self.classes_ = np.array([0, 1])
        if model.feature_names is not None:
            self.feature_names_in_ = np.array(model.feature_names, dtype=object)

    def predict(self, X: Tables, bags: Values | None = None) -> np.ndarray:
        """Label (B,) of each bag: 1 from a calibrated probability of ½."""
        return (self._predictions(X, bags)[0].scan_mean.numpy() >= 0.5).astype(np.int64)

    def predict_proba(self, X: Tables, bags: Values | None = None) -> np.ndarray:
        """Probabilities (B, 2) of the classes 0 and 1 of each bag, from `predict_bag_proba`."""
        p = self._predictions(X, bags)[0].scan_mean.numpy()
        return np.stack([1 - p, p], axis=1)

    def predict_bag_proba(
        self, X: Tables, bags: Values | None = None, *, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Calibrated probability (B,) that each bag is positive; with `return_std` also its std (B,).

        Bags come in the order of the list, of the offsets, or of `np.unique(bags)`. Values are of `SAMPLES`
        posterior samples; they depend neither on the other bags nor on the order of the rows.
        """
        predictions, _ = self._predictions(X, bags)
        mean, std = predictions.scan_mean.numpy(), predictions.scan_std.numpy()
        return (mean, std) if return_std else mean

    def predict_instance_proba(
        self, X: Tables, bags: Values | None = None, *, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Calibrated probability (N,) that each row of `X` is positive; with `return_std` also its std."""
        predictions, order = self._predictions(X, bags)
        mean, std = (np.empty(len(order)) for _ in range(2))
        mean[order], std[order] = predictions.slice_mean.numpy(), predictions.slice_std.numpy()
        return (mean, std) if return_std else mean

    def score(self, X: Tables, bags: Values | None = None, labels: Values | None = None) -> float:
        """Accuracy of `predict` over bags."""
        bags, labels = labels_of_list(X, bags, labels)
        p = self._predictions(X, bags, labels)[0].scan_mean.numpy()
        return float(accuracy_score(np.asarray(labels), p >= 0.5))

    def _predictions(
        self, X: Tables, bags: Values | None, labels: Values | None = None
    ) -> tuple[Predictions, np.ndarray]:
        check_is_fitted(self, "model_")
        check_columns(X, self.model_.feature_names)
        packed, order = pack(X, bags, labels)
        calibration = self.model_.calibration
        with few_threads(len(packed.x)):
            predictions = predict(self.model_, packed, samples=SAMPLES, calibration=calibration)
        return predictions, order.numpy()

    def save(self, folder: Path) -> None:
        """Write the fitted head to a folder, as safetensors and JSON.

        Raises:
            NotFittedError: the head is not fitted.
        """
        check_is_fitted(self, "model_")
        save_head(self.model_, Path(folder))

    @classmethod
    def load(cls, folder: Path, *, kernel: gpytorch.kernels.Kernel | None = None) -> Self:
        """Load a head written by `save`; its predictions are the same, bit for bit.

        Parameters that were None have the values that `fit` chose, and a clone of the head has them too. The
        report of the fit and a density object (the parameter is then `logistic`) are not stored.

        Args:
            folder: folder of a saved head.
            kernel: a kernel of the same kind, if the head was fitted with a kernel object.

        Raises:
            ModelError: the folder holds no valid head, or `kernel` does not match.
        """
        model = load_head(Path(folder), kernel=kernel)
        head = cls(model.settings, **({} if kernel is None else {"kernel": kernel}))
        head._adopt(model)
        return head
