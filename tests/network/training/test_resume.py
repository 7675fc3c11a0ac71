"""Runs that end early: killed, stopped or full disks; damaged and hostile checkpoints."""

import os
import resource
import shutil
import signal
import tempfile
from dataclasses import replace

import pandas as pd
import pytest
import torch

from ich_mil.errors import DataError, ModelError
from ich_mil.network.attention_cnn import CnnSettings
from ich_mil.network.bags import ScanDataset
from ich_mil.network.training.epoch_log import EpochLog
from tests.network.training.test_fit import TRAINING, fit, predictions
from tests.together import forkserver


def _fit_until(epoch, number, *about):
    """Train, and send this process a signal at the end of an epoch."""
    at_end = EpochLog.on_train_epoch_end

    def bomb(self, trainer, pl_module):
        at_end(self, trainer, pl_module)
        if trainer.current_epoch == epoch:
            os.kill(os.getpid(), number)

    EpochLog.on_train_epoch_end = bomb
    torch.set_num_threads(1)
    fit(*about)


def killed(*about, epoch, number):
    """The exit code of a run that is sent a signal at the end of an epoch."""
    process = forkserver().Process(target=_fit_until, args=(epoch, number, *about))
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_model(prepared, splits, tmp_path):
    assert killed(prepared, splits, tmp_path / "a", epoch=2, number=signal.SIGKILL) == -signal.SIGKILL
    assert (tmp_path / "a" / "last.ckpt").is_file()
    assert not (tmp_path / "a" / "cnn.json").exists()

    resumed = predictions(fit(prepared, splits, tmp_path / "a"), prepared)
    straight = predictions(fit(prepared, splits, tmp_path / "b"), prepared)
    assert torch.equal(resumed[0], straight[0])
    assert torch.equal(resumed[1], straight[1])
    logs = [pd.read_csv(tmp_path / name / "log.csv") for name in "ab"]
    assert logs[0].equals(logs[1])


@pytest.mark.slow
def test_sigterm_ends_a_run(prepared, splits, tmp_path):
    assert killed(prepared, splits, tmp_path / "a", epoch=0, number=signal.SIGTERM) == -signal.SIGTERM
    assert len(pd.read_csv(tmp_path / "a" / "log.csv")) == 1


@pytest.mark.slow
def test_augmented_run_resumes_to_the_same_model(prepared, splits, tmp_path):
    varied = replace(TRAINING, augment=True, max_epochs=3)
    fit(prepared, splits, tmp_path / "before", training=replace(varied, max_epochs=1))
    (tmp_path / "before").rename(tmp_path / "a")
    (tmp_path / "a" / ".best.ckpt.1.tmp").touch()  # left by a killed run
    resumed = predictions(fit(prepared, splits, tmp_path / "a", training=varied), prepared)
    assert not list((tmp_path / "a").glob(".*"))
    straight = predictions(fit(prepared, splits, tmp_path / "b", training=varied), prepared)
    assert torch.equal(resumed[1], straight[1])
    log = (tmp_path / "b" / "log.csv").read_text()
    assert (tmp_path / "a" / "log.csv").read_text() == log
    # the same weights and dropout, but other pictures, then another order
    fit(prepared, splits, tmp_path / "c", training=replace(varied, augment=False))
    fit(prepared, splits, tmp_path / "d", training=varied, seed=1)
    assert len({log, *((tmp_path / name / "log.csv").read_text() for name in "cd")}) == 3


@pytest.mark.slow
def test_full_disk_leaves_the_last_whole_checkpoint(prepared, splits, tmp_path, monkeypatch):
    fixed = replace(TRAINING, patience=None)
    straight = predictions(fit(prepared, splits, tmp_path / "a", training=fixed), prepared)
    save, calls, limits = torch.save, iter(range(100)), resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(state, file):
        if next(calls) == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        return save(state, file)

    try:
        with monkeypatch.context() as full:
            full.setattr(torch, "save", fill)
            with pytest.raises(DataError, match=r"last\.ckpt: cannot be written \(File too large\)"):
                fit(prepared, splits, tmp_path / "b", training=fixed)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["best.ckpt", "last.ckpt", "log.csv"]
    # nor is it written anywhere else first
    monkeypatch.setattr(tempfile, "mkstemp", lambda *_, **__: pytest.fail("a file elsewhere"))
    resumed = predictions(fit(prepared, splits, tmp_path / "b", training=fixed), prepared)
    assert torch.equal(resumed[1], straight[1])


def test_ctrl_c_is_a_keyboard_interrupt(prepared, splits, tmp_path, monkeypatch):
    monkeypatch.setattr(ScanDataset, "__getitem__", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(prepared, splits, tmp_path)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture(scope="module")
def one_epoch(prepared, splits, tmp_path_factory):
    out = tmp_path_factory.mktemp("one_epoch")
    fit(prepared, splits, out, training=replace(TRAINING, max_epochs=1))
    return out


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
@pytest.mark.parametrize("content", ["nothing", "tensors", "code"])
def test_damaged_or_hostile_checkpoint(prepared, splits, one_epoch, tmp_path, name, content):
    out, payload = tmp_path / "cnn", Payload(tmp_path / "mark")
    shutil.copytree(one_epoch, out)
    path = out / name
    match content:
        case "nothing":
            path.write_bytes(b"")
        case "tensors":
            torch.save({"state_dict": {}}, path)
        case "code":
            torch.save({"state_dict": {}, "loops": {}, "callbacks": {"x": payload}}, path)
    with pytest.raises(ModelError, match=rf"{name}: cannot be read .* delete {out}"):
        fit(prepared, splits, out, training=replace(TRAINING, max_epochs=1))
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
def test_checkpoint_of_another_model(prepared, splits, one_epoch, tmp_path):
    shutil.copytree(one_epoch, tmp_path / "cnn")
    with pytest.raises(ModelError, match=r"last\.ckpt: belongs to another model"):
        fit(prepared, splits, tmp_path / "cnn", cnn=CnnSettings(features=32))
