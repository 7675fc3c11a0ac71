"""Fixtures of the tests of kernels."""

import pytest
import torch


@pytest.fixture
def nan_memory():
    """What `torch.empty` gives is filled with NaN."""
    torch.use_deterministic_algorithms(True)
    assert bool(torch.empty(3).isnan().all())
    yield
    torch.use_deterministic_algorithms(False)
