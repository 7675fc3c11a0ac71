"""The process that judges: how it starts, when it is replaced, how it ends."""

import threading
import time

import pytest

from ich_mil.errors import ModelError
from ich_mil.serve import judging
from ich_mil.serve.judging import JudgeLostError, JudgeProcess, StoppedError
from tests.serve import plain_judges
from tests.serve.fakes import alive, judging_processes, wait_for


@pytest.fixture
def process():
    """Makes a judging process of these limits; all of them are ended."""
    made = []

    def one(factory=plain_judges.good, *, seconds=20.0, memory_mb=150.0, stop=None):
        made.append(
            JudgeProcess(factory, seconds=seconds, memory_mb=memory_mb, stop=stop or threading.Event())
        )
        return made[-1]

    yield one
    for process in made:
        process.end()


@pytest.mark.parametrize(
    ("factory", "seconds", "reason"),
    [
        (plain_judges.crash, 20.0, "ended with exit code 3"),
        (plain_judges.hang, 0.1, "took longer than 0.1 s"),
    ],
)
def test_a_model_that_does_not_load_is_told_and_its_process_ended(process, factory, seconds, reason):
    with pytest.raises(ModelError, match=f"does not start: the judging process {reason}"):
        process(factory, seconds=seconds).start()
    assert not judging_processes()


def test_a_stop_does_not_wait_for_a_model_that_loads(process):
    stop = threading.Event()
    stop.set()
    began = time.monotonic()
    with pytest.raises(StoppedError):
        process(plain_judges.hang, seconds=20.0, stop=stop).start()
    assert time.monotonic() - began < 10
    assert not judging_processes()


def test_one_process_judges_until_it_swells_or_has_a_bug(process, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "_POLL_SECONDS", 5.0)  # its memory is looked at after its answer only
    one = process()
    pids = []
    for wish in ("a", "b", "swell", "bug", "c", "d"):
        if wish == "bug":
            with pytest.raises(JudgeLostError, match="KeyError"):
                one.judge(tmp_path / wish, tmp_path)
        else:
            pids += [path.name for path in one.judge(tmp_path / wish, tmp_path)]
    first, second, third, fourth, fifth = pids
    assert first == second == third != fourth == fifth
    assert one.starts == 3


def test_what_a_study_started_ends_with_its_process(process, tmp_path):
    with pytest.raises(JudgeLostError, match="exit code 7"):
        process().judge(tmp_path / "child", tmp_path)
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not alive(child))
