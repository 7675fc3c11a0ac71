"""What tests of the node share."""

from socketserver import BaseServer

import pytest

from tests.serve.fakes import Archive


@pytest.fixture(autouse=True)
def _stops_at_once(monkeypatch):
    """A server looks twice a second whether it shall stop, and here twenty times."""
    serve = BaseServer.serve_forever
    monkeypatch.setattr(BaseServer, "serve_forever", lambda server: serve(server, poll_interval=0.05))


@pytest.fixture
def archive():
    """An archive on a free port of the loopback."""
    made = Archive()
    yield made
    made.stop()
