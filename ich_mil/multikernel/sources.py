"""Feature tables and precomputed kernel matrices -> kernel matrices that can be compared and inverted.

In: for each source a table (n, D) with a GPyTorch kernel, or a matrix (n, n); a class for each scan. Out:
S (d, n, n), each with a mean diagonal of 1 and `JITTER` on it, and what new scans need to be compared.

Shapes: n training scans, m new scans, D features, d sources, C classes.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import gpytorch
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ich_mil.errors import ConfigError, DataError
from ich_mil.gp.tables import check_aligned, check_columns, column_names

Sources = Mapping[str, Any] | Sequence[Any]

JITTER = 1e-6
"""Added to the diagonal of a matrix of mean diagonal 1."""
FEWEST = 5
"""Scans a class needs."""
NEGATIVE = 1e-8
"""Eigenvalues below minus this, over the largest, are no rounding."""
ASYMMETRY = 1e-8
"""Largest |S - Sᵀ| over the largest |S|."""


def named(sources: Sources, what: str = "sources") -> dict[str, Any]:
    """Sources by name; those of a list are called source_0, source_1 and so on.

    Raises:
        DataError: there is none.
    """
    if isinstance(sources, np.ndarray | Tensor | pd.DataFrame):
        raise DataError(f"{what} must be a list or a dict of tables, not a single {type(sources).__name__}")
    by_name = (
        {str(name): value for name, value in sources.items()}
        if isinstance(sources, Mapping)
        else {f"source_{h}": value for h, value in enumerate(sources)}
    )
    if not by_name:
        raise DataError(f"{what} is empty; at least one source is needed")
    return by_name


def check_scans(sources: Sources, y: Any = None) -> None:
    """Raise `DataError` unless all sources, and the classes y, that are indexed are so in the same way."""
    tables = []
    for name, value in named(sources).items():
        # a pair: covariances with the training scans, and own variances
        pair = isinstance(value, tuple | list) and len(value) == 2
        tables += [(f"{name}[{k}]", table) for k, table in enumerate(value)] if pair else [(name, value)]
    check_aligned(*tables, ("y", y))


def _as_matrix(name: str, value: Any, device: torch.device) -> Tensor:
    """Two-dimensional float64 without NaN, or `DataError`."""
    try:
        x = torch.as_tensor(value if isinstance(value, Tensor) else np.array(value, dtype=np.float64))
        x = x.detach().to(device=device, dtype=torch.float64).contiguous()
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: is no table of numbers ({error})") from error
    if x.ndim != 2 or 0 in x.shape:
        raise DataError(f"{name}: must have two dimensions and not be empty, has shape {tuple(x.shape)}")
    if bad := int((~x.isfinite().all(1)).sum()):
        row = int((~x.isfinite().all(1)).nonzero()[0])
        raise DataError(f"{name}: NaN or infinite values in {bad} rows, the first is row {row}")
    return x


def one_hot(y: Any, device: torch.device) -> tuple[np.ndarray, Tensor]:
    """Classes (C,) and one-hot labels (C, n).

    Raises:
        DataError: labels are missing, there is one class only, or one has fewer than `FEWEST` scans.
    """
    labels = np.asarray(y.cpu() if isinstance(y, Tensor) else y)
    if labels.ndim != 1:
        raise DataError(f"y must have one dimension, has shape {labels.shape}")
    if missing := np.flatnonzero(pd.isna(labels)).tolist():
        raise DataError(f"y: scan {missing[0]} has no class ({len(missing)} in all)")
    classes, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise DataError(f"y has {len(classes)} class; at least two are needed")
    if counts.min() < FEWEST:
        few = int(counts.argmin())
        raise DataError(
            f"class {classes[few]!s} has {counts[few]} scans, at least {FEWEST} are needed; leave the class "
            "out or join it with another"
        )
    hot = torch.nn.functional.one_hot(torch.as_tensor(index), len(classes)).T
    return classes, hot.to(device=device, dtype=torch.float64).contiguous()


def _check_kernel_matrix(name: str, S: Tensor) -> None:
    """Raise `DataError` unless S (n, n) is symmetric, positive semi-definite and not constant."""
    largest = float(S.abs().max())
    if S.shape[0] != S.shape[1]:
        raise DataError(f"{name}: a precomputed kernel matrix must be square, has shape {tuple(S.shape)}")
    if float((S - S.mT).abs().max()) > ASYMMETRY * largest:
        raise DataError(
            f"{name}: the kernel matrix is not symmetric (|S - Sᵀ| up to {(S - S.mT).abs().max():.3g})"
        )
    if float(S.max() - S.min()) <= 1e-12 * max(largest, 1e-300):
        raise DataError(
            f"{name}: is constant, all entries are {float(S[0, 0]):.3g}; it cannot separate scans"
        )
    values = torch.linalg.eigvalsh(S)
    if float(values[0]) < -NEGATIVE * float(values[-1]) or float(values[-1]) <= 0:
        raise DataError(
            f"{name}: the kernel matrix is not positive definite, its smallest eigenvalue is "
            f"{float(values[0]):.3g} (largest {float(values[-1]):.3g})"
        )


@dataclass
class Source:
    """One source of the training scans.

    Attributes:
        name: of the source.
        kernel: of a table; None for a precomputed matrix.
        given: the kernel came from the caller.
        x: standardised training table (n, D); None for a matrix.
        mean: of the columns (D,).
        std: likewise; 1 where a column is constant.
        scale: mean diagonal of the kernel matrix, by which it is divided.
        columns: names of the columns of a DataFrame: features, or the training scans of a matrix.
    """

    name: str
    kernel: gpytorch.kernels.Kernel | None
    given: bool
    x: Tensor | None
    mean: Tensor | None
    std: Tensor | None
    scale: float
    columns: tuple[str, ...] | None

    @classmethod
    @torch.no_grad()
    def fit(
        cls, name: str, value: Any, choice: Any, *, normalise: bool, device: torch.device
    ) -> tuple[Self, Tensor]:
        """The source and its matrix S (n, n), jitter included.

        Raises:
            DataError: the table or matrix cannot be used.
            ConfigError: the kernel cannot.
        """
        x = _as_matrix(name, value, device)
        if isinstance(choice, str) and choice != "precomputed":
            raise ConfigError(
                f"kernel of {name} must be a GPyTorch kernel, 'precomputed' or None, got {choice!r}"
            )
        kernel, mean, std, table = None, None, None, None
        if choice == "precomputed":
            if isinstance(value, pd.DataFrame):
                check_aligned((name, value), (f"{name}.T", value.T))
            S = x
        else:
            mean, std = x.mean(0), x.std(0, correction=0)
            constant = std <= 1e-12 * x.abs().amax(0)
            if bool(constant.all()):
                raise DataError(f"{name}: is constant, every scan has the same values")
            std = torch.where(constant, 1.0, std)
            table = (x - mean) / std
            kernel = _default_kernel(x.shape[1]) if choice is None else copy.deepcopy(choice)
            if not isinstance(kernel, gpytorch.kernels.Kernel):
                raise ConfigError(f"kernel of {name} must be a GPyTorch kernel, got {type(kernel).__name__}")
            kernel = kernel.to(device=device, dtype=torch.float64).eval()
            S = kernel(table).to_dense()
            S = (S + S.mT) / 2
        _check_kernel_matrix(name, S)
        scale = float(S.diagonal().mean()) if normalise else 1.0
        source = cls(name, kernel, choice is not None, table, mean, std, scale, column_names(value))
        S = S / scale
        return source, S + JITTER * S.diagonal().mean() * torch.eye(len(S)).to(S)

    @torch.no_grad()
    def compare(self, value: Any, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Covariances of new scans with the training scans (m, n), and their own variances (m,).

        Raises:
            DataError: another number of features, or no pair of cross matrix and diagonal where the source
                is a precomputed matrix.
        """
        if self.kernel is None or self.x is None or self.mean is None or self.std is None:
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise DataError(
                    f"{self.name}: is precomputed; give the kernel of new with training scans (m, n) and the "
                    "kernel of each new scan with itself (m,) as a pair"
                )
            check_columns(value[0], self.columns, self.name)
            cross = _as_matrix(self.name, value[0], device)
            diagonal = _as_matrix(self.name, np.asarray(value[1])[:, None], device)[:, 0]
            if cross.shape != (len(diagonal), n):
                raise DataError(
                    f"{self.name}: the kernel of new with training scans must have shape "
                    f"({len(diagonal)}, {n}), has {tuple(cross.shape)}"
                )
            return cross / self.scale, diagonal / self.scale
        check_columns(value, self.columns, self.name)
        x = _as_matrix(self.name, value, device)
        if x.shape[1] != len(self.mean):
            raise DataError(f"{self.name}: has {x.shape[1]} features, was fitted with {len(self.mean)}")
        x = (x - self.mean) / self.std
        diagonal = self.kernel(x, diag=True)
        return self.kernel(x, self.x).to_dense() / self.scale, diagonal / self.scale

    def stored(self, h: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors, named by h, and description for a file; `restored` reads them."""
        arrays = {"x": self.x, "mean": self.mean, "std": self.std}
        metadata = {name: getattr(self, name) for name in ("name", "scale", "given", "columns")}
        tensors = {f"{name}.{h}": array for name, array in arrays.items() if array is not None}
        return tensors, metadata | {"precomputed": self.kernel is None}

    @classmethod
    def restored(
        cls, h: int, metadata: dict[str, Any], tensors: dict[str, Tensor], choice: Any, *, normalise: bool
    ) -> tuple[Self, Tensor | None]:
        """The source of `stored`, and its matrix (n, n) from the kernel `choice`; None for a matrix."""
        columns = tuple(metadata["columns"]) if metadata.get("columns") else None
        if metadata["precomputed"]:
            return cls(metadata["name"], None, True, None, None, None, metadata["scale"], columns), None
        source, S = cls.fit(
            metadata["name"], tensors[f"x.{h}"], choice, normalise=normalise, device=torch.device("cpu")
        )
        source.x, source.mean, source.std = (tensors[f"{name}.{h}"] for name in ("x", "mean", "std"))
        source.scale, source.given, source.columns = metadata["scale"], metadata["given"], columns
        return source, S


def _default_kernel(width: int) -> gpytorch.kernels.Kernel:
    """exp(-‖x - x'‖² / (2D)) of D standardised features, the start of `ich_mil.gp`."""
    kernel = gpytorch.kernels.RBFKernel()
    kernel.lengthscale = width**0.5
    return kernel


def fit_sources(
    sources: Sources, kernels: Any, n: int, *, normalise: bool, device: torch.device
) -> tuple[list[Source], Tensor]:
    """All sources and S (d, n, n).

    Args:
        sources: tables or matrices, by name or in order.
        kernels: a kernel, 'precomputed' or None for each, by name or in order; None means all None.
        n: number of labels.
        normalise: divide each matrix by its mean diagonal.
        device: of the result.

    Raises:
        DataError: a source cannot be used, or is not aligned with the labels.
        ConfigError: kernels that do not fit the sources.
    """
    values = named(sources)
    choices = dict.fromkeys(values) if kernels is None else named(kernels, "kernels")
    if not isinstance(kernels, Mapping) and len(choices) == len(values):
        choices = dict(zip(values, choices.values(), strict=True))
    if set(choices) - set(values) or (kernels is not None and len(choices) != len(values)):
        raise ConfigError(f"kernels are given for {', '.join(choices)}, the sources are {', '.join(values)}")
    fitted, matrices = [], []
    for name, value in values.items():
        rows = len(value) if hasattr(value, "__len__") else 0
        if rows != n:
            raise DataError(f"{name}: has {rows} rows, there are {n} labels")
        source, S = Source.fit(name, value, choices[name], normalise=normalise, device=device)
        fitted.append(source)
        matrices.append(S)
    return fitted, torch.stack(matrices)
