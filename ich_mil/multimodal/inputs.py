"""Checks of what users give: features and bag ids of several modalities, and the labels of the bags.

In: lists of arrays, as `MultimodalMIL` documents them. Out: numbered bags and float64 features; or a
`DataError` with the modality, what is wrong and what to do.

Shapes: B bags, N_m instances and D_m features of modality m.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.gp.bags import Values
from ich_mil.gp.tables import check_aligned, check_columns, check_rows, column_names
from ich_mil.multimodal.layout import Rows

SHOWN = 5
"""Bags that an error names."""


class Scaling(NamedTuple):
    """Standardisation of one modality, from its training instances.

    Attributes:
        mean: (D,).
        deviation: (D,), 0 for a column that is constant and takes no part.
        names: columns of a DataFrame; None where there were none.
    """

    mean: Tensor
    deviation: Tensor
    names: tuple[str, ...] | None

    @property
    def varies(self) -> Tensor:
        """(D,) whether a column takes part."""
        return self.deviation > 0

    def name(self, column: int) -> str:
        """Name of a column: that of the DataFrame, else x0, x1, ..."""
        return self.names[column] if self.names else f"x{column}"

    def apply(self, x: Tensor) -> Tensor:
        """Standardised columns that vary (N, D')."""
        kept = self.varies
        return x[:, kept].sub_(self.mean[kept]).div_(self.deviation[kept])


def _scaling_of(x: Tensor, names: tuple[str, ...] | None, m: int) -> Scaling:
    """Mean and deviation of each column.

    Raises:
        DataError: all columns are constant.

    Warns:
        UserWarning: some columns are constant; they are unused.
    """
    mean, deviation = x.mean(0), x.std(0, correction=0)
    # the deviation of a constant is rounding, not 0
    deviation = torch.where(deviation > 1e-12 * x.abs().amax(0), deviation, 0.0)
    constant = (deviation == 0).nonzero().squeeze(1).tolist()
    if len(constant) == len(mean):
        raise DataError(f"modality {m}: every column is constant; leave the modality out")
    if constant:
        shown = ", ".join(names[d] if names else f"x{d}" for d in constant[:SHOWN])
        warnings.warn(f"modality {m}: {len(constant)} constant column(s) are unused ({shown})", stacklevel=4)
    return Scaling(mean, deviation, names)


def _check_lists(X: Sequence[Values], bags: Sequence[Values], known: Sequence[Scaling] | None) -> None:
    """Raise `DataError` unless X and bags are lists of equal length, and of that of the fit."""
    for name, values in (("X", X), ("bags", bags)):
        if not isinstance(values, list | tuple):
            raise DataError(
                f"{name} must be a list with one array for each modality; got {type(values).__name__}"
            )
    if len(X) != len(bags) or len(X) == 0:
        raise DataError(f"X and bags must have one array for each modality; got {len(X)} and {len(bags)}")
    if known is not None and len(X) != len(known):
        raise DataError(
            f"the model was fitted to {len(known)} modalities, X has {len(X)}; give an array of shape (0, D) "
            "for a modality that is missing"
        )


def _features_of(x: Values, m: int, known: Scaling | None) -> Tensor:
    """Features (N, D) of modality m in float64.

    Raises:
        DataError: they are no table of finite numbers, or of another width or other columns than in the fit.
    """
    try:
        values = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        table = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"modality {m}: X must be a table (N, D) of numbers ({error})") from error
    if table.ndim != 2 or table.shape[1] == 0 or np.iscomplexobj(values):
        raise DataError(f"modality {m}: X must be a table (N, D) of numbers, got shape {table.shape}")
    if known is not None:
        check_columns(x, known.names, f"X[{m}]")
        if table.shape[1] != len(known.mean):
            raise DataError(
                f"modality {m}: {table.shape[1]} features, the model was fitted to {len(known.mean)}"
            )
    bad = np.flatnonzero(~np.isfinite(table).all(1))
    if len(bad):
        raise DataError(
            f"modality {m}: row {bad[0]} of X holds NaN or an infinite value ({len(bad)} such rows); fill "
            "them in, or leave the rows out"
        )
    return torch.from_numpy(table)


def _number_bags(X: Sequence[Tensor], bags: Sequence[Values]) -> tuple[np.ndarray, list[Tensor]]:
    """Bags of all modalities numbered in the order of `np.unique`.

    Returns:
        Their ids (B,), and for each modality the number (N_m,) of each row's bag.

    Raises:
        DataError: not one id a row, missing ids, text and numbers together.
    """
    ids = []
    for m, (x, keys) in enumerate(zip(X, bags, strict=True)):
        values = np.asarray(keys.detach().cpu() if isinstance(keys, Tensor) else keys)
        if values.shape != (len(x),):
            raise DataError(f"modality {m}: {len(x)} rows of X, but bags of shape {values.shape}")
        missing = np.flatnonzero(pd.isna(values))
        if len(missing):
            raise DataError(f"modality {m}: row {missing[0]} of X has no bag: its id is {values[missing[0]]}")
        ids.append(values)
    kinds = {_kind(values) for values in ids if len(values)}
    if len(kinds) > 1:
        raise DataError(
            f"bags must be named by text in all modalities, or by numbers; got {' and '.join(sorted(kinds))}"
        )
    filled = [values for values in ids if len(values)]
    if not filled:
        raise DataError("there are no bags: X has no rows")
    names, numbers = np.unique(np.concatenate(filled), return_inverse=True)
    by_modality, start = [], 0
    for values in ids:
        by_modality.append(torch.from_numpy(numbers[start : start + len(values)].astype(np.int64)))
        start += len(values)
    return names, by_modality


def _kind(values: np.ndarray) -> str:
    text = values.dtype.kind in "US" or (values.dtype.kind == "O" and isinstance(values[0], str))
    return "text" if text else "numbers"


def signs_of(labels: Values, names: np.ndarray, *, both: bool = True) -> Tensor:
    """Labels (B,) as -1 and 1 in float64; with `both`, of both classes.

    Raises:
        DataError: a bag has no label, or there are labels of other bags, or in another order; a label is not
            0 or 1; one class alone.
    """
    check_aligned(("labels", labels), bags=names)
    values = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if values.shape != (len(names),):
        raise DataError(
            f"there are {len(names)} bags in all modalities together, but labels of shape {values.shape}; "
            "labels are of np.unique of all ids: bags without a label must be left out of every modality"
        )
    unknown = np.flatnonzero(pd.isna(values))
    if len(unknown):
        raise DataError(
            f"{len(unknown)} bag(s) have no label: {_some(names[unknown].tolist())}; leave them out of every "
            "modality"
        )
    other = values[~np.isin(values, (0, 1))]
    if len(other):
        raise DataError(f"labels must be 0 or 1, got {other.tolist()[0]!r}")
    y = values.astype(np.float64)
    if both and (y == y[0]).all():
        raise DataError(f"all {len(y)} bags are labelled {int(y[0])}, both labels are needed")
    return torch.from_numpy(2 * y - 1)


def _some(names: list[object]) -> str:
    shown = ", ".join(map(str, names[:SHOWN]))
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def rows_of(
    X: Sequence[Values], bags: Sequence[Values], known: Sequence[Scaling] | None
) -> tuple[list[Rows], list[Scaling], np.ndarray]:
    """Check, number and standardise the instances; `known` is the standardisation of the fit, if any.

    Returns:
        Standardised instances of each modality, their standardisation, and the ids (B,) of the bags.
    """
    _check_lists(X, bags, known)
    tables = [_features_of(x, m, known[m] if known else None) for m, x in enumerate(X)]
    names, numbers = _number_bags(tables, bags)
    for m, (x, ids) in enumerate(zip(X, bags, strict=True)):
        check_rows(x, ids, f"X[{m}]", f"bags[{m}]")
    scalings = list(known or ())
    if known is None:
        for m, (x, table) in enumerate(zip(X, tables, strict=True)):
            if len(table) == 0:
                raise DataError(f"modality {m}: no bag has it; leave it out of X and bags")
            scalings.append(_scaling_of(table, column_names(x), m))
    rows = [Rows(s.apply(t), n) for s, t, n in zip(scalings, tables, numbers, strict=True)]
    return rows, scalings, names
