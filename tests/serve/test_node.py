"""A whole node in this process, with a fake judge, spoken to over the loopback."""

import json
import os
import signal
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from pydicom import dcmread
from pydicom.uid import CTImageStorage, SecondaryCaptureImageStorage
from pynetdicom import AE
from pynetdicom.sop_class import Verification

from ich_mil.dicom.files import codec
from ich_mil.dicom.files.elements import NATIVE
from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.serve import listener, worker
from ich_mil.serve import node as node_module
from ich_mil.serve.node import Node, serve
from ich_mil.serve.settings import ArchiveSettings, ServeSettings
from tests.serve import plain_judges
from tests.serve.fakes import (
    Archive,
    connect,
    free_port,
    judging_processes,
    look,
    metric,
    notes,
    send,
    unreadable,
    wait_for,
)
from tests.serve.judges import FakeJudge, capture, ct_slice, uid

QUICK = FakeJudge()


@pytest.fixture
def settings(tmp_path, archive):
    """Makes settings that are quick."""

    def of(**changes):
        values = {
            "model": tmp_path,
            "spool": tmp_path / "spool",
            "archive": ArchiveSettings("ARCHIVE", "127.0.0.1", archive.port),
            "senders": ["SCANNER", "OTHER"],
            "ae_title": "NODE",
            "port": 0,
            "http_port": 0,
            "silence_seconds": 0.4,
            "retry_seconds": 0.2,
            "longest_retry_seconds": 0.4,
            "free_gb": 0.0,
        }
        return ServeSettings(**(values | changes))

    return of


@pytest.fixture
def make(settings):
    """Makes a node of these settings; all of them are stopped at the end."""
    made = []

    def one(judge=QUICK, **changes):
        made.append(Node(settings(**changes), judge, stop=threading.Event()))
        return made[-1]

    yield one
    for node in made:
        node.stop()


@pytest.fixture
def start(make):
    """Starts a node of these settings; all of them are stopped at the end."""

    def one(judge=QUICK, **changes):
        node = make(judge, **changes)
        node.start()
        return node

    return one


def study(number, *, slices=3, **changes):
    return [ct_slice(uid(number), index, **changes) for index in range(slices)]


def echo(port, *, calling="SCANNER", called="NODE"):
    ae = AE(ae_title=calling)
    ae.add_requested_context(Verification)
    association = ae.associate("127.0.0.1", port, ae_title=called)
    if not association.is_established:
        return association.acceptor.primitive.result, association.acceptor.primitive.diagnostic
    status = association.send_c_echo().Status
    association.release()
    return status


def test_studies_in_results_out(start, archive, tmp_path, capfd):
    calls = tmp_path / "calls"
    node = start(FakeJudge(calls=calls))
    port, web = node.listener.port, node.status.port
    assert echo(port) == 0
    assert json.loads(look(web, "health")[1])["status"] == "ok"

    one, two = study(1), study(2, slices=4)
    mixed = [
        image for pair in zip(one, two, strict=False) for image in pair
    ]  # interleaved, on two associations
    both = [
        threading.Thread(target=send, args=(port, part), kwargs={"calling": c})
        for part, c in ((mixed[:3], "SCANNER"), (mixed[3:] + two[3:], "OTHER"))
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert send(port, one) == [0, 0, 0]  # all of it twice
    wait_for(lambda: len(archive.received) == 2)
    assert sorted(line.split()[:2] for line in calls.read_text().splitlines()) == sorted(
        [[uid(1), "3"], [uid(2), "4"]]
    )
    assert metric(web, "objects_received_total") == 7
    assert metric(web, "objects_repeated_total") == 3
    wait_for(lambda: metric(web, "deliveries_waiting") == 0)

    assert send(port, [ct_slice(uid(1), 9)]) == [0]  # more of a study that was judged
    wait_for(lambda: len(archive.received) == 3)
    assert len(set(archive.received)) == 3
    assert archive.callers == {"NODE"}
    assert calls.read_text().splitlines()[-1].split()[:2] == [uid(1), "4"]
    for name in ("studies_judged_total", "results_sent_total"):  # counted a moment after it was sent
        wait_for(lambda name=name: metric(web, name) == 3)
    assert metric(web, "judge_starts") == 1
    assert look(web, "health")[0] == 200
    assert look(web, "../../etc/passwd")[0] == 404
    text = look(web, "metrics")[1]
    assert all(
        line.startswith(("# HELP ich_mil_", "# TYPE ich_mil_", "ich_mil_")) for line in text.splitlines()
    )
    node.stop()
    assert "Secret" not in capfd.readouterr().out
    assert {path.name for path in (tmp_path / "spool").iterdir()} == {
        ".lock",
        "failed",
        "outbox",
        "results",
        "sent",
        "studies",
    }


def test_strangers_are_rejected(start):
    node = start()
    port = node.listener.port
    assert echo(port, calling="STRANGER") == (1, 3)  # calling AE title not recognised
    assert echo(port, called="WRONG") == (1, 7)  # called AE title not recognised
    assert send(port, study(1), calling="STRANGER") == []
    wait_for(lambda: metric(node.status.port, "associations_rejected_total") == 3)
    assert metric(node.status.port, "objects_received_total") == 0
    assert node.status._server.server_address[0] == "127.0.0.1"  # heard on this machine alone


def test_connections_are_limited(start):
    port = start(associations=2).listener.port
    ae = AE(ae_title="SCANNER")
    ae.add_requested_context(Verification)
    held = [ae.associate("127.0.0.1", port, ae_title="NODE") for _ in range(2)]
    assert echo(port) == (2, 2)  # transient: local limit exceeded
    for association in held:
        association.release()
    wait_for(lambda: echo(port) == 0)


def test_one_with_no_ct_fails_and_the_next_is_judged(start, archive, tmp_path):
    node = start()
    images = study(1, Modality="OT", SOPClassUID=SecondaryCaptureImageStorage)
    for image in images:
        image.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    assert send(node.listener.port, images + study(2)) == [0] * 6
    wait_for(lambda: len(archive.received) == 1 and notes(tmp_path / "spool" / "failed"))
    (note,) = notes(tmp_path / "spool" / "failed")
    assert (note["study_uid"], note["reason"]) == (uid(1), "none of its files is a CT slice")
    assert metric(node.status.port, "studies_failed_total") == 1
    assert metric(node.status.port, "studies_failed") == 1
    assert look(node.status.port, "health")[0] == 200


def test_a_study_of_which_nothing_was_made_fails(start, archive, tmp_path):
    node = start()
    for number, wish in enumerate(["idle", "boast", ""]):
        assert send(node.listener.port, study(number, slices=1, StudyDescription=wish)) == [0]
    wait_for(lambda: len(archive.received) == 1 and len(notes(tmp_path / "spool" / "failed")) == 2)
    assert {note["study_uid"]: note["reason"] for note in notes(tmp_path / "spool" / "failed")} == {
        uid(0): "the judge made no result",
        uid(1): "the judge has not made boasted.dcm, which it names",
    }
    assert look(node.status.port, "health")[0] == 200


def test_a_judge_that_crashes_is_tried_again(start, archive, tmp_path):
    calls = tmp_path / "calls"
    node = start(FakeJudge(calls=calls), attempts=2)
    for number, wish in enumerate(["crash", "once", ""]):
        assert send(node.listener.port, study(number, slices=1, StudyDescription=wish)) == [0]
    wait_for(lambda: len(archive.received) == 2 and notes(tmp_path / "spool" / "failed"), seconds=60)
    (note,) = notes(tmp_path / "spool" / "failed")
    assert note["study_uid"] == uid(0)
    assert note["reason"] == "the judging process ended with exit code 7; tried 2 times"
    tried = [line.split()[0] for line in calls.read_text().splitlines()]
    assert [tried.count(uid(number)) for number in range(3)] == [2, 2, 1]
    assert metric(node.status.port, "studies_tried_again_total") == 3
    assert metric(node.status.port, "judge_starts") == 4


def test_tries_are_counted_over_all_workers(start, tmp_path):
    calls, numbers = tmp_path / "calls", range(6)
    node = start(FakeJudge(calls=calls), attempts=2, workers=3)
    for number in numbers:
        assert send(node.listener.port, study(number, slices=1, StudyDescription="crash")) == [0]
    wait_for(lambda: len(notes(tmp_path / "spool" / "failed")) == len(numbers), seconds=60)
    tried = [line.split()[0] for line in calls.read_text().splitlines()]
    assert [tried.count(uid(number)) for number in numbers] == [2] * len(numbers)


def test_a_judge_that_hangs_or_swells_costs_one_study(start, archive, tmp_path):
    node = start(attempts=1, study_seconds=6.0, memory_mb=250.0)
    for number, wish in enumerate(["hang", "hungry", "bug"]):
        assert send(node.listener.port, study(number, slices=1, StudyDescription=wish)) == [0]
    assert send(node.listener.port, study(9)) == [0] * 3
    failed = tmp_path / "spool" / "failed"
    wait_for(lambda: len(archive.received) == 1 and len(notes(failed)) == 3, seconds=60)
    assert {note["study_uid"]: note["reason"] for note in notes(failed)} == {
        uid(0): "the judging process took longer than 6 s; tried 1 times",
        uid(1): "the judging process took more than 250 MB; tried 1 times",
        uid(2): "KeyError: 'bug'; tried 1 times",
    }
    wait_for(lambda: not list((tmp_path / "spool" / "work").iterdir()))


def test_a_send_that_fails_is_kept_and_tried_again(start, archive, tmp_path):
    archive.status = 0xA700
    node = start()
    send(node.listener.port, study(1))
    web = node.status.port
    wait_for(lambda: metric(web, "sends_failed_total") >= 2)
    status, text = look(web, "health")
    assert status == 503
    assert "0xA700" in json.loads(text)["problems"][0]
    (note,) = notes(tmp_path / "spool" / "outbox")
    assert note["attempts"] >= 1
    archive.answers[dcmread(tmp_path / "spool" / note["files"][0]).SOPInstanceUID] = archive.status
    archive.status = 0x0000
    send(node.listener.port, study(2))
    wait_for(lambda: metric(web, "results_sent_total") == 1)  # of another study: the first one still fails
    assert "0xA700" in look(web, "health")[1]
    archive.status = 0xC000
    send(node.listener.port, study(3))
    wait_for(lambda: "0xC000" in look(web, "health")[1])
    assert "0xA700" in look(web, "health")[1]
    port = archive.port
    archive.stop()  # nobody there at all
    wait_for(lambda: "cannot be reached" in look(web, "health")[1])
    again = Archive(port)
    wait_for(lambda: len(again.received) == 2)
    wait_for(lambda: not notes(tmp_path / "spool" / "outbox"))
    assert look(web, "health")[0] == 200
    again.stop()


def test_a_result_that_comes_back_is_not_judged(start, archive, tmp_path):
    node = start()
    send(node.listener.port, study(1))
    wait_for(lambda: len(archive.received) == 1 and metric(node.status.port, "deliveries_waiting") == 0)
    (result,) = (tmp_path / "spool" / "results").rglob("*.dcm")
    assert send(node.listener.port, [result]) == [0]
    assert metric(node.status.port, "objects_repeated_total") == 1
    assert metric(node.status.port, "studies_queued") == 0


def test_without_room_the_sender_is_told(start):
    node = start(spool_gb=1e-6)
    assert send(node.listener.port, study(1)) == [0, 0, 0xA700]  # 1 KB is full with two
    status, text = look(node.status.port, "health")
    assert status == 503
    assert "full" in text
    assert metric(node.status.port, "objects_refused_total") == 1
    wait_for(lambda: not list(node.spool.incoming.iterdir()))


def test_without_a_study_uid_the_sender_is_told(start, recwarn):
    node = start()
    assert send(node.listener.port, [ct_slice(uid(1), 0, StudyInstanceUID=""), *study(2)]) == [
        0xC000,
        0,
        0,
        0,
    ]
    assert metric(node.status.port, "objects_refused_total") == 1
    recwarn.clear()  # pydicom remarks on it


def test_what_is_larger_than_allowed_is_cut_off(start):
    node = start(instance_mb=1.0)
    large = ct_slice(uid(1), 0, PixelData=bytes(1_100_000))
    assert send(node.listener.port, [large]) == [-1]
    assert send(node.listener.port, study(1)) == [0, 0, 0]
    assert metric(node.status.port, "objects_received_total") == 3
    node.spool.clean(stale=0.0)
    assert not list(node.spool.incoming.iterdir())


def test_a_message_that_claims_gigabytes_is_cut_off(start):
    node = start()
    with socket.create_connection(("127.0.0.1", node.listener.port), timeout=10) as wire:
        wire.sendall(struct.pack(">BBL", 1, 0, 4_000_000_000) + bytes(1000))
        assert wire.recv(100) == b""  # closed at once
    assert echo(node.listener.port) == 0


def test_bytes_that_are_no_dicom_do_no_harm(start):
    node = start()
    for content in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"\xff" * 1000, b"\x01\x00\x00\x00\x00\x04abcd"):
        with socket.create_connection(("127.0.0.1", node.listener.port), timeout=10) as wire:
            wire.sendall(content)
    assert echo(node.listener.port) == 0


def test_all_syntaxes_of_the_reader_are_taken():
    assert set(listener.SYNTAXES) == NATIVE | set(codec.PLUGINS)
    assert len(set(listener.SYNTAXES)) == len(listener.SYNTAXES)


def test_a_node_says_that_it_is_starting_until_its_model_is_loaded(make, monkeypatch):
    may_load = threading.Event()
    load = node_module.JudgeProcess.start
    monkeypatch.setattr(node_module.JudgeProcess, "start", lambda self: may_load.wait(60) and load(self))
    node = make(http_port=free_port())
    starting = threading.Thread(target=node.start)
    starting.start()
    try:
        wait_for(lambda: node.status._server is not None)
        status, text = look(node.status.port, "health")
        assert (status, json.loads(text)["status"], json.loads(text)["problems"]) == (503, "starting", [])
    finally:
        may_load.set()
        starting.join(60)
    status, text = look(node.status.port, "health")
    assert (status, json.loads(text)["status"]) == (200, "ok")


def test_without_a_model_nothing_is_heard(start):
    port = free_port()
    with pytest.raises(ModelError, match="no finished run"):
        start(FakeJudge(usable=False), port=port)
    assert send(port, study(1)) == []


@pytest.mark.parametrize("refused", ["model", "http_port", "port"])
def test_a_node_that_is_refused_leaves_no_spool(settings, tmp_path, refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {} if refused == "model" else {refused: taken.getsockname()[1]}
        chosen = settings(spool=tmp_path / "data" / "spool", **ports)
        with pytest.raises(ModelError if ports == {} else ConfigError):
            serve(chosen, FakeJudge(usable=refused != "model"))
    assert not (tmp_path / "data").exists()


def test_a_node_that_is_refused_leaves_the_spool_that_was_there(settings, start, tmp_path):
    node = start()
    send(node.listener.port, study(1))
    node.stop()
    before = {path: path.is_file() and path.read_bytes() for path in (tmp_path / "spool").rglob("*")}
    with pytest.raises(ModelError):
        serve(settings(), FakeJudge(usable=False))
    assert {path: path.is_file() and path.read_bytes() for path in (tmp_path / "spool").rglob("*")} == before


def test_without_a_model_later_studies_wait(start, archive, monkeypatch):
    monkeypatch.setattr(worker, "PAUSE_SECONDS", 0.1)
    node = start()
    process = node._processes[0]
    good, process._factory = process._factory, FakeJudge(usable=False)
    process._process.kill()
    send(node.listener.port, study(1))
    wait_for(lambda: "no finished run" in look(node.status.port, "health")[1])
    assert metric(node.status.port, "studies_failed_total") == 0
    process._factory = good
    wait_for(lambda: len(archive.received) == 1)
    wait_for(lambda: look(node.status.port, "health")[0] == 200)


def test_a_full_disk_while_a_study_is_judged_is_no_fault_of_the_study(start, archive, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "PAUSE_SECONDS", 0.1)
    node = start(attempts=1)
    assert send(node.listener.port, study(1, slices=1, StudyDescription="full")) == [0]
    wait_for(lambda: "the disk is full while a study is judged" in look(node.status.port, "health")[1])
    assert look(node.status.port, "health")[0] == 503
    assert metric(node.status.port, "studies_tried_again_total") == 0
    assert not notes(tmp_path / "spool" / "failed")
    (tmp_path / "spool" / "room").touch()
    wait_for(lambda: len(archive.received) == 1)
    wait_for(lambda: look(node.status.port, "health")[0] == 200)
    assert metric(node.status.port, "studies_failed_total") == 0


def test_a_study_that_cannot_be_read_for_a_while_is_judged_later(start, archive, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "PAUSE_SECONDS", 0.1)
    node = start(silence_seconds=1.0)
    send(node.listener.port, study(1))
    (said,) = (tmp_path / "spool" / "studies").glob("*/study.json")
    with unreadable(said):
        wait_for(lambda: "Too many levels of symbolic links" in look(node.status.port, "health")[1])
        assert look(node.status.port, "health")[0] == 503
    wait_for(lambda: len(archive.received) == 1)
    wait_for(lambda: look(node.status.port, "health")[0] == 200)
    assert metric(node.status.port, "studies_failed_total") == 0


def test_a_log_on_a_full_disk_ends_no_work(start, archive, monkeypatch):
    archive.status = 0xA700
    node = start(attempts=1)
    web = node.status.port
    with Path("/dev/full").open("w") as log, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", log)
        send(node.listener.port, study(1) + study(2, StudyDescription="bug"))
        wait_for(lambda: metric(web, "sends_failed_total") >= 1 and metric(web, "studies_failed_total") == 1)
        archive.status = 0
        assert send(node.listener.port, study(3)) == [0] * 3  # the bug has cost the judge, another one starts
        wait_for(lambda: len(archive.received) == 2)
        wait_for(lambda: look(web, "health")[0] == 200)


def test_results_that_are_gone_before_they_were_sent_are_made_again(start, archive, tmp_path):
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


@pytest.mark.filterwarnings("ignore:Exception in thread cleaner")  # that it ends is what is tested
def test_a_spool_that_cannot_be_cleaned_is_a_problem_until_it_can(start, monkeypatch):
    monkeypatch.setattr(node_module, "CLEAN_SECONDS", 0.05)
    node = start()
    web = node.status.port
    cleans = iter([IsADirectoryError(21, "Is a directory"), KeyError("bug")])
    clean, now = node.spool.clean, threading.Event()

    def failing(**values):
        if now.is_set():
            clean(**values)
        else:
            raise next(cleans, RuntimeError("more"))

    monkeypatch.setattr(node.spool, "clean", failing)
    wait_for(lambda: "the spool cannot be cleaned: RuntimeError: more" in look(web, "health")[1])
    assert look(web, "health")[0] == 503
    now.set()
    wait_for(lambda: look(web, "health")[0] == 200)
    young, old = (node.spool.incoming / f"{seconds}.dcm" for seconds in (60, 600))
    for file in (young, old):
        file.touch()
        os.utime(file, (time.time() - int(file.stem),) * 2)
    wait_for(lambda: not old.exists())
    assert young.exists()  # its connection may be open yet

    def ending(**_):
        raise SystemExit  # ends a thread without a word

    monkeypatch.setattr(node.spool, "clean", ending)
    wait_for(lambda: "the cleaner thread does not run" in look(web, "health")[1])


def test_a_stop_gives_back_what_is_judged(start, archive, tmp_path):
    calls = tmp_path / "calls"
    node = start(FakeJudge(seconds=60, calls=calls))
    send(node.listener.port, study(1))
    wait_for(calls.exists)
    began = time.monotonic()
    node.stop()
    assert time.monotonic() - began < 5
    assert not archive.received
    with pytest.raises(OSError, match="refused"):
        look(node.status.port, "health")
    start(FakeJudge(calls=calls))
    wait_for(lambda: len(archive.received) == 1)


def test_settings_of_the_spool_reach_it(make, tmp_path):
    node = make(free_gb=1e9, keep_hours=1.0, retry_seconds=5.0, longest_retry_seconds=8.0)
    assert node.spool.is_full()
    for hours in (0.9, 1.1):
        result = capture(ct_slice(uid(1), 0), [], tmp_path / "spool" / "result.dcm")
        node.outbox.put(f"study-{hours}", uid(1), [result])
        assert node.outbox.postpone(node.outbox.due(), [result.name], "down") == 5.0
        (delivery,) = node.outbox.waiting()
        assert node.outbox.postpone(delivery, [result.name], "down") == 8.0
        node.outbox.took(delivery)
        os.utime(tmp_path / "spool" / "sent" / f"study-{hours}.json", (time.time() - hours * 3600,) * 2)
    node.spool.clean(stale=60.0)
    assert [name for name, _ in node.outbox.sent()] == ["study-0.9"]


def test_as_many_studies_are_judged_at_once_as_there_are_workers(start):
    node = start(FakeJudge(seconds=60), workers=2)
    web = node.status.port
    assert send(node.listener.port, study(1) + study(2) + study(3)) == [0] * 9
    wait_for(lambda: metric(web, "studies_judging") == 2)
    health = json.loads(look(web, "health")[1])
    assert (health["status"], health["studies_judging"], health["studies_queued"]) == ("ok", 2, 1)
    assert metric(web, "judge_starts") == 2
    counts = node.spool.counts()
    assert metric(web, "spool_bytes") == counts["bytes"] > 0
    assert metric(web, "spool_free_bytes") == pytest.approx(counts["free_bytes"], rel=0.1)
    assert metric(web, "resident_bytes") > 1e7


def test_a_signal_while_the_model_is_loaded_ends_it_and_leaves_handlers_as_they_were(settings):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    web, seen = free_port(), []

    def ask():
        try:
            wait_for(judging_processes)
            seen.append(look(web, "health")[0])
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    serve(settings(http_port=web), plain_judges.hang)
    asking.join()
    assert seen == [503]  # not ready, and says so
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert not judging_processes()


def test_a_stop_lets_callers_end(make):
    node = make()
    node.listener.start()
    association = connect(node.listener.port)
    stopping = threading.Thread(target=node.stop)
    stopping.start()
    wait_for(lambda: not connect(node.listener.port).is_established)
    assert association.send_c_store(study(1)[0]).Status == 0
    association.release()
    stopping.join()


def test_taken_ports_and_spools_are_named(make, start, tmp_path):
    node = start()
    with pytest.raises(DataError, match="another process is using it"):
        start()
    with pytest.raises(ConfigError, match="http_port"):
        start(spool=tmp_path / "two", http_port=node.status.port)
    third = make(spool=tmp_path / "three", port=node.listener.port)
    with pytest.raises(ConfigError, match="cannot listen on"):
        third.start()
    third.stop()
    assert len(judging_processes()) == 1  # the judging process of the first


def test_contexts_of_ct_are_there(start):
    node = start()
    ae = AE(ae_title="SCANNER")
    ae.add_requested_context(CTImageStorage, listener.SYNTAXES[-1])
    ae.add_requested_context(CTImageStorage, "1.2.840.10008.1.2.4.100")  # MPEG2, which nobody reads here
    association = ae.associate("127.0.0.1", node.listener.port, ae_title="NODE")
    assert [context.transfer_syntax[0] for context in association.accepted_contexts] == [
        listener.SYNTAXES[-1]
    ]
    association.release()
