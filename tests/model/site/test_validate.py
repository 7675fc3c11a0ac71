"""Measured sets: the rows beside the head, and scans that are refused."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from ich_mil.evaluate.baselines import CNN_SIGMOID, CnnSigmoid, position_score
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.model.site.validate import external_set, score_rows
from ich_mil.sets.features import read_feature_table
from ich_mil.sets.splits import SPLIT_COLUMNS, write_splits
from tests.feature_table import write_features
from tests.runs_for_tests import HEAD, feature_run, refused, run

CNN = ("cnn_scan", "cnn_slice", "attention")


@pytest.fixture
def model(tmp_path):
    """A run that was trained on three scans, two of them positive."""
    rows = [("a", 1, "train"), ("b", 1, "train"), ("c", 0, "train"), ("d", 0, "validation")]
    rows += [("e", 1, "validation"), ("f", 0, "test")]
    splits = pd.DataFrame(rows, columns=["scan", "label", "split"])
    write_splits(splits.assign(patient=splits.scan, learn="all", content=""), tmp_path / "splits.csv")
    members, about = [SimpleNamespace(head=GaussianProcessHead)], SimpleNamespace(prevalence=None)
    return SimpleNamespace(folder=tmp_path, members=members, provenance=about)


@pytest.fixture
def features(tmp_path):
    write_features(tmp_path / "f.csv", 6, 0)
    found = read_feature_table(str(tmp_path / "f.csv"))
    generator = torch.Generator().manual_seed(0)
    names = (*CNN, "positions")
    return replace(
        found, **{name: torch.rand(getattr(found, name).shape, generator=generator) for name in names}
    )


def rows_of(model, features):
    head = SimpleNamespace(
        scan_mean=torch.linspace(0, 1, features.n_scans), slice_mean=torch.linspace(1, 0, len(features.x))
    )
    return head, {row.name: row for row in score_rows(model, features, head)}


def test_each_row_has_its_own_scores(model, features):
    head, rows = rows_of(model, features)
    n, known = len(features.x), features.slice_labels.numpy()
    wanted = {
        "Gaussian-process head": (head.scan_mean, head.slice_mean, True),
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


def test_the_cnn_is_shown_calibrated_too(model, features):
    CnnSigmoid(2.0, -0.5).save(model.folder / CNN_SIGMOID)
    _, rows = rows_of(model, features)
    assert list(rows)[1:3] == ["CNN alone", "CNN alone, calibrated"]
    row, logit = rows["CNN alone, calibrated"], torch.logit(features.cnn_scan.double())
    np.testing.assert_allclose(row.scan, torch.sigmoid(2 * logit - 0.5), rtol=1e-12)
    assert row.slice is None


def test_position_alone_has_the_share_at_which_the_probabilities_hold(model, features):
    """Single slices and boxes, which `splits.csv` lists too, are no scans."""
    model.provenance.prevalence = 0.4
    np.testing.assert_array_equal(rows_of(model, features)[1]["position only"].scan, [0.4] * 6)


def test_unknown_values_have_no_rows(model, features):
    CnnSigmoid(2.0, -0.5).save(model.folder / CNN_SIGMOID)
    nothing = {name: torch.full_like(getattr(features, name), torch.nan) for name in (*CNN, "positions")}
    unlabelled = torch.full_like(features.slice_labels, -1)
    _, rows = rows_of(model, replace(features, slice_labels=unlabelled, **nothing))
    assert list(rows) == ["Gaussian-process head", "CNN alone", "position only"]
    assert (rows["CNN alone"].scan, rows["CNN alone"].slice, rows["position only"].slice) == (None,) * 3


def test_scans_that_name_no_patient_are_reported(tmp_path, capsys):
    rows = [("t", "P9", 0, "train", "all", ""), ("u", "P8", 1, "inherited", "all", "")]
    rows += [("v", "P7", 1, "train", "heads", "")]
    splits = pd.DataFrame(rows, columns=SPLIT_COLUMNS)
    write_splits(splits, tmp_path / "splits.csv")
    patients = ["a = b", "a = b", "c", "P1", "P2 = e", "P2 = e"]  # e has the slices of one whose files do
    scans = pd.DataFrame({"patient": patients, "label": 0, "content": ""}, index=[*"abcdfe"])
    views = SimpleNamespace(features=SimpleNamespace(scans=[]), with_extras=lambda extras: None)
    model = SimpleNamespace(
        folder=tmp_path, check_input=lambda **_: None, features=lambda *_: views, members=()
    )
    external_set(model, tmp_path / "site$new", SimpleNamespace(scans=scans), tmp_path)
    assert "site$new: 3 scans name no patient (a, b, c);" in capsys.readouterr().out


def test_external_scans_that_were_trained_on_or_are_far_from_training_are_refused(tmp_path, capsys):
    write_features(tmp_path / "g.csv", 30, 1)
    external = {"layout": "features", "root": str(tmp_path / "g.csv")}
    head = HEAD | {"calibration": "none"}
    words = feature_run(
        tmp_path, scans=30, external=external, head=head, split={"validation": 0.2, "test": 0.3}
    )
    assert run("train.py", *words) == 0
    splits = pd.read_csv(tmp_path / "run" / "splits.csv")
    table, other = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("f", "g"))
    table.assign(bag_name="new-" + table.bag_name).to_csv(tmp_path / "again.csv", index=False)
    other.assign(feature_1=other.feature_1.where(other.index != 40, 1e9)).to_csv(
        tmp_path / "far.csv", index=False
    )
    far = f"scan {other.bag_name[40]!r}: feature 1 of slice "
    learned = f"{(splits.split != 'test').sum()} of its scans have the slices of one that was trained"
    for name, message in (("again", learned), ("far", far)):
        given = (tmp_path / f"{name}.csv", "--layout", "features", "--model", tmp_path / "run")
        error = refused(capsys, "validate", *given, "--out", tmp_path / "out")
        assert f"{tmp_path / name}.csv: {message}" in error
    assert not (tmp_path / "out" / "scans.csv").exists()
