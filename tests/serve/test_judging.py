"""The child process that judges a study."""

import errno
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from ich_mil.errors import DataError, ModelError, ProcessError
from ich_mil.serve.judging import run_in_child
from tests.serve.fakes import ct_slice, fake_judge, uid, wait_for, write

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("wish", "error", "reason"),
    [
        ("crash", ProcessError, "exit code 7"),
        ("hang", ProcessError, "longer than 3 s"),
        ("bug", ProcessError, "KeyError: 'bug'"),
        ("refuse", DataError, "no usable slice"),
        ("model", ModelError, "no finished run"),
        ("config", ModelError, "no such phrase"),
        ("full", OSError, "No space left on device"),
        ("full device", OSError, "No space left on device"),
    ],
)
def test_errors_of_the_child_by_cause(tmp_path, wish, error, reason, capfd):
    write(ct_slice(uid(1), 0, StudyDescription=wish), tmp_path / "study" / "0.dcm")
    (tmp_path / "out").mkdir()
    before = {*multiprocessing.active_children()}  # of other tests
    work = partial(fake_judge, tmp_path / "study", tmp_path / "out", ())
    with pytest.raises(error, match=re.escape(reason)) as caught:
        run_in_child(work, seconds=3 if wish == "hang" else 60)
    if error is OSError:
        assert caught.value.errno == errno.ENOSPC
    assert {*multiprocessing.active_children()} <= before
    assert "Secret" not in capfd.readouterr().out


def test_child_writes_its_results(tmp_path):
    write(ct_slice(uid(1), 0), tmp_path / "study" / "0.dcm")
    (tmp_path / "out").mkdir()
    run_in_child(partial(fake_judge, tmp_path / "study", tmp_path / "out", ()), seconds=60)
    assert (tmp_path / "out" / "dicom" / "report-1.dcm").is_file()


def note_and_sleep(path):
    path.write_text(str(os.getpid()))
    time.sleep(1000)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_child_ends_with_a_killed_worker(tmp_path):
    code = (
        "import sys; from functools import partial; from pathlib import Path;"
        "from ich_mil.serve.judging import run_in_child; from tests.serve.test_judging import note_and_sleep;"
        "run_in_child(partial(note_and_sleep, Path(sys.argv[1])), seconds=900)"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, tmp_path / "pid"], cwd=ROOT)
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    child = int((tmp_path / "pid").read_text())
    assert is_alive(child)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    wait_for(lambda: not is_alive(child))
