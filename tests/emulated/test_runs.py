"""Tests of kernels on the emulated GPU, tests marked `gpu` on the pretended GPU, and its own checks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.emulated.pretended_gpu import pretended

KERNELS = {"_apply", "_draw", "_fill", "_gram_tile", "_join_parts", "_kernel_tile", "_spread_tile", "_sweep"}


def run_pytest(folder, *words):
    """Output of a run of pytest in which kernels are compiled for the emulated GPU."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-p", "tests.emulated.driver", "-q", *words]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    root = Path(__file__).parents[2]
    run = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    return run.stdout


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_tests_of_kernels_pass_on_the_emulated_gpu(tmp_path):
    out = run_pytest(tmp_path, "-m", "not slow", "tests/kernels", "tests/emulated")
    launched = re.search(r"^emulated sm_90: (.*)$", out, re.M)
    assert launched
    assert set(re.findall(r"(\w+) \d+", launched[1])) == KERNELS


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_tests_marked_gpu_pass_on_the_pretended_gpu(tmp_path):
    others = ["--ignore", "tests/kernels", "--ignore", "tests/commands/test_torchrun.py"]
    out = run_pytest(tmp_path, "-p", "tests.emulated.pretended_gpu", "-rs", "-m", "gpu", *others)
    assert "CUDA" not in out, out[-5000:]  # a reason to skip a test


def test_the_pretended_gpu_tells_devices_apart_and_rounds_otherwise():
    here = torch.arange(1.0, 7.0).view(2, 3) / 7
    with pretended():
        there = here.to("cuda")
        assert there.is_cuda
        assert torch.zeros(2, device=there.device).device.type == "cuda"
        assert 0 < (there.exp().cpu() - here.exp()).abs().max() < 1e-6
        assert (there.exp() == there.exp()).all()
        assert there.mul(7).sum().item() == 21.0
        with pytest.raises(RuntimeError, match="two devices"):
            there + here
        with pytest.raises(RuntimeError, match=r"on cuda:0 by a generator of cpu"):
            torch.randn(2, device=there.device, generator=torch.Generator())
        with pytest.raises(RuntimeError):
            there.numpy()
        with torch.autocast("cuda", torch.bfloat16):
            assert torch.nn.functional.linear(there, there).dtype == torch.bfloat16
            with torch.autocast("cuda", torch.bfloat16, enabled=False):
                assert torch.nn.functional.linear(there, there).dtype == torch.float32
