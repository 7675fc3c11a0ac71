"""Runs on feature files of others: the model and its metrics are those of the same features as CSV."""

import numpy as np
import pandas as pd
import pytest

from ich_mil.config import RunConfig
from ich_mil.network.training.set_settings import SetSettings
from tests.feature_table import write_features
from tests.runs_for_tests import feature_run, refused, run

COLUMNS = {"features": "X", "bag_name": "slide", "bag_label": "y", "instance_name": "tile"}


def as_npz(path):
    table = pd.read_csv(path)
    arrays = {"X": table.filter(like="feature_").to_numpy(), "instance_label": table.instance_label}
    arrays |= {"slide": table.bag_name, "y": table.bag_label, "tile": table.instance_name}
    np.savez(path.with_suffix(".npz"), **{name: np.array(one.tolist()) for name, one in arrays.items()})


def test_a_run_and_a_validation_on_npz_are_those_on_csv(tmp_path, capsys):
    write_features(tmp_path / "b.csv", 16, 1)
    as_npz(tmp_path / "b.csv")
    found = {}
    for kind in ("csv", "npz"):
        words = feature_run(tmp_path)
        as_npz(tmp_path / "f.csv")
        if kind == "npz":
            words += [
                "--train.root",
                tmp_path / "f.npz",
                "--train.columns",
                str(COLUMNS),
                "--out",
                tmp_path / "r",
            ]
        assert run("train", *words) == 0
        model = tmp_path / ("run" if kind == "csv" else "r")
        words = ["validate", tmp_path / f"b.{kind}", "--layout", "features", "--model", model]
        columns = [f"--column={a}={b}" for a, b in COLUMNS.items()] if kind == "npz" else []
        assert run(*words, *columns, "--out", tmp_path / kind) == 0
        found[kind] = pd.read_csv(tmp_path / kind / "metrics.csv")
    pd.testing.assert_frame_equal(found["csv"], found["npz"])
    assert "X" in refused(capsys, *words, "--out", tmp_path / "z")
    assert "did you mean 'features'" in refused(
        capsys, *words, "--column", "feature=X", "--out", tmp_path / "z"
    )


def test_columns_are_of_feature_files_alone():
    with pytest.raises(ValueError, match="columns is for layout features"):
        SetSettings("rsna", "r", columns={"bag_name": "x"})
    with pytest.raises(ValueError, match="did you mean 'bag_label'"):
        SetSettings("features", "r", columns={"bag_lable": "x"})
    config = RunConfig("out", SetSettings("features", "r", columns=COLUMNS))
    assert config.hash != RunConfig("out", SetSettings("features", "r")).hash
