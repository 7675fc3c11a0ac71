"""What tests of the node share."""

import pytest

from tests.serve.fakes import Archive


@pytest.fixture
def archive():
    """An archive on a free port of the loopback."""
    made = Archive()
    yield made
    made.stop()
