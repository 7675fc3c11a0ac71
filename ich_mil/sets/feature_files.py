"""Files of slice features: CSV, parquet, npz, h5, pt, safetensors, or a folder with one file for each bag.

In: a file or folder, and the names of its columns. Out: one row per instance, as text, and the features.

.csv, .parquet                  one row per instance: `feature_0 ... feature_{D-1}`, `bag_name`,
                                `bag_label`, `instance_name`
.npz, .h5, .pt, .safetensors    `features` (N, D); `bag_name` (N,), or offsets (B + 1,); `bag_label` (B,)
                                or (N,); the other columns are optional
folder                          a file with `features` (n, D) for each bag (.npy too), named by the bag,
                                and `labels.csv` with the columns scan, label and optionally patient

Optional columns are `instance_label`, `patient` and `bag_cnn_probability`. Values (B,) are in the order of
`np.unique(bag_name)` or of the offsets. Nothing is unpickled.

Shapes: B bags, N instances of all bags, n of one bag, D features.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.sets.labels import UNKNOWN, name_some, read_label_csv, read_table

LABELS = "labels.csv"
PER_BAG = ("bag_label", "patient", "bag_cnn_probability")
PER_INSTANCE = ("instance_name", "instance_label")
FEATURE_COLUMNS = ("features", "bag_name", *PER_BAG, *PER_INSTANCE)
"""Our names of columns and arrays; in a table, `features` is the start of the names of the features."""

Arrays = dict[str, np.ndarray]
Rows = tuple[pd.DataFrame, np.ndarray]


def read_rows(path: Path, columns: Mapping[str, str]) -> Rows:
    """Read instances and check them one by one; the rows of a bag may still contradict each other.

    Args:
        path: file or folder.
        columns: name in the file of each of `FEATURE_COLUMNS` that is called otherwise there.

    Returns:
        `FEATURE_COLUMNS` that exist, labels and probabilities as numbers; and features (N, D) float32.

    Raises:
        DataError: an unknown, damaged or incomplete file; a value that is missing or out of range.
    """
    if path.is_dir():
        table, x = _folder_rows(path, columns)
    else:
        content, names = _content(path), {name: columns.get(name, name) for name in FEATURE_COLUMNS}
        if isinstance(content, pd.DataFrame):
            table, x = _table_rows(content, path, names, columns.get("features", "feature_"))
        else:
            table, x = _array_rows(content, path, names)
    for column in ("bag_label", "instance_label", "bag_cnn_probability"):
        if column in table:
            table[column] = _numbers(path, table, column)
    _check(
        path, table, (table.bag_label == UNKNOWN) | (table.bag_name == ""), "bag_name or bag_label is empty"
    )
    if "patient" in table:
        reason = "patient is empty; where it is unknown write the bag_name"
        _check(path, table, table.patient == "", reason)
    repeated = table.duplicated(["bag_name", "instance_name"])
    _check(path, table, repeated, "slice {instance_name!r} of scan {bag_name!r} occurs twice")
    if "bag_cnn_probability" in table:
        outside = ~table.bag_cnn_probability.fillna(0).between(0, 1)
        _check(path, table, outside, "bag_cnn_probability must be in [0, 1], got {bag_cnn_probability:g}")
    return table, x


def contents(path: Path) -> list[bytes]:
    """Bytes that change with the content of a feature file, or of the files of a folder."""
    if not path.is_dir():
        return [path.read_bytes()]
    files = sorted(file for file in path.iterdir() if file.is_file())
    return [file.name.encode() + hashlib.sha256(file.read_bytes()).digest() for file in files]


def _check(path: Path, table: pd.DataFrame, wrong: pd.Series, reason: str) -> None:
    """Raise `DataError` for the first wrong row; the index of a CSV is the line number minus 2."""
    if wrong.any():
        row = table.index[wrong][0]
        position = f"line {row + 2}" if path.suffix.lower() == ".csv" else f"row {row}"
        raise DataError(f"{path}: {position}: {reason.format_map(table.loc[row])}")


def _numbers(path: Path, table: pd.DataFrame, column: str) -> pd.Series:
    """A column of text as numbers; labels are 0, 1 or `UNKNOWN`."""
    numbers = pd.to_numeric(table[column], errors="coerce")
    wrong = numbers.isna() & ~table[column].str.lower().isin(["", "nan"])
    allowed = "a number"
    if column.endswith("_label"):
        wrong |= ~(numbers.isin([0, 1]) | numbers.isna())
        numbers, allowed = numbers.fillna(UNKNOWN), "0 or 1"
    _check(path, table, wrong, f"{column} must be {allowed}, got {{{column}!r}}")
    return numbers


def _table_rows(table: pd.DataFrame, path: Path, names: Mapping[str, str], start: str) -> Rows:
    """Rows of a table; the features are in the columns `start` + 0, 1, ..."""
    wide = [f"{start}{i}" for i in range(sum(str(name).startswith(start) for name in table))]
    needed = [*(wide or [f"{start}0"]), *(names[name] for name in ("bag_name", "bag_label", "instance_name"))]
    if missing := [name for name in needed if name not in table]:
        raise _missing(path, missing, table.columns)
    if path.suffix.lower() == ".csv":
        table = table.assign(**{column: _numbers(path, table, column) for column in wide})
    rows = pd.DataFrame({name: table[column] for name, column in names.items() if column in table})
    return rows.apply(_text), _matrix(table[wide].to_numpy(), path)


def _array_rows(arrays: Arrays, path: Path, names: Mapping[str, str]) -> Rows:
    """Rows of packed arrays."""
    needed = [names[name] for name in ("features", "bag_name", "bag_label")]
    if missing := [name for name in needed if name not in arrays]:
        raise _missing(path, missing, arrays)
    x, bags = _matrix(arrays[names["features"]], path), arrays[names["bag_name"]]
    if bags.shape != (len(x),):
        sizes = np.diff(bags) if bags.ndim == 1 and bags.dtype.kind in "iu" and len(bags) else np.array([0])
        if (sizes < 1).any() or bags[0] != 0 or bags[-1] != len(x):
            raise DataError(
                f"{path}: {names['bag_name']} must name the bag of each of {len(x)} instances, or be offsets "
                f"from 0 to {len(x)}, got shape {bags.shape}"
            )
        bags = np.repeat(np.arange(len(sizes)), sizes)
    known, bag = np.unique(bags, return_inverse=True)
    rows = {"bag_name": _text(pd.Series(bags))}
    for name in (*PER_BAG, *PER_INSTANCE):
        if (values := arrays.get(names[name])) is None:
            continue
        if name in PER_BAG and values.shape == known.shape != bags.shape:
            values = values[bag]
        if values.shape != bags.shape:
            raise DataError(
                f"{path}: {names[name]} has shape {values.shape}, but there are {len(known)} bags of "
                f"{len(x)} instances"
            )
        rows[name] = _text(pd.Series(values))
    table = pd.DataFrame(rows)
    if "instance_name" not in table:
        table["instance_name"] = _numbered(table.bag_name)
    return table, x


def _folder_rows(path: Path, columns: Mapping[str, str]) -> Rows:
    """Rows of a folder with a file for each bag."""
    names = {"bag_name": "scan", "bag_label": "label", **{name: name for name in PER_BAG[1:]}, **columns}
    labels = read_label_csv(path / LABELS, [names["bag_name"], names["bag_label"]], key=names["bag_name"])
    labels = labels.set_index(names["bag_name"])
    files = {file.stem: file for file in sorted(path.iterdir()) if file.suffix.lower() in ARRAYS}
    for what, missing in (("row", {*files} - {*labels.index}), ("file", {*labels.index} - {*files})):
        if missing:
            raise DataError(f"{path}: {LABELS} or the folder lacks a {what} for {name_some(sorted(missing))}")
    if not files:
        raise DataError(f"{path}: holds no feature file ({', '.join(ARRAYS)})")
    key, matrices = names.get("features", "features"), []
    for file in files.values():
        arrays = _content(file)
        if key not in arrays:
            raise _missing(file, [key], arrays)
        matrices.append(_matrix(arrays[key], file))
        if matrices[-1].shape[1] != matrices[0].shape[1]:
            raise DataError(f"{file}: has {matrices[-1].shape[1]} features, others {matrices[0].shape[1]}")
    table = pd.DataFrame({"bag_name": np.repeat(list(files), [len(matrix) for matrix in matrices])})
    for name in PER_BAG:
        if names[name] in labels:
            table[name] = labels[names[name]].loc[table.bag_name].to_numpy()
    return table.assign(instance_name=_numbered(table.bag_name)), np.concatenate(matrices)


def _numbered(bags: pd.Series) -> pd.Series:
    """Names of instances: bag and number within it."""
    return bags + "-" + bags.groupby(bags).cumcount().astype(str)


def _text(values: pd.Series) -> pd.Series:
    """Values as stripped text, as a CSV would hold them."""
    if values.dtype == bool:
        values = values.astype(int)
    values = values.map(lambda value: value.decode() if isinstance(value, bytes) else value)
    return values.astype(object).where(values.notna(), "").astype(str).str.strip()


def _matrix(values: Any, path: Path) -> np.ndarray:
    """Features (N, D) as float32."""
    x = np.asarray(values)
    if x.ndim != 2 or x.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: features must be a table (N, D) of numbers, got {x.dtype} of shape {x.shape}"
        )
    with np.errstate(over="ignore"):  # values that overflow float32 are refused by `check_features`
        return x.astype(np.float32)


def _missing(path: Path, missing: list[str], known: Any) -> DataError:
    return DataError(
        f"{path}: {name_some(missing)} is missing, found {name_some(list(map(str, known)), 6)}; name it by "
        "the setting columns, or --column"
    )


def _content(path: Path) -> Any:
    """A table, or all arrays of a file by name; a single unnamed array is `features`."""
    read = READERS.get(path.suffix.lower())
    if read is None:
        raise DataError(
            f"{path}: is no feature file; use {', '.join(READERS)}, or a folder with a file for each bag"
        )
    try:
        return read(path)
    except DataError:
        raise
    except ImportError as error:
        raise DataError(f"{path}: {str(error).splitlines()[0]}; pip install 'ich-mil[formats]'") from error
    except Exception as error:  # the libraries have no class of their own for damaged files
        reason = f"{(str(error).splitlines() or [repr(error)])[0]:.200}"
        raise DataError(f"{path}: cannot be read ({reason}); write it again, as tensors or arrays") from error


def _npz(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _h5(path: Path) -> Arrays:
    import h5py

    arrays: Arrays = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, node: arrays.update({name: node[()]} if isinstance(node, h5py.Dataset) else {})
        )
    return arrays


def _pt(path: Path) -> Arrays:
    import torch

    content = torch.load(path, map_location="cpu", weights_only=True)
    return _of_tensors(content if isinstance(content, dict) else {"features": content})


def _safetensors(path: Path) -> Arrays:
    from safetensors.torch import load_file

    return _of_tensors(load_file(path))


def _of_tensors(tensors: dict[str, Any]) -> Arrays:
    """Arrays of tensors; bfloat16, which NumPy has not, becomes float32."""
    return {name: (t.float() if t.is_floating_point() else t).numpy() for name, t in tensors.items()}


ARRAYS: dict[str, Callable[[Path], Arrays]] = {
    ".npz": _npz,
    ".npy": lambda path: {"features": np.load(path, allow_pickle=False)},
    ".h5": _h5,
    ".hdf5": _h5,
    ".pt": _pt,
    ".safetensors": _safetensors,
}
READERS: dict[str, Callable[[Path], Any]] = {".csv": read_table, ".parquet": pd.read_parquet, **ARRAYS}
"""Readers of feature files, by suffix."""
