"""The judging process: start, replacement and end; and which errors mean a full disk."""

import errno
import sqlite3
import threading

import pytest

from ich_mil.errors import DataError, ModelError
from ich_mil.files import whole_file
from ich_mil.serve import judging
from ich_mil.serve.disk import is_disk_full
from ich_mil.serve.judging import JudgeLostError, JudgeProcess, StoppedError
from tests.serve import judges
from tests.serve.fakes import alive, judging_processes, wait_for


@pytest.fixture
def process():
    """Function that makes a judging process with these limits."""
    made = []

    def one(factory=judges.plain_judge, *, seconds=60.0, stop=None):
        made.append(JudgeProcess(factory, seconds=seconds, memory_mb=250.0, stop=stop or threading.Event()))
        return made[-1]

    yield one
    for process in made:
        process.end()


@pytest.mark.parametrize(
    ("factory", "seconds", "reason"), [(judges.crash, 60.0, "exit code 3"), (judges.hang, 0.1, "0.1 s")]
)
def test_process_that_does_not_start(process, factory, seconds, reason):
    with pytest.raises(ModelError, match=reason):
        process(factory, seconds=seconds).start()
    assert not judging_processes()


def test_stop_during_start(process):
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):  # `hang` would end by its time limit: a `ModelError`
        process(judges.hang, stop=stop).start()
    assert not judging_processes()


def test_process_is_replaced_after_swelling_or_a_bug(process, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "_POLL_SECONDS", 5.0)  # its memory is checked after its answer only
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


def test_the_judge_is_given_what_was_sent(process, tmp_path):
    sent = [tmp_path / "a.dcm", tmp_path / "b.dcm"]
    assert process().judge(tmp_path / "grown", tmp_path, sent) == sent


def test_children_of_a_study_end_with_its_process(process, tmp_path):
    with pytest.raises(JudgeLostError, match="exit code 7"):
        process().judge(tmp_path / "child", tmp_path)
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not alive(child))


def _full_device():
    with open("/dev/full", "wb", buffering=0) as file:  # noqa: PTH123 - a device
        file.write(b"x")


def _full_database():
    with sqlite3.connect(":memory:") as database:
        database.execute("PRAGMA max_page_count = 1")
        database.execute("CREATE TABLE a (b)")


def _raise(error):
    raise error


@pytest.mark.parametrize(
    "action",
    [
        _full_device,
        _full_database,
        *(
            lambda error=error: _raise(error)
            for error in (
                OSError(errno.EDQUOT, "x"),
                RuntimeError(
                    'IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })'
                ),
                RuntimeError('I/O error: No space left on device (os error 28) at path "/x/.tmpEXGcTV"'),
                RuntimeError('I/O error: Disk quota exceeded (os error 122) at path "/x/.tmpEXGcTV"'),
            )
        ),
    ],
)
def test_full_disk(tmp_path, action):
    """Errors of the system, of SQLite, and of libraries that give the number in the message only."""
    with pytest.raises(Exception) as caught, whole_file(tmp_path / "file"):  # noqa: PT011 - of any kind
        action()
    outer = DataError("outer")
    outer.__cause__ = caught.value
    assert is_disk_full(caught.value)
    assert is_disk_full(outer)


@pytest.mark.parametrize(
    "error",
    [
        DataError("the modality is 'No space left on device'"),
        OSError(errno.EACCES, "x"),
        sqlite3.OperationalError("no such table"),
        KeyError("bug"),
    ],
)
def test_other_errors_are_not_a_full_disk(error):
    outer = DataError("outer")
    outer.__cause__ = error
    assert not is_disk_full(error)
    assert not is_disk_full(outer)
