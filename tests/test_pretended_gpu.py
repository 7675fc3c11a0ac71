"""What runs on a GPU alone, on a pretended one, which tells two devices apart and rounds otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.pretended_gpu import pretended


def test_the_pretended_gpu_is_one():
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


@pytest.mark.slow
def test_what_runs_on_a_gpu_alone_runs_there(tmp_path):
    pytest.importorskip("triton")
    plugins = ["-p", "tests.pretended_gpu", "-p", "tests.emulated.driver"]
    others = [
        "--ignore",
        "tests/kernels",
        "--ignore",
        "tests/commands/test_torchrun.py",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-q", "-rs", "-m", "gpu", *others],
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert "CUDA" not in run.stdout, run.stdout[-5000:]  # a reason to skip a test
