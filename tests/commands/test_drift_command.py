"""`ich-mil drift`: an alarm for a batch of predictions, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ich_mil
from ich_mil import cli
from ich_mil.commands.drift import write_reference
from ich_mil.data.features import bare_features, write_features
from ich_mil.runs.model import BUNDLED, REFERENCE, load_model
from ich_mil.runs.predictions import Results, ScanResult, write_results

BUNDLE = Path(ich_mil.__file__).parent / "bundled" / BUNDLED


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
    """A copy of the bundled model whose reference are 60 of `scans`."""
    folder = tmp_path_factory.mktemp("model") / "run"
    shutil.copytree(BUNDLE, folder)
    write_reference(scans(60), folder / "member_0")
    return folder


def predicted(folder, features, provenance):
    """A folder as `predict` leaves it."""
    results = tuple(
        ScanResult(scan, scan, 0.5, 0.1, (0.4, 0.6), "look", None, (), (), (), "") for scan in features.scans
    )
    write_results(Results("new", provenance, "", results, ()), folder)
    for name in ("features", "features_1", "features_2"):  # of each member
        write_features(features, folder / f"{name}.safetensors")


def drift(*words):
    return cli.main(["drift", *map(str, words)])


@pytest.mark.parametrize(("shift", "alarm"), [(0.0, False), (1.0, True)])
def test_the_alarm_rings_where_features_have_moved(model, tmp_path, capsys, shift, alarm):
    predicted(tmp_path, scans(20, shift=shift, seed=1), load_model(model).provenance)
    assert drift(tmp_path, "--reference", model) == 0
    found = json.loads((tmp_path / "drift.json").read_text())
    assert found["alarm"] is alarm
    assert (found["n"], found["rate"]) == (20, 0.05)
    assert ("Drift: " in capsys.readouterr().out) is alarm


def test_what_is_refused(model, tmp_path, capsys):
    provenance = load_model(model).provenance
    predicted(tmp_path / "few", scans(9), provenance)
    predicted(tmp_path / "other", scans(20), replace(provenance, weights="another"))
    shutil.copytree(model, tmp_path / "without")
    (tmp_path / "without" / "member_0" / REFERENCE).unlink()
    shutil.copytree(model, tmp_path / "damaged")
    (tmp_path / "damaged" / "member_0" / REFERENCE).write_bytes(b"{}")
    for folder, reference, more, message in (
        ("few", model, (), "few: batch: drift needs at least 10 scans, got 9"),
        ("other", model, (), "other: was predicted by another model"),
        ("few", tmp_path / "without", (), "keeps no reference scans"),
        ("few", tmp_path / "damaged", (), "reference.safetensors: cannot be read"),
        ("few", model, ("--rate", "0.0001"), "--rate: rate must be at least 0.002"),
        ("none", model, (), "cannot be read as predictions"),
    ):
        assert drift(tmp_path / folder, "--reference", reference, *more) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_few_scans_are_no_reference(tmp_path):
    write_reference(scans(9), tmp_path)
    assert not (tmp_path / REFERENCE).exists()
