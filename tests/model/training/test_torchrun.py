"""`torchrun train.py`: two processes make one run; a killed process ends it with an error, and it resumes."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file

from ich_mil.files import alone
from tests import phantoms

ROOT = Path(__file__).parents[3]

BOMB = """
    import os, sys
    from ich_mil.cli import train_main
    from ich_mil.network.training import fit_cnn as fit

    class Bomb(fit.EpochLog):
        def on_train_epoch_end(self, trainer, pl_module):
            super().on_train_epoch_end(trainer, pl_module)
            if trainer.current_epoch == 1 and trainer.global_rank == 1:
                os.kill(os.getpid(), int(os.environ["BOMB"]))

    fit.EpochLog = Bomb
    sys.exit(train_main(sys.argv[1:]))
"""

SURVIVOR = re.compile(r"error: process 1 of 2 (has lost another one|was ended by SIGTERM); .*--resume'")
"""The end of the other process is noticed by its connection, or signalled by torchrun, whichever is first."""


def settings(folder):
    return {
        "prepared": str(folder / "prepared"),
        "train": {"layout": "rsna", "root": str(folder / "set")},
        "external": {"layout": "rsna", "root": str(folder / "other")},
        "split": {"validation": 0.3},
        "encoder": {"size": 32},
        "training": {"learning_rate": 1e-3, "bags": 3, "max_epochs": 3, "patience": 9, "augment": True},
        "head": {"n_inducing": 8, "sweeps": 5},
        "samples": 50,
        "bootstrap": 20,
        "pages": 1,
        "jobs": 1,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    phantoms.rsna(folder / "set", studies=12)
    phantoms.rsna(folder / "other", studies=4, seed=1)
    (folder / "run.yaml").write_text(yaml.safe_dump(settings(folder)))
    (folder / "bomb.py").write_text(textwrap.dedent(BOMB))
    return folder


def run(folder, out, *words, script=ROOT / "train.py", processes=2, bomb=signal.SIGKILL):
    launch = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", script]
    program = ["-m", *launch] if processes > 1 else [script]
    command = [sys.executable, *program, "--config", folder / "run.yaml", "--out", folder / out, *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "BOMB": str(int(bomb))}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_a_killed_process_ends_the_run_and_the_run_goes_on(folder):
    straight = run(folder, "straight")
    assert straight.returncode == 0, straight.stderr
    assert straight.stdout.count("epoch   0") == 1, "every rank talks"

    killed = run(folder, "killed", script=folder / "bomb.py")
    assert killed.returncode != 0
    assert "Signal 9 (SIGKILL)" in killed.stderr
    assert SURVIVOR.search(killed.stderr)
    assert not (folder / "killed" / "cnn.json").exists()
    assert len(pd.read_csv(folder / "killed" / "cnn" / "log.csv")) >= 1

    resumed = run(folder, "killed", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    for name in ("cnn.safetensors", "features/train.safetensors", "head.safetensors"):
        one, other = (load_file(folder / out / name) for out in ("killed", "straight"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name
    logs = [(folder / out / "cnn" / "log.csv").read_text() for out in ("killed", "straight")]
    assert logs[0] == logs[1]
    scans = [
        json.loads((folder / out / "external" / "predictions.json").read_text())["scans"]
        for out in ("killed", "straight")
    ]
    assert scans[0] == scans[1]


@pytest.mark.slow
def test_a_process_that_gets_sigterm_ends_the_run_too(folder):
    ended = run(folder, "ended", "--training.workers=1", script=folder / "bomb.py", bomb=signal.SIGTERM)
    assert ended.returncode != 0
    assert "Signal 15 (SIGTERM)" in ended.stderr
    assert "error: process 2 of 2 was ended by SIGTERM" in ended.stderr
    assert SURVIVOR.search(ended.stderr)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_two_gpus_make_one_run(folder):
    ended = run(folder, "gpus")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("epoch   0") == 1, "every rank talks"
    losses = pd.read_csv(folder / "gpus" / "cnn" / "log.csv").train_loss
    assert len(losses) == 3
    assert losses.between(0, 10).all()
    assert (folder / "gpus" / "external" / "predictions.json").is_file()


@pytest.mark.slow
def test_bad_input_is_one_clear_error(folder):
    broken = settings(folder) | {"train": {"layout": "rsna", "root": str(folder / "absent")}}
    path = folder / "broken"
    path.mkdir()
    (path / "run.yaml").write_text(yaml.safe_dump(broken))
    ended = run(path, "out")
    assert ended.returncode != 0
    assert f"{folder / 'absent'}: no such file or folder" in ended.stderr
    assert "Traceback" not in ended.stderr.split("ChildFailedError")[0].split("torch/distributed")[0]


@pytest.mark.slow
def test_a_folder_that_another_run_writes_is_reported_by_one_and_not_waited_for_by_the_other(folder):
    with alone(folder / "held", doing="holding"):
        ended = run(folder, "held")
    assert ended.returncode != 0
    assert f"error: {folder / 'held'}: another process is writing it" in ended.stderr
    assert "error: process 2 of 2" in ended.stderr
