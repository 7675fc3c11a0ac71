"""Packed bags of slices: conversion and validation of features, bag indices, labels and slice positions.

In: features as numpy array or tensor, and the bag of each row in any form that `Head` accepts. Out: `Bags`,
in which bag b owns rows `offsets[b]:offsets[b + 1]`.

Shapes: B bags (scans), N instances (slices), D features.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.kernels.rbf_gram import LARGEST, measurable
from ich_mil.kernels.segments import bag_index, take_bags

CHUNK = 65_536
"""Number of rows that are checked, or converted to float64, at a time."""

Values = ArrayLike | Tensor
Held = tuple[Values, Values, Values] | tuple[Values, Values, Values, Values | None]
"""(X, bags, labels) or (X, bags, labels, positions); a head that smooths along z needs positions."""


class Bags(NamedTuple):
    """Packed scans with labels.

    Attributes:
        x: (N, D) raw features.
        offsets: (B + 1,).
        labels: (B,) in {0, 1}.
        positions: (N,) mm along the scan, for heads that smooth along z; None if unknown.
    """

    x: Tensor
    offsets: Tensor
    labels: Tensor
    positions: Tensor | None = None


AnyBags = Bags | tuple[Tensor, Tensor, Tensor]
"""`Bags`, or a plain tuple (x, offsets, labels) without positions."""


def _first_bad(x: Tensor) -> int | None:
    """Index of the first row of x (N, D) that is not `measurable`, or None."""
    for start in range(0, len(x), CHUNK):
        good = measurable(x[start : start + CHUNK])
        if not bool(good.all()):
            return start + int((~good).nonzero()[0])
    return None


def check_bags(x: Tensor, offsets: Tensor, labels: Tensor, what: str) -> None:
    """Raise `DataError` unless these are packed bags with `measurable` features and both labels."""
    try:
        bag_index(offsets)
    except ValueError as error:
        raise DataError(f"{what}: {error}") from error
    if x.ndim != 2 or len(x) != int(offsets[-1]) or len(labels) != len(offsets) - 1:
        raise DataError(
            f"{what}: features {tuple(x.shape)} and {len(labels)} labels do not fit offsets of "
            f"{len(offsets) - 1} scans and {int(offsets[-1])} slices"
        )
    bad = _first_bad(x)
    if bad is not None:
        raise DataError(f"{what}: a feature of slice {bad} is NaN or infinite, or beyond {LARGEST}")
    other = labels[(labels != 0) & (labels != 1)]
    if len(other):
        raise DataError(f"{what}: labels must be 0 or 1, got {int(other[0])}; leave unlabelled scans out")
    if bool((labels == labels[0]).all()):
        raise DataError(f"{what}: all {len(labels)} are labelled {int(labels[0])}, both labels are needed")


def take(bags: Bags, chosen: tuple[int, ...]) -> Bags:
    """Select the bags with indices `chosen`, in that order."""
    numbers = torch.tensor(chosen, dtype=torch.int64, device=bags.offsets.device)
    rows, smaller = take_bags(bags.offsets, numbers)
    positions = None if bags.positions is None else bags.positions[rows]
    return Bags(bags.x[rows], smaller, bags.labels[numbers], positions)


def _tensor(values: Values) -> Tensor:
    """Convert to a detached tensor; an array whose memory layout torch does not support is copied."""
    if isinstance(values, Tensor):
        return values.detach()
    if np.ma.is_masked(values):
        raise ValueError("it has masked values; fill them in, or leave their rows out")
    array = np.require(values, requirements="W")  # arrays from pandas are read-only
    if min(array.strides, default=0) < 0 or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(array)


def _array(values: Values) -> np.ndarray:
    """Convert labels or bag identifiers to a numpy array."""
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def _features(x: Values) -> Tensor:
    """Convert features to a float tensor (N, D); `DataError` unless it is a table of `measurable` rows."""
    try:
        features = _tensor(x)
    except (TypeError, ValueError) as error:
        raise DataError(f"X must be a table (N, D) of numbers ({error})") from error
    if features.layout != torch.strided or features.is_meta:
        raise DataError("X must be a table (N, D) of numbers, got a tensor that is sparse or has no memory")
    if features.ndim != 2 or features.is_complex() or 0 in features.shape:
        raise DataError(f"X must be a table (N, D) of numbers, got shape {tuple(features.shape)}")
    if not features.is_floating_point():
        features = features.double()
    bad = _first_bad(features)
    if bad is not None:
        raise DataError(f"row {bad} of X: a feature is NaN or infinite, or beyond {LARGEST}")
    return features


def pack(x: Values, bags: Values) -> tuple[Tensor, Tensor, Tensor]:
    """Pack features whose bags are given as offsets or as the bag of each row.

    Args:
        x: (N, D) features.
        bags: (B + 1,) offsets or (N,) the bag of each row. N integers that increase strictly from 0 to N are
            taken as offsets.

    Returns:
        Packed features (N, D), offsets (B + 1,), and the row of `x` of each packed row (N,).

    Raises:
        DataError: features that are not a table of finite numbers; an empty bag; offsets that do not fit;
            bag identifiers that cannot be sorted.
    """
    features, index = _features(x), _array(bags)
    n = len(features)
    if index.ndim != 1 or len(index) == 0:
        raise DataError(
            f"bags must be one-dimensional, offsets or the bag of each row, got shape {index.shape}"
        )
    whole = np.issubdtype(index.dtype, np.integer)
    if whole and index[0] == 0 and index[-1] == n and bool((index[1:] >= index[:-1]).all()):
        empty = np.flatnonzero(index[1:] == index[:-1])
        if len(empty) == 0:
            return features, torch.as_tensor(index.astype(np.int64)), torch.arange(n)
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
        _, number = np.unique(index, return_inverse=True)
    except TypeError as error:
        raise DataError(f"bags must be named by text alone, or by numbers alone ({error})") from error
    order = torch.as_tensor(np.argsort(number, kind="stable"))
    offsets = np.concatenate([[0], np.bincount(number).cumsum()])
    return features[order], torch.as_tensor(offsets), order


def canonical_rows(x: Tensor, offsets: Tensor) -> Tensor:
    """Order (N,) of packed rows x (N, D) that sorts the rows of each bag by a function of their values."""
    direction = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value = (x.detach().cpu().double() @ direction).numpy()  # almost surely different for different rows
    return torch.as_tensor(np.lexsort((value, bag_index(offsets).numpy())))


def column_names(x: Values) -> tuple[str, ...] | None:
    """Column names of a DataFrame; None for an input without named columns."""
    columns = getattr(x, "columns", None)
    return None if columns is None else tuple(map(str, columns))


def check_columns(x: Values, known: tuple[str, ...] | None) -> None:
    """Raise `DataError` if x is a DataFrame whose columns differ from `known` in name or order."""
    names = column_names(x)
    if names is not None and known is not None and names != known:
        raise DataError(
            f"X has the columns {', '.join(names)}, the head was fitted to {', '.join(known)}; give these, "
            "in this order"
        )


def pack_positions(positions: Values | None, order: Tensor) -> Tensor | None:
    """Positions (N,) in the order of the packed rows; `DataError` unless there is one number per row."""
    if positions is None:
        return None
    try:
        z = _tensor(positions).double()
    except (TypeError, ValueError) as error:
        raise DataError(f"positions must be numbers, mm along the scan ({error})") from error
    if z.shape != order.shape:
        raise DataError(f"there are {len(order)} rows of X, but positions of shape {tuple(z.shape)}")
    return z[order.to(z.device)]


def check_order(values: object, bags: Values, what: str) -> None:
    """Raise `DataError` if a Series is indexed by bag in an order other than that of `np.unique(bags)`.

    Its values are used by position, so they would be assigned to the wrong bags.
    """
    if not isinstance(values, pd.Series):
        return
    names = np.unique(_array(bags)).tolist()
    if set(values.index) == set(names) and values.index.tolist() != names:
        raise DataError(
            f"{what} are named by bag, in another order than np.unique's; give {what}.loc[np.unique(bags)]"
        )


def pack_labelled(
    x: Values,
    bags: Values,
    labels: Values,
    positions: Values | None = None,
) -> Bags:
    """Pack labelled scans.

    Raises:
        DataError: as in `pack`; labels that are not one 0 or 1 per bag; positions that are not one per row.
    """
    features, offsets, order = pack(x, bags)
    check_order(labels, bags, "labels")
    values = _array(labels)
    if values.shape != (len(offsets) - 1,):
        raise DataError(f"there are {len(offsets) - 1} bags, but labels of shape {values.shape}")
    unknown = values[pd.isna(values)]  # `np.isin` cannot compare pandas.NA
    other = unknown if len(unknown) else values[~np.isin(values, (0, 1))]
    if len(other):
        raise DataError(f"labels must be 0 or 1, got {other.tolist()[0]!r}; leave unlabelled bags out")
    truth = torch.as_tensor(values.astype(np.int64)).to(features.device)
    return Bags(features, offsets.to(features.device), truth, pack_positions(positions, order))
