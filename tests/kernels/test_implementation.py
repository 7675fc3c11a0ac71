"""Which version of an op runs: the fused one on a GPU, the definition elsewhere, or the one asked for."""

import pytest
import torch

from ich_mil.kernels.implementation import by_triton


@pytest.mark.parametrize(
    ("impl", "device", "fused"),
    [
        ("auto", "cpu", False),
        ("auto", "cuda:1", True),
        ("torch", "cuda", False),
        ("triton", "cpu", True),
    ],
)
def test_the_version_that_runs(impl, device, fused):
    assert by_triton(impl, torch.device(device)) is fused


def test_another_version_is_refused():
    with pytest.raises(ValueError, match="impl must be one of auto, torch, triton, got 'cuda'"):
        by_triton("cuda", torch.device("cuda"))
