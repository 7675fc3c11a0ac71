"""The kernels' own tests, compiled for a GPU that is emulated."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = {"_apply", "_draw", "_fill", "_gram_tile", "_join_parts", "_kernel_tile", "_spread_tile", "_sweep"}


@pytest.mark.slow
def test_they_pass_as_they_do_interpreted(tmp_path):
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-p", "tests.emulated.driver", "-q", "-m", "not slow"]
    run = subprocess.run(
        [*command, "tests/kernels", "tests/emulated"],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    launched = re.search(r"^emulated sm_90: (.*)$", run.stdout, re.M)
    assert launched
    assert set(re.findall(r"(\w+) \d+", launched[1])) == KERNELS
