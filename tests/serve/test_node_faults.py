"""A node whose judge, archive, disk or spool fails: nothing is lost, and /health names the problem."""

import json
import os
import time
from pathlib import Path

import pytest
from pydicom import dcmread

from ich_mil.serve import node as node_module
from ich_mil.serve import worker
from ich_mil.serve.node import log_to_output
from ich_mil.serve.settings import ASSOCIATION_MB, NODE_MB
from tests.serve.fakes import Archive, look, metric, notes, send, unreadable, wait_for
from tests.serve.judges import FakeJudge, ct_slice, uid


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch):
    monkeypatch.setattr(worker, "PAUSE_SECONDS", 0.1)


def study(number, *, slices=1, **changes):
    return [ct_slice(uid(number), index, **changes) for index in range(slices)]


def problem(node, text):
    """Whether /health answers 503 with this text."""
    status, page = look(node.status.port, "health")
    return status == 503 and text in page


def is_well(node):
    return look(node.status.port, "health")[0] == 200


def test_lost_process_is_tried_again(start, archive, tmp_path):
    """Attempts are counted over all workers."""
    calls = tmp_path / "calls"
    node = start(FakeJudge(calls=calls), local=False, attempts=2, workers=2)
    for number, wish in enumerate(["crash", "once", "", "crash"]):
        assert send(node.listener.port, study(number, StudyDescription=wish)) == [0]
    wait_for(lambda: len(archive.received) == 2 and len(notes(tmp_path / "spool" / "failed")) == 2)
    failed = {note["study_uid"]: note["reason"] for note in notes(tmp_path / "spool" / "failed")}
    assert failed.keys() == {uid(0), uid(3)}
    assert all("exit code 7" in reason for reason in failed.values())
    tried = [line.split()[0] for line in calls.read_text().splitlines()]
    assert [tried.count(uid(number)) for number in range(4)] == [2, 2, 1, 2]
    assert metric(node.status.port, "studies_tried_again_total") == 5


@pytest.mark.slow
def test_judge_that_hangs_or_swells_costs_one_study(start, archive, tmp_path):
    node = start(local=False, attempts=1, study_seconds=20.0, memory_mb=250.0 + NODE_MB + 8 * ASSOCIATION_MB)
    for number, wish in enumerate(["hang", "hungry", "bug"]):
        assert send(node.listener.port, study(number, StudyDescription=wish)) == [0]
    assert send(node.listener.port, study(9)) == [0]
    failed = tmp_path / "spool" / "failed"
    wait_for(lambda: len(archive.received) == 1 and len(notes(failed)) == 3, seconds=180)
    reasons = {note["study_uid"]: note["reason"] for note in notes(failed)}
    assert "longer than 20 s" in reasons[uid(0)]
    assert "more than 250 MB" in reasons[uid(1)]
    assert "KeyError" in reasons[uid(2)]
    wait_for(lambda: not list((tmp_path / "spool" / "work").iterdir()))


def test_failed_send_is_kept_and_tried_again(start, archive, tmp_path):
    archive.status = 0xA700
    node = start()
    send(node.listener.port, study(1))
    wait_for(lambda: metric(node.status.port, "sends_failed_total") >= 2)
    assert problem(node, "0xA700")
    (note,) = notes(tmp_path / "spool" / "outbox")
    assert note["attempts"] >= 1
    archive.answers[dcmread(tmp_path / "spool" / note["files"][0]).SOPInstanceUID] = archive.status
    archive.status = 0x0000
    send(node.listener.port, study(2))
    wait_for(lambda: metric(node.status.port, "results_sent_total") == 1)  # of the other study
    assert problem(node, "0xA700")
    port = archive.port
    archive.stop()
    wait_for(lambda: problem(node, "cannot be reached"))
    again = Archive(port)
    wait_for(lambda: len(again.received) == 1)
    wait_for(lambda: not notes(tmp_path / "spool" / "outbox"))
    assert is_well(node)
    again.stop()


def test_studies_wait_while_the_model_cannot_be_loaded(start, archive):
    node = start(local=False)
    process = node._processes[0]
    good, process._factory = process._factory, FakeJudge(usable=False)
    process._process.kill()
    send(node.listener.port, study(1))
    wait_for(lambda: problem(node, "no finished run"))
    assert metric(node.status.port, "studies_failed_total") == 0
    process._factory = good
    wait_for(lambda: len(archive.received) == 1)
    wait_for(lambda: is_well(node))


def test_full_disk_during_judging_is_no_fault_of_the_study(start, archive, tmp_path):
    node = start(local=False, attempts=1)
    assert send(node.listener.port, study(1, StudyDescription="full")) == [0]
    wait_for(lambda: problem(node, "the disk is full"))
    assert metric(node.status.port, "studies_tried_again_total") == 0
    assert not notes(tmp_path / "spool" / "failed")
    (tmp_path / "spool" / "room").touch()
    wait_for(lambda: len(archive.received) == 1)
    wait_for(lambda: is_well(node))
    assert metric(node.status.port, "studies_failed_total") == 0


def test_unreadable_study_is_judged_later(start, archive, tmp_path):
    node = start(silence_seconds=1.0)
    send(node.listener.port, study(1))
    (file,) = (tmp_path / "spool" / "studies").glob("*/study.json")
    with unreadable(file):
        wait_for(lambda: problem(node, "symbolic links"))
    wait_for(lambda: len(archive.received) == 1)
    wait_for(lambda: is_well(node))
    assert metric(node.status.port, "studies_failed_total") == 0


def test_log_on_a_full_disk_ends_no_work(start, archive, monkeypatch):
    archive.status = 0xA700
    node = start(local=False, attempts=1)
    web = node.status.port
    with Path("/dev/full").open("w") as log, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", log)
        with log_to_output():
            send(node.listener.port, study(1) + study(2, StudyDescription="bug"))
            wait_for(lambda: metric(web, "sends_failed_total") >= 1)
            wait_for(lambda: metric(web, "studies_failed_total") == 1)
            archive.status = 0
            assert send(node.listener.port, study(3)) == [0]  # the bug has ended the process: another starts
            wait_for(lambda: len(archive.received) == 2)
            wait_for(lambda: is_well(node))


def test_lost_results_are_made_again(start, archive, tmp_path):
    archive.status = 0xA700
    node = start(retry_seconds=1.0, longest_retry_seconds=1.0)
    send(node.listener.port, study(1))
    wait_for(lambda: metric(node.status.port, "sends_failed_total") >= 1)
    (result,) = (tmp_path / "spool" / "results").rglob("*.dcm")
    result.unlink()
    archive.status = 0
    wait_for(lambda: len(archive.received) == 1)
    wait_for(lambda: metric(node.status.port, "studies_judged_total") == 2)
    wait_for(lambda: metric(node.status.port, "deliveries_waiting") == 0)
    assert result.exists()


@pytest.mark.parametrize("free", [1 << 20, None, "read-only"])
def test_full_disk_or_unusable_spool_is_in_health_and_log(start, monkeypatch, caplog, free):
    """`/health` and `/metrics` answer, whatever `free_gb` is."""
    monkeypatch.setattr(node_module, "CLEAN_SECONDS", 0.05)
    node = start(free_gb=0.0)
    moved = node.spool.root.with_name("moved")
    if free is None:
        node.spool.root.rename(moved)
    elif free == "read-only":  # to root, who runs tests, nothing is
        monkeypatch.setattr("os.access", lambda path, _: False)
    else:
        monkeypatch.setattr(node.spool, "free_bytes", lambda: free)
    reason = "its disk is full" if free == 1 << 20 else "gone or read-only"
    wait_for(lambda: problem(node, reason))
    assert problem(node, str(node.spool.root))
    assert look(node.status.port, "metrics")[0] == 200
    assert send(node.listener.port, study(1)) in ([], [-1])
    wait_for(lambda: str(node.spool.root) in caplog.text)
    if free is None:
        moved.rename(node.spool.root)
        wait_for(lambda: is_well(node))


@pytest.mark.filterwarnings("ignore:Exception in thread cleaner")  # its end is what is tested
def test_spool_that_cannot_be_cleaned_is_a_problem_until_it_can(start, monkeypatch):
    monkeypatch.setattr(node_module, "CLEAN_SECONDS", 0.05)
    node = start()
    clean = node.spool.clean

    def fail(error):
        def failing(**_):
            raise error

        monkeypatch.setattr(node.spool, "clean", failing)

    for error in (IsADirectoryError(21, "Is a directory"), KeyError("bug")):
        fail(error)
        wait_for(lambda error=error: problem(node, f"the spool cannot be cleaned: {type(error).__name__}"))
    monkeypatch.setattr(node.spool, "clean", clean)
    wait_for(lambda: is_well(node))
    young, old = (node.spool.incoming / f"{seconds}.dcm" for seconds in (60, 600))
    for file in (young, old):
        file.touch()
        os.utime(file, (time.time() - int(file.stem),) * 2)
    wait_for(lambda: not old.exists())
    assert young.exists()  # its connection may still be open
    fail(SystemExit())  # ends a thread without a message
    wait_for(lambda: problem(node, "the cleaner thread does not run"))
    assert json.loads(look(node.status.port, "health")[1])["status"] == "failing"
