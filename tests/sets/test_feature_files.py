"""Feature files of others: every format holds the same bags; what cannot be used is refused."""

from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from ich_mil.errors import DataError
from ich_mil.sets.feature_files import contents
from ich_mil.sets.features import FeatureSet, read_feature_table
from tests.feature_table import write_features


@pytest.fixture
def table(tmp_path):
    """A public table whose bags are numbers in their order, so that tensors can name them."""
    write_features(tmp_path / "t.csv", 6, 0)
    table = pd.read_csv(tmp_path / "t.csv")
    table["bag_name"] = table.bag_name.str.split("-").str[1].astype(int)
    table["instance_name"] = (
        table.bag_name.astype(str) + "-" + table.groupby("bag_name").cumcount().astype(str)
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    return table


def arrays_of(table, *, features="features"):
    return {
        features: table[["feature_0", "feature_1", "feature_2"]].to_numpy(np.float32),
        "bag_name": table.bag_name.to_numpy(),
        "bag_label": table.groupby("bag_name").bag_label.first().to_numpy(),
        "instance_label": table.instance_label.to_numpy(),
    }


def _tensors(arrays):
    return {name: torch.tensor(one).contiguous() for name, one in arrays.items()}


def write(path, arrays):
    match path.suffix:
        case ".npz":
            np.savez(path, **arrays)
        case ".h5":
            h5py = pytest.importorskip("h5py")
            with h5py.File(path, "w") as file:
                for name, one in arrays.items():
                    file[name] = one
        case ".pt":
            torch.save(_tensors(arrays), path)
        case ".safetensors":
            save_file(_tensors(arrays), path)
    return path


def same(a, b):
    for name in (field.name for field in fields(FeatureSet)):
        x, y = getattr(a, name), getattr(b, name)
        if isinstance(x, torch.Tensor):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=0, equal_nan=True)
        else:
            assert x == y, name


SUFFIXES = ("npz", "h5", "pt", "safetensors")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_are_the_bags_of_the_table(tmp_path, table, suffix):
    path = write(tmp_path / f"f.{suffix}", arrays_of(table))
    same(read_feature_table(path), read_feature_table(tmp_path / "t.csv"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_named_columns_and_offsets(tmp_path, table, suffix):
    sizes = table.groupby("bag_name").size().to_numpy()
    arrays = arrays_of(table, features="X") | {"bag_name": np.r_[0, sizes.cumsum()]}
    arrays["y"] = arrays.pop("bag_label")
    path = write(tmp_path / f"f.{suffix}", arrays)
    with pytest.raises(DataError, match=rf"f\.{suffix}: features, bag_label is missing, found .*X"):
        read_feature_table(path)
    found = read_feature_table(path, {"features": "X", "bag_label": "y"})
    same(found, read_feature_table(tmp_path / "t.csv"))


def test_parquet_and_csv_with_other_names(tmp_path, table):
    pytest.importorskip("pyarrow")
    columns = {"bag_name": "slide", "bag_label": "y", "features": "dim"}
    other = table.rename(columns={"bag_name": "slide", "bag_label": "y"})
    other = other.rename(columns=lambda name: name.replace("feature_", "dim"))
    other.assign(y=other.y == 1).to_parquet(tmp_path / "f.parquet")
    other.to_csv(tmp_path / "f.csv", index=False)
    wanted = read_feature_table(tmp_path / "t.csv")
    for name in ("f.parquet", "f.csv"):
        same(read_feature_table(tmp_path / name, columns), wanted)
        with pytest.raises(DataError, match=rf"{name}: .*feature_0.* missing"):
            read_feature_table(tmp_path / name)


@pytest.mark.parametrize("suffix", [*SUFFIXES, "npy"])
def test_a_folder_with_a_file_for_each_bag(tmp_path, table, suffix):
    folder = tmp_path / "bags"
    folder.mkdir()
    for bag, rows in table.groupby("bag_name"):
        x = arrays_of(rows)["features"]
        if suffix == "npy":
            np.save(folder / f"{bag}.npy", x)
        elif suffix == "pt":
            torch.save(torch.tensor(x), folder / f"{bag}.pt")  # without a name, as CLAM writes them
        else:
            write(folder / f"{bag}.{suffix}", {"features": x, "coords": np.zeros((len(x), 2))})
    labels = table.groupby("bag_name").bag_label.first()
    labels.rename_axis("scan").rename("label").to_csv(folder / "labels.csv")
    wanted = read_feature_table(tmp_path / "t.csv")
    found = read_feature_table(folder)
    torch.testing.assert_close(found.x, wanted.x, rtol=1e-6, atol=0)
    assert (found.scans, found.slice_names) == (wanted.scans, wanted.slice_names)
    assert torch.equal(found.labels, wanted.labels)
    before = contents(folder)
    (folder / f"0.{suffix}").unlink()
    assert contents(folder) != before
    with pytest.raises(DataError, match=r"bags: .* lacks a file for 0"):
        read_feature_table(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bag_label": np.array([0, 1, 0, 1, 0, 2])}, "bag_label must be 0 or 1, got '2'"),
        ({"bag_label": np.zeros(3)}, r"bag_label has shape \(3,\), but there are 6 bags"),
        ({"bag_name": np.array([0, 5, 5])}, "bag_name must name the bag of each of"),
        (
            {"features": np.zeros(4)},
            r"features must be a table \(N, D\) of numbers, got float64 of shape \(4,\)",
        ),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path, table, changes, message):
    with pytest.raises(DataError, match=rf"f\.npz: .*{message}"):
        read_feature_table(write(tmp_path / "f.npz", arrays_of(table) | changes))


class Payload:
    """What a hostile file would run."""

    def __reduce__(self):
        return print, ("run by unpickling",)


@pytest.mark.parametrize("name", ["f.npz", "f.h5", "f.pt", "f.safetensors", "f.parquet", "f.xyz"])
def test_damaged_and_foreign_files(tmp_path, name):
    if package := {"f.h5": "h5py", "f.parquet": "pyarrow"}.get(name):
        pytest.importorskip(package)
    (tmp_path / name).write_bytes(b"nonsense" * 20)
    with pytest.raises(DataError, match=rf"{name}: (cannot be read|is no feature file)"):
        read_feature_table(tmp_path / name)


def test_nothing_is_unpickled(tmp_path, table, capsys):
    torch.save({"features": Payload()}, tmp_path / "f.pt")
    np.savez(tmp_path / "f.npz", **arrays_of(table) | {"bag_label": np.array([Payload()])})
    for name in ("f.pt", "f.npz"):
        with pytest.raises(DataError, match=f"{name}: cannot be read"):
            read_feature_table(tmp_path / name)
    assert capsys.readouterr().out == ""
