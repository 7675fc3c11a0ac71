"""The rows beside the head: what each says, and which are left out where nothing is known."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from ich_mil import cli
from ich_mil.commands import validate
from ich_mil.commands.validate import score_rows
from ich_mil.data.features import read_feature_csv
from ich_mil.data.splits import COLUMNS, write_splits
from ich_mil.evaluate.baselines import CNN_SIGMOID, CnnSigmoid, position_score
from ich_mil.evaluate.result_table import evaluate, table_notes
from tests.feature_table import write_features

CNN = ("cnn_scan", "cnn_slice", "attention")


@pytest.fixture
def model(tmp_path):
    """A run that was trained on three scans, two of them positive."""
    rows = [("a", 1, "train"), ("b", 1, "train"), ("c", 0, "train"), ("d", 0, "validation")]
    rows += [("e", 1, "validation"), ("f", 0, "test")]
    splits = pd.DataFrame(rows, columns=["scan", "label", "split"])
    write_splits(splits.assign(patient=splits.scan, content=""), tmp_path / "splits.csv")
    return SimpleNamespace(folder=tmp_path, members=())


@pytest.fixture
def features(tmp_path):
    write_features(tmp_path / "f.csv", 6, 0)
    found = read_feature_csv(str(tmp_path / "f.csv"))
    generator = torch.Generator().manual_seed(0)
    names = (*CNN, "positions")
    return replace(
        found, **{name: torch.rand(getattr(found, name).shape, generator=generator) for name in names}
    )


def rows_of(model, features):
    said = SimpleNamespace(
        scan_mean=torch.linspace(0, 1, features.n_scans), slice_mean=torch.linspace(1, 0, len(features.x))
    )
    return said, {row.name: row for row in score_rows(model, features, said)}


def test_each_row_says_what_is_its_own(model, features):
    said, rows = rows_of(model, features)
    n, known = len(features.x), features.slice_labels.numpy()
    wanted = {
        "Gaussian-process head": (said.scan_mean, said.slice_mean, True),
        "CNN alone": (features.cnn_scan, features.cnn_slice, True),
        "CNN attention weight": (None, features.attention, False),
        "position only": (np.full(6, 2 / 3), position_score(features.positions.numpy()), False),
        "slice prevalence": (None, np.full(n, known.mean()), True),
    }
    assert list(rows) == list(wanted)
    for name, (scan, each, probability) in wanted.items():
        row = rows[name]
        assert (row.scan is None) == (scan is None), name
        if scan is not None:
            np.testing.assert_array_equal(row.scan, scan, name)
        np.testing.assert_array_equal(row.slice, each, name)
        assert row.slice_is_probability == probability, name


def test_the_table_explains_the_rows_without_a_picture(model, features):
    _, rows = rows_of(model, features)
    measured = {
        "labels": features.labels.numpy(),
        "patients": features.patients,
        "offsets": features.offsets.numpy(),
        "slice_labels": features.slice_labels.numpy(),
    }
    notes = table_notes(evaluate(list(rows.values()), **measured, seed=0, resamples=20))
    assert any(note.startswith("position only: ") for note in notes)
    assert any(note.startswith("slice prevalence: ") for note in notes)
    alone = table_notes(evaluate([rows["CNN alone"]], **measured, seed=0, resamples=20))
    assert not any(note.startswith(("position only", "slice prevalence")) for note in alone)


def test_the_cnn_is_shown_calibrated_too(model, features):
    CnnSigmoid(2.0, -0.5).save(model.folder / CNN_SIGMOID)
    _, rows = rows_of(model, features)
    assert list(rows)[1:3] == ["CNN alone", "CNN alone, calibrated"]
    row, logit = rows["CNN alone, calibrated"], torch.logit(features.cnn_scan.double())
    np.testing.assert_allclose(row.scan, torch.sigmoid(2 * logit - 0.5), rtol=1e-12)
    assert row.slice is None
    silent = replace(features, cnn_scan=torch.full_like(features.cnn_scan, torch.nan))
    assert "CNN alone, calibrated" not in rows_of(model, silent)[1]


def test_what_is_not_known_says_nothing(model, features):
    nothing = {name: torch.full_like(getattr(features, name), torch.nan) for name in (*CNN, "positions")}
    unlabelled = torch.full_like(features.slice_labels, -1)
    _, rows = rows_of(model, replace(features, slice_labels=unlabelled, **nothing))
    assert list(rows) == ["Gaussian-process head", "CNN alone", "position only"]
    assert (rows["CNN alone"].scan, rows["CNN alone"].slice, rows["position only"].slice) == (None,) * 3


def run_of_tables(tmp_path):
    """The words of a run on two tables, `train.csv` and `other.csv`, which are written."""
    for seed, name in enumerate(("train", "other")):
        write_features(tmp_path / f"{name}.csv", 30, seed)
    config = {
        "out": str(tmp_path / "run"),
        "train": {"layout": "features", "root": str(tmp_path / "train.csv")},
        "external": {"layout": "features", "root": str(tmp_path / "other.csv")},
        "split": {"validation": 0.2, "test": 0.3},
        "head": {"n_inducing": 8, "sweeps": 4, "calibration": "none"},
        "bootstrap": 20,
        "samples": 20,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    return ["--config", str(tmp_path / "run.yaml")]


def test_an_external_scan_that_was_learned_from_under_another_name_is_refused(tmp_path, capsys):
    words = run_of_tables(tmp_path)
    assert cli.train_main(words) == 0
    splits = pd.read_csv(tmp_path / "run" / "splits.csv")
    table = pd.read_csv(tmp_path / "train.csv")
    table.assign(bag_name="new-" + table.bag_name).to_csv(tmp_path / "again.csv", index=False)
    again = [str(tmp_path / "again.csv"), "--layout", "features", "--model", str(tmp_path / "run")]
    assert cli.main(["validate", *again, "--out", str(tmp_path / "out")]) == 2
    told = f"again.csv: {(splits.split != 'test').sum()} of its scans have the slices of one that was"
    assert told in capsys.readouterr().err
    splits = splits.groupby("split").scan.first()
    table, other = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("train", "other"))
    for split, code in (("train", 2), ("validation", 2), ("test", 0)):
        twin = table[table.bag_name == splits[split]].assign(bag_name="new")
        pd.concat([other, twin]).to_csv(tmp_path / "other.csv", index=False)
        capsys.readouterr()
        assert cli.train_main([*words, "--resume"]) == code
        told = "1 of its scans have the slices of one that was trained or calibrated on: new "
        told = f"other.csv: {told}(those of {splits[split]})"
        assert (told in capsys.readouterr().err) == (code == 2)


def test_people_the_files_do_not_name_are_told_also_where_one_is_there_twice(tmp_path, monkeypatch, capsys):
    splits = pd.DataFrame([("t", "P9", 0, "train", ""), ("u", "P8", 1, "train", "")], columns=COLUMNS)
    write_splits(splits, tmp_path / "splits.csv")
    patients = ["a = b", "a = b", "c", "P1", "P2 = e", "P2 = e"]  # e has the slices of one whose files do
    scans = pd.DataFrame({"patient": patients, "label": 0, "content": ""}, index=[*"abcdfe"])
    monkeypatch.setattr(validate, "prepare", lambda *_, **__: SimpleNamespace(scans=scans))
    model = SimpleNamespace(
        folder=tmp_path,
        thickness_mm=5.0,
        check_input=lambda **_: None,
        features=lambda *_: None,
        members=(),
    )
    validate.external_set(
        model, "folder", Path("/site$new"), prepared_in=tmp_path, features_in=tmp_path, jobs=1
    )
    assert "/site$new: 3 scans name no patient (a, b, c); whether" in capsys.readouterr().out


def test_a_feature_that_is_far_from_training_names_its_file(tmp_path, capsys):
    words = run_of_tables(tmp_path)
    assert cli.train_main(words) == 0
    table = pd.read_csv(tmp_path / "other.csv")
    table.loc[40, "feature_1"] = 1e9
    table.to_csv(tmp_path / "far.csv", index=False)
    far = [str(tmp_path / "far.csv"), "--layout", "features", "--model", str(tmp_path / "run")]
    capsys.readouterr()
    assert cli.main(["validate", *far, "--out", str(tmp_path / "out")]) == 2
    scan = table.bag_name[40]
    told = f"{tmp_path / 'far.csv'}: scan {scan!r}: feature 1 of slice "
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out" / "predictions.csv").exists()
    (tmp_path / "far.csv").replace(tmp_path / "other.csv")
    assert cli.main(["report", str(tmp_path / "run")]) == 2
    assert told.replace("far.csv", "other.csv") in capsys.readouterr().err
