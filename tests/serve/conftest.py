"""Fixtures of the tests of the node."""

import threading
from socketserver import BaseServer

import pytest

from ich_mil.serve import node as node_module
from ich_mil.serve.node import Node
from ich_mil.serve.outbox import Outbox
from ich_mil.serve.sender import Sender
from ich_mil.serve.status import Metrics
from tests.serve.fakes import Archive, open_spool, settings_of
from tests.serve.judges import FakeJudge, LocalProcess

QUICK = FakeJudge()


@pytest.fixture(autouse=True)
def _stops_at_once(monkeypatch):
    """Servers look twenty times a second whether they shall stop, instead of twice."""
    serve = BaseServer.serve_forever
    monkeypatch.setattr(BaseServer, "serve_forever", lambda server: serve(server, poll_interval=0.05))


@pytest.fixture
def archive():
    made = Archive()
    yield made
    made.stop()


@pytest.fixture
def outbox(tmp_path):
    return Outbox(settings_of(tmp_path, retry_seconds=0.1, longest_retry_seconds=0.1))


@pytest.fixture
def send(outbox):
    """Function that starts a sender to an archive; it is stopped at the end."""
    started = []

    def one(archive, stop=None):
        stop = stop or threading.Event()
        settings = settings_of(outbox.root, archive=archive)
        sender = Sender(outbox, settings, Metrics(), lost=outbox.drop, stop=stop)
        started.append((sender, stop))
        sender.start()
        return sender

    yield one
    for sender, stop in started:
        stop.set()
        sender.join()


@pytest.fixture
def make(tmp_path, archive, monkeypatch):
    """Function that makes a node with these settings; `local` judges in this process."""
    made = []

    def one(judge=QUICK, *, local=True, **changes):
        with monkeypatch.context() as patch:
            if local:
                patch.setattr(node_module, "JudgeProcess", LocalProcess)
            settings = settings_of(tmp_path, **{"archive": archive.port} | changes)
            made.append(Node(settings, judge, stop=threading.Event()))
        return made[-1]

    yield one
    for node in made:
        node.stop()


@pytest.fixture
def start(make):
    """Function that starts a node with these settings."""

    def one(judge=QUICK, **values):
        node = make(judge, **values)
        node.start()
        return node

    return one


@pytest.fixture
def spool(tmp_path):
    made = open_spool(tmp_path)
    yield made
    made.close()
