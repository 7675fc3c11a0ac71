"""`ich-mil drift`: an alarm for a batch of predictions, and what is refused."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from ich_mil.model.folder import REFERENCE
from ich_mil.model.predictions import Results, ScanPrediction, write_results
from ich_mil.model.site.drift import write_reference
from ich_mil.model.storage import load_model
from ich_mil.sets.features import bare_features, write_features
from tests.runs_for_tests import feature_run, refused, run


def scans(n, *, shift=0.0, seed=0):
    """Features of n scans of 5 slices, and probabilities as a network gives them."""
    generator = np.random.default_rng(seed)
    names = [f"scan {seed}-{b}" for b in range(n)]
    slices = [f"{name} slice {i}" for name in names for i in range(5)]
    x = generator.normal(shift, 1.0, size=(5 * n, 4))
    made = bare_features(x, np.full(n, 5), names, np.arange(n) % 2, slices)
    return replace(made, cnn_scan=torch.tensor(generator.uniform(size=n), dtype=torch.float32))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A run whose reference are 60 of `scans`."""
    folder = tmp_path_factory.mktemp("model")
    assert run("train", *feature_run(folder, scans=20)) == 0
    write_reference(scans(60), folder / "run")
    return folder / "run"


def predicted(folder, features, provenance):
    """A folder of `predict`."""
    results = tuple(
        ScanPrediction(scan, scan, 0.5, 0.1, (0.4, 0.6), "look", None, (), (), (), "")
        for scan in features.scans
    )
    write_results(Results("new", provenance, "", results, ()), folder)
    write_features(features, folder / "features.safetensors")


@pytest.mark.parametrize(("shift", "alarm"), [(0.0, False), (1.0, True)])
def test_the_alarm_is_raised_where_features_have_moved(model, tmp_path, capsys, shift, alarm):
    predicted(tmp_path, scans(20, shift=shift, seed=1), load_model(model).provenance)
    assert run("drift", tmp_path, "--model", model) == 0
    found = json.loads((tmp_path / "drift.json").read_text())
    assert found["alarm"] is alarm
    assert (found["n"], found["rate"]) == (20, 0.05)
    assert ("Drift: " in capsys.readouterr().out) is alarm


def test_predictions_and_references_that_cannot_be_used(model, tmp_path, capsys):
    provenance = load_model(model).provenance
    predicted(tmp_path / "few", scans(9), provenance)
    predicted(tmp_path / "other", scans(20), replace(provenance, weights="another"))
    shutil.copytree(model, tmp_path / "without")
    (tmp_path / "without" / REFERENCE).unlink()
    write_reference(scans(9), tmp_path / "without")  # too few: nothing is written
    shutil.copytree(model, tmp_path / "damaged")
    (tmp_path / "damaged" / REFERENCE).write_bytes(b"{}")
    (tmp_path / "empty").mkdir()
    for folder, reference, more, message in (
        ("few", model, (), "few: batch: drift needs at least 10 scans, got 9"),
        ("other", model, (), "other: was predicted by another model"),
        ("few", tmp_path / "without", (), "keeps no reference scans"),
        ("few", tmp_path / "damaged", (), "reference.safetensors: cannot be read"),
        ("few", model, ("--rate", "0.0001"), "--rate: rate must be at least 0.002"),
        ("empty", model, (), "holds no predictions.json"),
    ):
        assert message in refused(capsys, "drift", tmp_path / folder, "--model", reference, *more)
