"""A run killed while it prepares, and again while it trains, ends with the bits of an uninterrupted one."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ich_mil.model_files import read_tensors
from tests import phantoms
from tests.runs_for_tests import TINY, write_config

MAIN = """
import os, signal, sys
from ich_mil.cli import main

name, left = sys.argv[1], int(sys.argv[2])

def kill(event, args):
    global left
    if event == "os.rename" and str(args[1]).endswith(name):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
sys.exit(main(["train", *sys.argv[3:]]))
"""
"""`ich-mil train`, killed before it gives the n-th file of a name its place."""


@pytest.mark.slow
def test_run_killed_twice_gives_the_same_bits(tmp_path):
    phantoms.rsna(tmp_path / "a", studies=16)
    assert train(tmp_path, "whole") == 0
    assert train(tmp_path, "killed", kill=(".zip", 5)) == -signal.SIGKILL
    assert train(tmp_path, "killed", "--resume", kill=("log.csv", 2)) == -signal.SIGKILL
    assert train(tmp_path, "killed", "--resume") == 0
    expected, found = contents(tmp_path, "whole"), contents(tmp_path, "killed")
    assert expected.keys() == found.keys()
    assert [name for name in expected if expected[name] != found[name]] == []


def train(place: Path, name: str, *words: str, kill: tuple[str, int] = ("", 0)) -> int:
    """Exit code of a run in a process of its own: out `name`, prepared set `name_prepared`."""
    settings = TINY | {
        "out": str(place / name),
        "prepared": str(place / f"{name}_prepared"),
        "train": {"layout": "rsna", "root": str(place / "a")},
    }
    words = [*map(str, kill), *write_config(place / f"{name}.yaml", settings), *words]
    return subprocess.run([sys.executable, "-W", "ignore", "-c", MAIN, *words]).returncode


def contents(place: Path, name: str) -> dict[str, bytes]:
    """Files that determine predictions, the pixels and tables of the prepared set; tensors by their bytes."""
    run, prepared = place / name, place / f"{name}_prepared" / "train"
    paths = [run / "head.json", run / "splits.csv", *prepared.glob("scans/*"), prepared / "slices.csv"]
    found = {path.relative_to(place).as_posix().replace(name, "run"): path.read_bytes() for path in paths}
    for path in (*run.glob("*.safetensors"), *run.glob("features/*.safetensors")):
        for key, tensor in read_tensors(path, finite=False)[0].items():
            found[f"{path.name} {key}"] = tensor.numpy().tobytes()
    return found
