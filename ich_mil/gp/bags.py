"""Packed bags of slices, and the checks of what users give.

`pack` checks features, bags and labels once and returns `Bags`, in which bag b owns the rows
`offsets[b]:offsets[b + 1]`. All functions of the package trust a `Bags`.

Shapes: B bags (scans), N instances (slices), D features.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.gp.tables import (
    check_aligned,
    check_columns,
    check_rows,
    column_names,
    described,
    list_of_bags,
)
from ich_mil.kernels.rbf_gram import LARGEST, measurable
from ich_mil.kernels.segments import take_bags

CHUNK = 65_536
"""Number of rows that are checked, or converted to float64, at a time."""

Values = ArrayLike | Tensor


class Bags(NamedTuple):
    """Packed bags, all tensors on one device.

    Attributes:
        x: (N, D) raw features.
        offsets: (B + 1,) int64.
        labels: (B,) in {0, 1}; None where they are not needed.
        ids: B names of the scans, which key the noise of their posterior samples; None: all share a key.
    """

    x: Tensor
    offsets: Tensor
    labels: Tensor | None = None
    ids: Sequence[str] | None = None

    @property
    def truth(self) -> Tensor:
        """The labels of bags that are known to have them."""
        assert self.labels is not None
        return self.labels

    def take(self, chosen: Sequence[int]) -> "Bags":
        """Select the bags with indices `chosen`, in that order."""
        numbers = torch.as_tensor(chosen, dtype=torch.int64, device=self.offsets.device)
        rows, offsets = take_bags(self.offsets, numbers)
        return Bags(
            self.x[rows],
            offsets,
            None if self.labels is None else self.labels[numbers],
            None if self.ids is None else [self.ids[b] for b in chosen],
        )

    def to(self, device: torch.device) -> "Bags":
        """Move all tensors to a device."""
        y = None if self.labels is None else self.labels.to(device)
        return Bags(self.x.to(device), self.offsets.to(device), y, self.ids)


def _array(values: Values) -> np.ndarray:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def _features(x: Values, name: str = "X") -> Tensor:
    """Convert features to a float tensor (N, D) and check that every row is `measurable`."""
    try:
        # arrays from pandas are read-only, which torch warns of
        values = x if isinstance(x, Tensor) else np.array(x)
        if isinstance(values, np.ndarray) and values.dtype == object:  # of columns of several types
            values = values.astype(np.float64)
        features = torch.as_tensor(values).detach()
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be a table (N, D) of numbers ({error})") from error
    if features.ndim != 2 or 0 in features.shape:
        raise DataError(f"{name} must be a table (N, D) of numbers, got shape {tuple(features.shape)}")
    if not features.is_floating_point():
        features = features.double()
    for start in range(0, len(features), CHUNK):
        bad = (~measurable(features[start : start + CHUNK])).nonzero()
        if len(bad):
            raise DataError(
                f"row {start + int(bad[0])} of {name}: a feature is NaN or infinite, or beyond {LARGEST}"
            )
    return features


def _rows_of_list(tables: Sequence[Values]) -> tuple[Tensor, Tensor]:
    """Rows (N, D) and offsets (B + 1,) of bags given as a list of tables (n, D)."""
    if not isinstance(tables, list | tuple) or not tables or isinstance(tables[0], int | float):
        raise DataError(f"bags must be a list of 2-D arrays, got {described(tables)}; or give X with bags")
    matrices = [_features(table, f"X[{b}]") for b, table in enumerate(tables)]
    for b, table in enumerate(tables):
        check_columns(table, column_names(tables[0]))
        if matrices[b].shape[1] != matrices[0].shape[1]:
            raise DataError(f"X[{b}] has {matrices[b].shape[1]} features, X[0] has {matrices[0].shape[1]}")
    sizes = torch.tensor([0, *map(len, matrices)])
    return torch.cat(matrices), sizes.cumsum(0)


def _offsets_and_order(
    bags: Values, n: int, labels: Values | None
) -> tuple[Tensor, Tensor | None, np.ndarray | None]:
    """Offsets (B + 1,); the row of each packed row (N,) and the names (B,) unless `bags` are offsets."""
    index = _array(bags)
    if index.ndim != 1 or len(index) == 0:
        raise DataError(
            f"bags must be one-dimensional, offsets or the bag of each row, got shape {index.shape}"
        )
    whole = np.issubdtype(index.dtype, np.integer)
    if whole and index[0] == 0 and index[-1] == n and bool((index[1:] >= index[:-1]).all()):
        empty = np.flatnonzero(index[1:] == index[:-1])
        if len(index) == n and len(empty) == 0 and labels is None:
            raise DataError(
                f"bags are offsets of {n - 1} bags and names of {n} rows alike: give names as text, or a "
                "list of tables"
            )
        if len(empty) == 0 and (len(index) != n or len(_array(labels)) != n):  # type: ignore[arg-type]
            return torch.as_tensor(index.astype(np.int64)), None, None
        if len(index) != n:
            raise DataError(f"every bag needs at least one row, bag {empty[0]} of the offsets has none")
    if len(index) != n:
        raise DataError(
            "bags must be offsets, whole numbers from 0 to the number of rows, or name the bag of each of "
            f"the {n} rows; got {len(index)} values from {index[0]} to {index[-1]}"
        )
    missing = np.flatnonzero(pd.isna(index))
    if len(missing):
        raise DataError(f"row {missing[0]} of X has no bag: its entry in bags is {index[missing[0]]}")
    try:
        names, number = np.unique(index, return_inverse=True)
    except TypeError as error:
        raise DataError(f"bags must be named by text alone, or by numbers alone ({error})") from error
    offsets = np.concatenate([[0], np.bincount(number).cumsum()])
    return torch.as_tensor(offsets), torch.as_tensor(np.argsort(number, kind="stable")), names


def _labels(labels: Values, n_bags: int) -> Tensor:
    values = _array(labels)
    if values.shape != (n_bags,):
        raise DataError(f"there are {n_bags} bags, but labels of shape {values.shape}")
    unknown = values[pd.isna(values)]  # `np.isin` cannot compare pandas.NA
    other = unknown if len(unknown) else values[~np.isin(values, (0, 1))]
    if len(other):
        raise DataError(f"labels must be 0 or 1, got {other.tolist()[0]!r}; leave unlabelled bags out")
    return torch.as_tensor(values.astype(np.int64))


def pack(
    x: Values | Sequence[Values],
    bags: Values | None = None,
    labels: Values | None = None,
    **others: Values | Sequence[str] | None,
) -> tuple[Bags, Tensor]:
    """Check and pack bags.

    Args:
        x: (N, D) features; or, without `bags`, the features (n, D) of each bag: a list, a Series or an object
            array of tables, or an array (B, n, D).
        bags: (B + 1,) offsets or (N,) the bag of each row. N integers that increase strictly from 0 to N may
            be either; the number of labels tells which. Named bags are packed in the order of `np.unique`.
        labels: (B,) in {0, 1}.
        others: further values (B,) whose index, if they have one, must be that of the bags.

    Returns:
        The bags on the device of `x`, and the row of `x` of each packed row (N,), on the CPU.

    Raises:
        DataError: features that are not a table of finite numbers; an empty bag; offsets that do not fit;
            bag identifiers that cannot be sorted; labels that are not one 0 or 1 per bag; two pandas objects
            whose indices differ.
    """
    order: Tensor | None = None
    of_bags = [("labels", labels), *others.items()]
    if bags is None:
        features, offsets = _rows_of_list(list_of_bags(x))  # type: ignore[arg-type]
        check_aligned(("X", x), *of_bags)
    else:
        features = _features(x)  # type: ignore[arg-type]
        offsets, order, names = _offsets_and_order(bags, len(features), labels)
        if names is not None:
            check_rows(x, bags)
        check_aligned(*of_bags, bags=names)
    y = None if labels is None else _labels(labels, len(offsets) - 1)
    if order is not None:
        features = features[order]
    packed = Bags(features, offsets, y).to(features.device)
    return packed, torch.arange(len(features)) if order is None else order


def labels_of_list(
    x: Values | Sequence[Values], bags: Values | None, labels: Values | None
) -> tuple[Values | None, Values | None]:
    """Bags and labels; a list of bags is followed by its labels, as in `fit(X, y)` of scikit-learn."""
    is_table = getattr(list_of_bags(x), "ndim", 1) == 2
    return (bags, labels) if is_table or labels is not None else (None, bags)


def pack_held(validation: Sequence[Any]) -> Bags:
    """Pack the validation scans; error messages name them as the validation scans."""
    if not isinstance(validation, tuple | list) or len(validation) != 3:
        raise ValueError("validation must be (X, bags, labels)")
    try:
        return pack(*validation)[0]
    except DataError as error:
        raise DataError(f"validation: {error}") from error


def check_both_labels(bags: Bags, what: str) -> None:
    """Raise `DataError` unless the labels are 0 and 1, and both occur."""
    labels = bags.truth
    other = labels[(labels != 0) & (labels != 1)]
    if len(other):
        raise DataError(f"{what}: labels must be 0 or 1, got {int(other[0])}; leave unlabelled scans out")
    if bool((labels == labels[0]).all()):
        raise DataError(f"{what}: all {len(labels)} are labelled {int(labels[0])}, both labels are needed")
