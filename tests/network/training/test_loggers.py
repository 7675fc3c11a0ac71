"""Lightning's loggers: curves in the folder of the run, off by default, nothing sent, the model unchanged."""

import os
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from ich_mil.config import RunConfig
from ich_mil.errors import ConfigError
from ich_mil.network.attention_cnn import CnnSettings
from ich_mil.network.settings import EncoderSettings
from ich_mil.network.training.fit_cnn import fit_cnn
from ich_mil.network.training.loggers import DEFAULTS, check_logger
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.sets.splits import draw_splits

TRAINING = TrainingSettings(learning_rate=1e-3, bags=2, max_epochs=2, patience=9)


def fit(prepared, out, logger):
    splits = draw_splits(prepared.scans, validation=0.3, test=0.0, seed=0)
    settings = {"encoder": EncoderSettings(size=32), "cnn": CnnSettings(), "seed": 0}
    return fit_cnn(prepared, splits, out, training=replace(TRAINING, logger=logger), **settings)


@pytest.fixture(scope="module")
def plain(prepared, tmp_path_factory):
    out = tmp_path_factory.mktemp("plain") / "run" / "cnn"
    model = fit(prepared, out, "none")
    assert {path.name for path in out.iterdir()} == {"best.ckpt", "last.ckpt", "log.csv"}
    return model


def curves_of(out, logger):
    """Values of the validation loss that were logged, by epoch."""
    if logger == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(out / "tensorboard"))
        events.Reload()
        return [one.value for one in events.Scalars("val_loss")]
    if logger == "mlflow":
        (path,) = (out / "mlruns").rglob("metrics/val_loss")
        return [float(line.split()[1]) for line in path.read_text().splitlines()]
    (path,) = (out / "wandb").glob("offline-run-*/*.wandb")  # a binary log
    assert b"val_loss" in path.read_bytes()
    return None


@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.parametrize("logger", ["tensorboard", "mlflow", "wandb"])
def test_curves_are_logged_and_the_model_unchanged(prepared, plain, tmp_path, monkeypatch, logger):
    if find_spec(logger) is None:
        pytest.skip(f"{logger} is not installed")
    monkeypatch.chdir(tmp_path)
    for variable in ("MLFLOW_TRACKING_URI", *DEFAULTS):
        monkeypatch.delenv(variable, raising=False)
    out = tmp_path / "run" / "cnn"
    model = fit(prepared, out, logger)
    state = plain.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    rows = (out / "log.csv").read_text().splitlines()
    if (curve := curves_of(out, logger)) is not None:
        wanted = [float(row.split(",")[rows[0].split(",").index("val_loss")]) for row in rows[1:]]
        assert curve == pytest.approx(wanted, rel=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert all(os.environ[name] == value for name, value in DEFAULTS.items())


@pytest.mark.parametrize("logger", ["tensorboard", "mlflow", "wandb"])
def test_a_logger_that_is_not_installed_is_named(monkeypatch, logger):
    monkeypatch.setitem(sys.modules, logger, None)
    monkeypatch.setattr("ich_mil.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"training\.logger {logger}: .*ich-mil\[loggers\]"):
        check_logger(logger)
    check_logger("none")


def test_a_run_goes_on_with_another_logger():
    config = RunConfig("out", SetSettings("rsna", "r"))
    assert replace(config, training=TrainingSettings(logger="wandb")).hash == config.hash
