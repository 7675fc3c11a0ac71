"""Fixtures of the tests of the worker."""

import pytest

from ich_mil.serve import worker as worker_module
from ich_mil.serve.folder import FolderSource
from ich_mil.serve.orthanc import Orthanc
from ich_mil.serve.worker import Worker
from tests.serve.fakes import FakeOrthanc, fake_judge


@pytest.fixture
def calls(monkeypatch):
    """Judge in this process instead of in a child, without pauses; the list gets an entry for each call."""
    made = []

    def run(work, *, seconds):
        made.append(work)
        work()

    monkeypatch.setattr(worker_module, "run_in_child", run)
    monkeypatch.setattr(worker_module, "FIRST_PAUSE", 0.0)
    return made


@pytest.fixture
def orthanc():
    server = FakeOrthanc()
    yield server
    server.stop()


@pytest.fixture
def in_folder(tmp_path):
    """Function that makes a worker on the folder `in`, whose studies are complete at once."""
    (tmp_path / "in").mkdir()
    out = tmp_path / "out"
    return lambda silence=0.0: Worker(
        FolderSource(tmp_path / "in", out, silence), out, fake_judge, seconds=60
    )


@pytest.fixture
def on_orthanc(tmp_path, orthanc):
    """Function that makes a worker on the fake Orthanc."""
    out = tmp_path / "out"
    return lambda **options: Worker(Orthanc(orthanc.url, out, **options), out, fake_judge, seconds=60)
