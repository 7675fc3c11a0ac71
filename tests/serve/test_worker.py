"""States of a study, on a folder and a fake judge in this process."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from itertools import pairwise

import pytest
from filelock import FileLock
from pydicom import dcmread

from ich_mil.errors import DataError, ModelError, ProcessError
from ich_mil.serve import worker as worker_module
from ich_mil.serve.folder import FolderSource
from ich_mil.serve.worker import ATTEMPTS, LONGEST_PAUSE, Worker
from tests.serve.fakes import ct_slice, key, uid, write

STUDY = uid(1)


def add(tmp_path, *numbers, study=STUDY, **changes):
    for number in numbers:
        write(ct_slice(study, number, **changes), tmp_path / "in" / f"{study}-{number}.dcm")


def state(tmp_path, study=STUDY):
    return json.loads((tmp_path / "out" / key(study) / "state.json").read_text())


def folders(tmp_path, study=STUDY):
    return {path.name for path in (tmp_path / "out" / key(study)).iterdir() if path.is_dir()}


def results(tmp_path, study=STUDY):
    """SOP instance UIDs of all results of a study."""
    return [dcmread(path).SOPInstanceUID for path in (tmp_path / "out" / key(study)).rglob("*.dcm")]


def test_study_is_judged_once(tmp_path, in_folder, calls, caplog):
    caplog.set_level("INFO", "ich_mil")
    add(tmp_path, 0, 1)
    worker = in_folder()
    worker.poll()
    assert results(tmp_path) == [uid(*sorted([uid(STUDY, 0), uid(STUDY, 1)]))]
    about = state(tmp_path)
    assert (about["status"], about["reason"], len(about["contents"])) == ("done", "", 2)
    assert folders(tmp_path) == set(about["sent"])
    assert (worker.counts["studies_judged"], worker.counts["studies_failed"]) == (1, 0)
    assert worker.counts["last_success_seconds"] > 0
    assert caplog.messages == [f"{key(STUDY)}: judged"]
    worker.poll()
    in_folder().poll()  # a restart
    add(tmp_path, 0, 1)  # the same files again
    worker.poll()
    shutil.copy(tmp_path / "in" / f"{STUDY}-0.dcm", tmp_path / "in" / "again.dcm")
    worker.poll()
    (tmp_path / "in" / "again.dcm").unlink()
    (tmp_path / "in" / f"{STUDY}-1.dcm").unlink()  # the folder is being emptied
    in_folder().poll()
    assert len(calls) == 1
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700


def test_study_that_grows_is_judged_again(tmp_path, in_folder, calls):
    worker = in_folder()
    for number in range(3):
        add(tmp_path, number)
        worker.poll()
    first, second, third = (tmp_path / "out" / key(STUDY) / name for name in state(tmp_path)["sent"])
    sop = {path: dcmread(path / "dicom" / "report-1.dcm").SOPInstanceUID for path in (first, second, third)}
    assert len(set(sop.values())) == len(calls) == 3
    assert json.loads((first / "replaced.json").read_text()) == []
    assert json.loads((third / "replaced.json").read_text()) == [sop[first], sop[second]]


@pytest.mark.parametrize("wish", ["refuse", "idle"])
def test_study_without_a_result_is_recorded_and_waits_for_a_change(tmp_path, in_folder, calls, wish, caplog):
    add(tmp_path, 0, StudyDescription=wish)
    worker = in_folder()
    for _ in range(3):
        worker.poll()
    in_folder().poll()
    assert len(calls) == 1
    about = state(tmp_path)
    reason = {"refuse": "no usable slice", "idle": "the judge wrote no DICOM result"}[wish]
    assert (about["status"], about["reason"], about["sent"]) == ("failed", reason, [])
    assert caplog.messages == [f"{key(STUDY)}: failed, see its state.json"]
    assert worker.counts["studies_failed"] == 1
    add(tmp_path, 0)
    worker.poll()
    assert (state(tmp_path)["status"], state(tmp_path)["reason"]) == ("done", "")


@pytest.mark.parametrize(("n_lost", "status"), [(1, "done"), (ATTEMPTS, "failed")])
def test_lost_processes_are_replaced_a_few_times(tmp_path, in_folder, monkeypatch, n_lost, status):
    lost = iter(range(n_lost))

    def run(work, *, seconds):
        if next(lost, None) is not None:
            raise ProcessError("exit code 7")
        work()

    monkeypatch.setattr(worker_module, "run_in_child", run)
    add(tmp_path, 0)
    worker = in_folder()
    worker.poll()
    worker.poll()
    assert state(tmp_path)["status"] == status
    assert state(tmp_path)["reason"] == ("exit code 7" if status == "failed" else "")


def test_unusable_model_ends_the_worker(tmp_path, in_folder, calls):
    add(tmp_path, 0, StudyDescription="model")
    with pytest.raises(ModelError, match="no finished run"):
        in_folder().poll()
    assert not (tmp_path / "out" / key(STUDY) / "state.json").exists()


def test_full_disk_is_logged_once_and_nothing_is_lost(tmp_path, in_folder, calls, monkeypatch, caplog):
    caplog.set_level("INFO", "ich_mil")
    add(tmp_path, 0)
    worker = in_folder()
    with monkeypatch.context() as patch:
        usage = namedtuple("Usage", "free")
        patch.setattr(shutil, "disk_usage", lambda _: usage(1e6))
        for _ in range(3):
            worker.poll()
    with monkeypatch.context() as patch:
        patch.setattr(worker_module, "write_json", _full)  # after the study was judged
        worker.poll()
    assert caplog.messages == [
        f"{key(STUDY)}: No space left on device; to be tried again",
        f"{key(STUDY)}: judged",
    ]
    assert folders(tmp_path) == {path.name for path in (tmp_path / "out" / key(STUDY)).glob("*/")} - {".work"}
    worker.poll()
    assert state(tmp_path)["status"] == "done"
    assert len(calls) == 1


def _full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "Secret^Name.dcm")


def test_pauses_grow_to_a_bound(tmp_path, in_folder, calls, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(worker_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(worker_module, "FIRST_PAUSE", 2.0)
    monkeypatch.setattr(worker_module, "LEAST_FREE", float("inf"))
    add(tmp_path, 0)
    worker = in_folder()
    tried = []
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: tried.append(now[0]) or usage(path))
    for second in range(300):
        now[0] = float(second)
        worker.poll()
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses == [2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]


def test_study_of_another_worker_is_left_alone(tmp_path, in_folder, calls, caplog):
    home = tmp_path / "out" / key(STUDY)
    home.mkdir(parents=True)
    code = (
        "import sys, time; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire();"
        "print('locked', flush=True); time.sleep(1000)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, home / ".lock"], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "locked\n"
    add(tmp_path, 0)
    add(tmp_path, 0, study=uid(2))
    worker = in_folder()
    worker.poll()
    assert not (home / "state.json").exists()
    assert state(tmp_path, uid(2))["status"] == "done"
    other.kill()  # the operating system releases its lock
    other.wait()
    other.stdout.close()
    worker.poll()
    assert state(tmp_path)["status"] == "done"
    assert not caplog.messages


def test_work_of_a_killed_worker_is_removed_or_used(tmp_path, in_folder, calls, monkeypatch):
    add(tmp_path, 0)
    (tmp_path / "out" / key(STUDY) / ".work" / "study").mkdir(parents=True)
    (tmp_path / "out" / key(STUDY) / ".work" / "study" / "half.dcm").touch()
    with monkeypatch.context() as patch:
        patch.setattr(worker_module, "write_json", _interrupt)  # killed between result and record
        with pytest.raises(KeyboardInterrupt):
            in_folder().poll()
    in_folder().poll()
    assert len(calls) == 1
    assert folders(tmp_path) == set(state(tmp_path)["sent"])
    shutil.rmtree(tmp_path / "out" / key(STUDY) / state(tmp_path)["sent"][0])
    about = state(tmp_path) | {"status": "judged"}
    (tmp_path / "out" / key(STUDY) / "state.json").write_text(json.dumps(about))
    in_folder().poll()  # its results were deleted before they were delivered
    assert len(calls) == 2
    assert len(results(tmp_path)) == 1
    with FileLock(tmp_path / "out" / key(STUDY) / ".lock", timeout=0):
        pass


def _interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("content", ["", '{"status": "do', "[]", '{"state": 1}', '{"contents": null}'])
def test_study_with_a_damaged_state_is_repeated(tmp_path, in_folder, calls, caplog, content):
    for study in (STUDY, uid(2)):
        add(tmp_path, 0, study=study)
    in_folder().poll()
    shutil.rmtree(tmp_path / "out" / key(STUDY) / state(tmp_path)["sent"][0])
    (tmp_path / "out" / key(STUDY) / "state.json").write_text(content)
    worker = in_folder()
    worker.poll()
    worker.poll()
    assert state(tmp_path)["status"] == "done"
    assert len(calls) == 3
    assert [message for message in caplog.messages if "state.json" in message] == [
        f"{key(STUDY)}: its state.json is damaged; the study is repeated"
    ]


def test_reason_names_files_by_their_path_in_the_source(tmp_path, calls):
    def refuse(study, out, replaced):
        raise DataError(f"{study}: no head, as in {study}/a/IM1 and {out}/x")

    write(ct_slice(STUDY, 0), tmp_path / "in" / "a" / "IM1")
    out = tmp_path / "out"
    Worker(FolderSource(tmp_path / "in", out, 0), out, refuse, seconds=60).poll()
    assert state(tmp_path)["reason"] == "no head, as in a/IM1 and x"


def test_damaged_file_that_arrives_late_is_judged_with_its_study(tmp_path, in_folder, calls):
    add(tmp_path, 0)
    worker = in_folder()
    worker.poll()
    damaged = tmp_path / "in" / f"{STUDY}-1.dcm"
    damaged.touch()
    worker.poll()
    worker.poll()
    assert (len(calls), len(state(tmp_path)["contents"])) == (2, 2)
    damaged.unlink()  # the results without it are there
    worker.poll()
    in_folder().poll()
    assert (len(calls), len(state(tmp_path)["contents"]), state(tmp_path)["status"]) == (2, 1, "done")
