"""Fixtures that every test may use."""

from pathlib import Path

import pytest
import torch

import ich_mil.gp  # noqa: F401  before any test file imports gpytorch, whose warning it silences


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data beside the project; tests marked `realdata` skip where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real data is not at {folder}")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small matrices gain nothing from a second thread, and on a shared machine they wait for it."""
    torch.set_num_threads(1)
