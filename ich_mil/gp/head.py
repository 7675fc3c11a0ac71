"""scikit-learn estimator over bags for the sparse GP heads; every field of `HeadSettings` is a parameter.

In: features (N, D) as numpy array or tensor, the bag of each row, and one label per bag. Out: probabilities
of bags and instances with their standard deviations, as numpy arrays.

    head = Head(density="gamma", n_inducing=100)
    head.fit(X, bags, labels, validation=(X_val, bags_val, labels_val))
    p, std = head.predict_bag_proba(X_new, bags_new, return_std=True)

`bags` is either offsets (B + 1,) from 0 to N, where bag b owns rows `offsets[b]:offsets[b + 1]`; or the bag
of each row (N,), any values in any order, where bags come in the sorted order of their values, as by
`np.unique`. A head that smooths along z (`smooth_mm`) also takes `positions` (N,), mm along the scan.

A head is fitted on the device of `X` and stays there; a loaded head is on the CPU. Processes started by
`torchrun` fit one head together: each calls `fit` with the same scans and works on a share of them.

Shapes: B bags (scans), N instances (slices), D features.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Self

import gpytorch
import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from ich_mil.errors import DataError
from ich_mil.gp.bags import (
    Bags,
    Held,
    Values,
    canonical_rows,
    check_bags,
    check_columns,
    check_order,
    column_names,
    pack,
    pack_labelled,
    pack_positions,
)
from ich_mil.gp.fit import fit
from ich_mil.gp.fit_calibration import calibrate, cross_fit
from ich_mil.gp.inference.ascent import FitReport
from ich_mil.gp.inference.kernel_choice import choose_kernel
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.predict import Predictions, predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.gp.storage import load_head, save_head

SAMPLES = 1000
"""Number of posterior samples of a prediction."""


@contextmanager
def _usual_tensors() -> Iterator[None]:
    """Disable inference mode and autocast, and make the CPU the default device.

    Lightning validates in inference mode, whose tensors autograd never accepts, and in autocast, which
    computes float32 products in bfloat16.
    """
    on_cpu = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    whole = [torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda")]
    with torch.inference_mode(False), on_cpu, whole[0], whole[1]:
        yield


def _pack_held(validation: Held) -> Bags:
    """Pack the validation scans; error messages name them as the validation scans."""
    if not isinstance(validation, tuple | list) or len(validation) not in (3, 4):
        raise ValueError("validation must be (X, bags, labels), or (X, bags, labels, positions)")
    try:
        return pack_labelled(*validation)
    except DataError as error:
        raise DataError(f"validation: {error}") from error


class Head(BaseEstimator):
    """Gaussian-process head of the VGPMIL family; every field of `HeadSettings` is a parameter.

    `density` is a name or an object with `theta`, `log_psi` and `bounded`, such as a `LogDensity` of
    `gp.observations.densities`. `kernel` is a name or a GPyTorch kernel, used without scale or bias.

    Attributes:
        model_: fitted `SparseGP`, with its calibration and the chosen settings.
        report_: report of the fit.
        n_features_in_: D.
        feature_names_in_: column names (D,) if `X` was a DataFrame; a DataFrame given to `predict` must have
            the same columns.
        classes_: [0, 1].
    """

    model_: SparseGP
    report_: FitReport
    n_features_in_: int

    def __init__(self, **parameters: Any) -> None:
        """Set parameters by name; their values are checked in `fit`.

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
        """Validated settings, and density and kernel if they are objects."""
        parameters = self.get_params(deep=False)
        density = None if isinstance(parameters["density"], str) else parameters.pop("density")
        kernel = None if isinstance(parameters["kernel"], str) else parameters.pop("kernel")
        if "density" not in parameters and not isinstance(density, Density):
            raise ValueError(
                "density must be one of gamma, logistic, or an object with theta, log_psi, bounded; got "
                f"{density!r}"
            )
        if "kernel" not in parameters and not isinstance(kernel, gpytorch.kernels.Kernel):
            raise ValueError(
                "kernel must be the name of a class in gpytorch.kernels, or a kernel made of one; got "
                f"{kernel!r}"
            )
        settings = HeadSettings(**parameters)
        if settings.family == "multimodal":
            raise ValueError("family 'multimodal' is no Gaussian process; use MultimodalMIL")
        return settings, density, kernel

    @_usual_tensors()
    def fit(
        self,
        X: Values,
        bags: Values,
        labels: Values,
        *,
        positions: Values | None = None,
        validation: Held | None = None,
        groups: Sequence[str] | None = None,
        calibrates: Values | None = None,
    ) -> Self:
        """Fit the head and its calibration.

        Args:
            X: (N, D) features in any unit; they are standardised internally.
            bags: offsets (B + 1,) or the bag of each row (N,).
            labels: (B,) in {0, 1}, in the order of the offsets, or of `np.unique(bags)`.
            positions: (N,) mm along the scan of each row; needed if the head smooths along z.
            validation: X, bags, labels (and positions) of other scans, for early stopping and for
                calibration. Without them the fit runs until convergence or the sweep limit, and the
                calibration is fitted to held-out folds of the training scans.
            groups: (B,) patient of each bag, in the order of the labels; the scans of a patient stay in one
                fold.
            calibrates: (B,) boolean, in the order of the labels: whether the calibration is fitted to this
                bag; None: to all. If some bags are single labelled instances, select only the bags of
                several instances.

        Returns:
            self.

        Raises:
            DataError: input that cannot be used.
            ConfigError: a kernel or density that cannot be used.
            ValueError: a parameter out of range, or a malformed `validation`.
        """
        settings, density, kernel = self._parts()
        train = pack_labelled(X, bags, labels, positions)
        check_order(groups, bags, "groups")
        names = column_names(X)
        held = None if validation is None else _pack_held(validation)
        if validation is not None:
            check_columns(validation[0], names)
        check_bags(*train[:3], "training scans")
        if kernel is None:
            settings = choose_kernel(train, settings, patients=groups, density=density)
        calibration = None
        if held is None:  # before the fit, so that too few scans for the folds raise at once
            calibration = cross_fit(
                train,
                settings,
                patients=groups,
                samples=SAMPLES,
                density=density,
                kernel=kernel,
                places=None if calibrates is None else torch.as_tensor(calibrates).nonzero().squeeze(1),
            )
        model, report = fit(
            *train[:3],
            settings=settings,
            positions=train.positions,
            validation=held,
            density=density,
            kernel=kernel,
        )
        model.calibration = calibration if held is None else calibrate(model, held, samples=SAMPLES)
        model.feature_names = names
        self.report_ = report
        self._adopt(model)
        return self

    def _adopt(self, model: SparseGP) -> None:
        """Set the fitted attributes from `model`."""
        self.model_, self.n_features_in_ = model, len(model.x_mean)
        self.classes_ = np.array([0, 1])
        if model.feature_names is not None:
            self.feature_names_in_ = np.array(model.feature_names, dtype=object)

    def predict(
        self,
        X: Values,
        bags: Values,
        *,
        positions: Values | None = None,
    ) -> np.ndarray:
        """Label (B,) of each bag: 1 from a calibrated probability of ½."""
        return (self._predictions(X, bags, positions)[0].scan_mean.numpy() >= 0.5).astype(np.int64)

    def predict_bag_proba(
        self,
        X: Values,
        bags: Values,
        *,
        positions: Values | None = None,
        return_std: bool = False,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Calibrated probability (B,) that each bag is positive; with `return_std` also its std (B,).

        Bags come in the order of the offsets, or of `np.unique(bags)`. Mean and standard deviation are over
        `SAMPLES` posterior samples. Their noise is seeded by the values of the bag's rows, so the result does
        not depend on the other bags or on the order of the rows.
        """
        predictions, _ = self._predictions(X, bags, positions)
        mean, std = predictions.scan_mean.numpy(), predictions.scan_std.numpy()
        return (mean, std) if return_std else mean

    def predict_instance_proba(
        self,
        X: Values,
        bags: Values,
        *,
        positions: Values | None = None,
        return_std: bool = False,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Calibrated probability (N,) that each row of `X` is positive; with `return_std` also its std."""
        predictions, order = self._predictions(X, bags, positions)
        mean, std = (np.empty(len(order)) for _ in range(2))
        mean[order], std[order] = predictions.slice_mean.numpy(), predictions.slice_std.numpy()
        return (mean, std) if return_std else mean

    def score(
        self,
        X: Values,
        bags: Values,
        labels: Values,
        *,
        positions: Values | None = None,
    ) -> float:
        """Accuracy of `predict` over bags."""
        said = self.predict(X, bags, positions=positions)
        return float(accuracy_score(pack_labelled(X, bags, labels).labels.cpu().numpy(), said))

    @_usual_tensors()
    def _predictions(
        self, X: Values, bags: Values, positions: Values | None
    ) -> tuple[Predictions, np.ndarray]:
        check_is_fitted(self, "model_")
        check_columns(X, self.model_.feature_names)
        x, offsets, order = pack(X, bags)
        place = canonical_rows(x, offsets)
        x, order = x[place], order[place]
        said = predict(
            self.model_,
            x,
            offsets,
            None,
            positions=pack_positions(positions, order),
            samples=SAMPLES,
            calibration=self.model_.calibration,
        )
        return said, order.numpy()

    def save(self, folder: Path) -> None:
        """Write the fitted head to a folder, as safetensors and JSON.

        Raises:
            NotFittedError: the head is not fitted.
        """
        check_is_fitted(self, "model_")
        save_head(self.model_, Path(folder))

    @classmethod
    @_usual_tensors()
    def load(cls, folder: Path, *, kernel: gpytorch.kernels.Kernel | None = None) -> Self:
        """Load a head written by `save`; its predictions are the same, bit for bit.

        The report of the fit and a density object are not stored; the parameter `density` of a head that was
        fitted with a density object is then `logistic`.

        Args:
            folder: folder of a saved head.
            kernel: a kernel of the same kind, if the head was fitted with a kernel object.

        Raises:
            ModelError: the folder holds no valid head, or `kernel` does not match.
        """
        model = load_head(Path(folder), kernel=kernel)
        head = cls(**vars(model.settings) | ({} if kernel is None else {"kernel": kernel}))
        head._adopt(model)
        return head


Head.__signature__ = Signature(
    [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in vars(HeadSettings()).items()]
)
