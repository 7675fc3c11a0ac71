"""One model on one task: what each is given of it, and when what is kept is made again."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ich_mil.errors import DataError
from ich_mil.evaluate.baselines import position_score
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import platt
from ich_mil.gp.predict import predict
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.sets.features import read_feature_table
from research.reproduce import scoring
from research.reproduce.protocol import read_protocol
from research.reproduce.scoring import Model, read_scored, score_task, scored_file
from research.reproduce.statistics.feature_baselines import pooled_logistic
from research.reproduce.tasks import Task
from tests.feature_table import write_features
from tests.research.reproduce.test_reproduce import protocol

POSITION, MAIN = Model("position only"), Model("G-VGPMIL", 8)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Scans to learn from, to stop on and to score, of which everything is known."""
    folder, parts = tmp_path_factory.mktemp("scoring"), []
    for seed, n_scans in enumerate((41, 15, 9)):
        write_features(folder / "f.csv", n_scans, seed)
        one = read_feature_table(folder / "f.csv")
        generator = torch.Generator().manual_seed(seed)
        numbers = {
            name: torch.rand(getattr(one, name).shape, generator=generator)
            for name in ("cnn_scan", "cnn_slice", "attention", "positions")
        }
        parts.append(replace(one, **numbers))
    return Task("home", 3, 4, -1, parts[0], parts[1], {"away": parts[2]})


@pytest.fixture
def config(tmp_path):
    heads = {"VGPMIL": {"sweeps": 2, "calibration": "none"}, "G-VGPMIL": {"density": "gamma", "sweeps": 4}}
    return read_protocol([str(protocol(tmp_path, heads=heads))])


def scored(model, task, config):
    return read_scored(score_task(model, task, config))[0]["away"]


def test_baseline_scores_are_the_models_outputs(task, config):
    test = task.scored["away"]
    pooled = {how: pooled_logistic(task.train, test, how=how, seed=4) for how in ("mean", "max")}
    wanted = {
        "CNN alone": (test.cnn_scan, test.cnn_slice),
        "position only": (np.full(9, 20 / 41), position_score(test.positions.numpy())),
        "logistic regression, mean-pooled": (pooled["mean"].scan, pooled["mean"].slice),
        "logistic regression, max-pooled": (pooled["max"].scan, None),
    }
    for name, (scan, each) in wanted.items():
        found = scored(Model(name), task, config)
        assert (found.name, found.scan_std) == (name, None)
        assert found.slice_is_probability == (name == "CNN alone")
        np.testing.assert_array_equal(found.scan, scan, name)
        np.testing.assert_array_equal(found.slice, each, name)
    unknown = {name: torch.full_like(getattr(test, name), torch.nan) for name in ("cnn_scan", "cnn_slice")}
    silent = replace(task, scored={"away": replace(test, **unknown)})
    assert scored(Model("CNN alone"), silent, config).scan is None


def test_the_cnn_is_calibrated_as_a_head_is(task, config):
    model, test = Model("CNN alone, calibrated"), task.scored["away"]
    own = torch.logit(test.cnn_scan.double())

    def told(part, sign):
        """Its scans, with a CNN that knows a little of their labels."""
        return replace(part, cnn_scan=(part.cnn_scan + sign * part.labels + (sign < 0)) / 2)

    for watch in (task.validation, None):
        learn = told(watch or task.train, 1)
        slope, intercept, _ = platt(torch.logit(learn.cnn_scan.double()), learn.labels)
        one = replace(task, validation=learn) if watch else replace(task, train=learn, validation=None)
        found = scored(model, one, config)
        np.testing.assert_allclose(found.scan, torch.sigmoid(slope * own + intercept), rtol=1e-12)
        assert found.slice is None
        assert slope > 0
    turned = scored(model, replace(task, validation=told(task.validation, -1)), config)
    np.testing.assert_allclose(turned.scan, test.cnn_scan, rtol=1e-6)
    unknown = replace(task.validation, cnn_scan=torch.full((15,), torch.nan))
    assert scored(model, replace(task, validation=unknown), config).scan is None


def test_a_head_is_fitted_to_its_task(task, config):
    test, found = task.scored["away"], scored(MAIN, task, config)
    settings = config.head("G-VGPMIL", 8, seed=4)
    model = GaussianProcessHead.fit(task.train, settings, watch=task.validation).model
    scans = model, Bags(test.x, test.offsets, ids=test.scans)
    wanted = predict(*scans, samples=50, seed=4, calibration=model.calibration)
    pairs = ("scan", wanted.scan_mean), ("scan_std", wanted.scan_std), ("slice", wanted.slice_mean)
    for name, values in pairs:
        np.testing.assert_allclose(getattr(found, name), values, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    "what", ["scan", "patient", "feature", "validation", "settings", "samples", "version"]
)
def test_scores_are_made_again_after_a_change(task, config, monkeypatch, what):
    model = Model("VGPMIL", 6) if what in ("settings", "samples") else POSITION
    path = score_task(model, task, config)
    os.utime(path, (0, 0))
    score_task(model, task, config)
    assert path.stat().st_mtime == 0
    test = task.scored["away"]
    if what == "scan":
        task = replace(task, scored={"away": replace(test, scans=[*test.scans[:-1], "other"])})
    elif what == "patient":
        task = replace(task, train=replace(task.train, patients=["other", *task.train.patients[1:]]))
    elif what == "feature":
        task = replace(task, train=replace(task.train, x=task.train.x + 1))
    elif what == "validation":
        task = replace(task, validation=None)
    elif what == "settings":
        config = config.model_copy(
            update={"heads": config.heads | {"VGPMIL": {"sweeps": 3, "calibration": "none"}}}
        )
    elif what == "samples":
        config = config.model_copy(update={"samples": 60})
    else:
        monkeypatch.setattr(scoring, "__version__", "0.0.0")
    assert score_task(model, task, config) == path
    assert path.stat().st_mtime > 0


def test_damaged_or_old_files_are_made_again(task, config):
    path = score_task(POSITION, task, config)
    wanted = position_score(task.scored["away"].positions.numpy())
    save_file({"x": torch.zeros(1)}, path.with_name("older"), {"format": "ich_mil.scored.3"})
    for content in (b"half", path.with_name("older").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as scores"):
            read_scored(path)
        np.testing.assert_array_equal(scored(POSITION, task, config).slice, wanted)


def test_each_task_and_model_has_a_file(task, tmp_path):
    others = [{}, {"set": "b"}, {"width": 8}, {"seed": 5}, {"fold": 0}, {"fold": 1}]
    files = {scored_file(tmp_path, MAIN, replace(task, **change)) for change in others}
    files |= {scored_file(tmp_path, Model(name, 8), task) for name in ("G +", "G -")}
    assert len(files) == len(others) + 2
