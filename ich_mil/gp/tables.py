"""Checks of the row and column labels of pandas objects, shared by the estimators of all rooms.

Values are used by position, so two objects whose indices differ would be combined wrongly: they are refused.
A default `RangeIndex` from 0 is the index of objects that were given none: it only takes part where the other
index is a permutation of it.
"""

from itertools import combinations

import numpy as np
import pandas as pd
from torch import Tensor

from ich_mil.errors import DataError


def index_of(values: object) -> pd.Index | None:
    """Row labels of a pandas object; None for other values."""
    return values.index if isinstance(values, pd.DataFrame | pd.Series) else None


def is_default(index: pd.Index) -> bool:
    """Whether an index counts the rows from 0, as pandas does without an index."""
    return isinstance(index, pd.RangeIndex) and (index.start, index.step) == (0, 1)


def check_aligned(*named: tuple[str, object], bags: np.ndarray | None = None) -> None:
    """Raise `DataError` unless all pandas objects have the same index in the same order.

    Args:
        named: name and value of each; values that are no pandas objects are ignored.
        bags: names (B,) of the bags that the rows of the values belong to, in order.
    """
    known = [] if bags is None else [("", "np.unique(bags)", pd.Index(bags))]
    known += [(name, f"{name}.index", index) for name, x in named if (index := index_of(x)) is not None]
    for (_, reference, index), (name, _, other) in combinations(known, 2):
        by_position = is_default(index) or is_default(other)
        if difference := _difference(index, other, by_position=by_position):
            unique = index.is_unique and other.is_unique
            remedy = f"give {name}.loc[{reference}]" if unique else "number the rows by reset_index"
            raise DataError(
                f"the index of {name} is not {reference}: {difference}; {remedy}, or give arrays if rows "
                "correspond by position"
            )


def check_rows(x: object, bags: object, x_name: str = "X", bags_name: str = "bags") -> None:
    """Raise `DataError` unless the rows of a table (N, D) correspond to the bags (N,) of its rows.

    A table may be indexed by bag, as covariates by scan, and the bags be given as plain values.
    """
    check_aligned((x_name, x), (bags_name, bags))
    index, bags_index = index_of(x), index_of(bags)
    if index is None or is_default(index) or not (bags_index is None or is_default(bags_index)):
        return
    names = pd.Index(np.asarray(bags.cpu() if isinstance(bags, Tensor) else bags))
    if _difference(index, names, by_position=True):
        raise DataError(f"{x_name} is indexed by bag, in another order than {bags_name}; give {x_name}.index")


def _difference(index: pd.Index, other: pd.Index, *, by_position: bool) -> str:
    """Difference of two indexes in words, '' if none; `by_position`: only a difference in order."""
    if index.equals(other):
        return ""
    ours, theirs = index.tolist(), other.tolist()
    known = set(theirs)
    lacking = [label for label in ours if label not in known]
    if ours == theirs or (by_position and (lacking or len(ours) != len(theirs))):
        return ""
    if lacking:
        return f"it lacks {lacking[0]!r}"
    return "its order differs" if len(ours) == len(theirs) else f"it has {len(theirs)} rows for {len(ours)}"


def list_of_bags(x: object) -> object:
    """A list of tables (n, D) for a Series or an object array of them, or an array (B, n, D); else x."""
    if isinstance(x, pd.Series) or (isinstance(x, np.ndarray) and x.ndim == 1):
        return list(x) if x.dtype == object else x
    return list(x) if isinstance(x, np.ndarray | Tensor) and x.ndim == 3 else x


def described(x: object) -> str:
    """Kind and shape of a value, for messages."""
    shape = getattr(x, "shape", None)
    return type(x).__name__ if shape is None else f"{type(x).__name__} of shape {tuple(shape)}"


def column_names(x: object) -> tuple[str, ...] | None:
    """Column names of a DataFrame, or of the first of several; None without named columns."""
    x = list_of_bags(x)
    if isinstance(x, list | tuple) and len(x):
        x = x[0]
    columns = getattr(x, "columns", None)
    return None if columns is None else tuple(map(str, columns))


def check_columns(x: object, known: tuple[str, ...] | None, name: str = "X") -> None:
    """Raise `DataError` if x is a DataFrame whose columns differ from `known` in name or order."""
    names = column_names(x)
    if names is not None and known is not None and names != known:
        raise DataError(
            f"{name} has the columns {_some(names)}, the model was fitted to {_some(known)}; give these, in "
            "this order"
        )


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (f", ... ({len(names)})" if len(names) > 8 else "")
