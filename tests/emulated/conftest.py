"""The emulator's own tests run by `make test-nightly`, and in runs of pytest on the emulator."""

import os
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and os.environ.get("TRITON_INTERPRET") == "1":
            item.add_marker(pytest.mark.slow)
