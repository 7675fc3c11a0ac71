"""A run killed at random times, while it prepares or trains, ends with the bits of an uninterrupted one."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ich_mil.model_files import read_tensors
from tests import phantoms
from tests.runs_for_tests import TINY, write_config

MAIN = "import sys; from ich_mil.cli import main; sys.exit(main(['train', *sys.argv[1:]]))"
KILLS = 2


@pytest.mark.slow
def test_run_killed_twice_gives_the_same_bits(tmp_path):
    phantoms.rsna(tmp_path / "a", studies=16)
    started = time.monotonic()
    assert start(tmp_path, "whole").wait() == 0
    whole = time.monotonic() - started
    generator, alive = random.Random(0), 0
    for _ in range(KILLS):
        process = start(tmp_path, "killed", *["--resume"] * ((tmp_path / "killed" / "run.json").exists()))
        time.sleep(generator.uniform(0.3, 0.8) * whole)
        alive += process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert alive > 0
    assert start(tmp_path, "killed", "--resume").wait() == 0
    expected, found = contents(tmp_path, "whole"), contents(tmp_path, "killed")
    assert expected.keys() == found.keys()
    assert [name for name in expected if expected[name] != found[name]] == []


def start(place: Path, name: str, *words: str) -> subprocess.Popen:
    """A run in a process group of its own: out `name`, prepared set `name_prepared`."""
    settings = TINY | {
        "out": str(place / name),
        "prepared": str(place / f"{name}_prepared"),
        "train": {"layout": "rsna", "root": str(place / "a")},
    }
    words = [*write_config(place / f"{name}.yaml", settings), *words]
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", MAIN, *words], start_new_session=True)


def contents(place: Path, name: str) -> dict[str, bytes]:
    """Files that determine predictions, the pixels and tables of the prepared set; tensors by their bytes."""
    run, prepared = place / name, place / f"{name}_prepared" / "train"
    paths = [run / "head.json", run / "splits.csv", *prepared.glob("scans/*"), prepared / "slices.csv"]
    found = {path.relative_to(place).as_posix().replace(name, "run"): path.read_bytes() for path in paths}
    for path in (*run.glob("*.safetensors"), *run.glob("features/*.safetensors")):
        for key, tensor in read_tensors(path, finite=False)[0].items():
            found[f"{path.name} {key}"] = tensor.numpy().tobytes()
    return found
