"""What a run of the tests promises about GPUs: `pytest -m gpu` without one is no success."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_gpu_run_without_a_gpu_test_fails():
    ended = run("-m", "gpu", "tests/kernels/test_segments.py", "tests/training/test_step_elsewhere.py")
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert "no GPU test was executed" in ended.stdout
    assert "skipped" in ended.stdout


@pytest.mark.slow
def test_any_other_run_succeeds_without_one():
    ended = run("tests/kernels/test_segments.py")
    assert ended.returncode == pytest.ExitCode.OK, ended.stdout
