"""A node in this process with a fake judge: from the sender to the archive, and its stop."""

import json
import logging
import os
import signal
import socket
import struct
import threading
import time

import pytest
from pydicom.uid import SecondaryCaptureImageStorage
from pynetdicom import AE
from pynetdicom.sop_class import Verification

from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.serve import node as node_module
from ich_mil.serve.node import Node, log_to_output, serve
from ich_mil.serve.settings import ASSOCIATION_MB, NODE_MB
from tests.serve.fakes import (
    connect,
    free_port,
    judging_processes,
    look,
    metric,
    notes,
    send,
    settings_of,
    wait_for,
)
from tests.serve.judges import FakeJudge, capture, ct_slice, hang, uid


def study(number, *, slices=3, **changes):
    return [ct_slice(uid(number), index, **changes) for index in range(slices)]


def echo(port, *, calling="SCANNER", called="NODE"):
    """Status of a C-ECHO, or result and diagnostic of a rejection."""
    ae = AE(ae_title=calling)
    ae.add_requested_context(Verification)
    association = ae.associate("127.0.0.1", port, ae_title=called)
    if not association.is_established:
        return association.acceptor.primitive.result, association.acceptor.primitive.diagnostic
    status = association.send_c_echo().Status
    association.release()
    return status


def test_studies_are_judged_and_their_results_sent(start, archive, tmp_path, caplog):
    caplog.set_level("INFO", "ich_mil")
    calls = tmp_path / "calls"
    node = start(FakeJudge(calls=calls), local=False)
    port, web = node.listener.port, node.status.port
    assert echo(port) == 0
    assert look(web, "health")[0] == 200

    one, two = study(1), study(2, slices=4)
    mixed = [image for pair in zip(one, two, strict=False) for image in pair]  # on two associations
    both = [
        threading.Thread(target=send, args=(port, part), kwargs={"calling": c})
        for part, c in ((mixed[:3], "SCANNER"), (mixed[3:] + two[3:], "OTHER"))
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert send(port, one) == [0, 0, 0]  # the whole study again
    wait_for(lambda: len(archive.received) == 2)
    assert sorted(line.split()[:2] for line in calls.read_text().splitlines()) == sorted(
        [[uid(1), "3"], [uid(2), "4"]]
    )
    assert metric(web, "objects_received_total") == 7
    assert metric(web, "objects_repeated_total") == 3
    wait_for(lambda: metric(web, "deliveries_waiting") == 0)
    result = next((tmp_path / "spool" / "results").rglob("*.dcm"))
    assert send(port, [result]) == [0]  # sent back by the archive
    assert metric(web, "objects_repeated_total") == 4

    assert send(port, [ct_slice(uid(1), 9)]) == [0]  # another slice of a judged study
    wait_for(lambda: len(set(archive.received)) == 3)
    assert archive.callers == {"NODE"}
    assert calls.read_text().splitlines()[-1].split()[:2] == [uid(1), "4"]
    for name in ("studies_judged_total", "results_sent_total"):  # counted just after the send
        wait_for(lambda name=name: metric(web, name) == 3)
    assert metric(web, "judge_starts") == 1
    assert look(web, "health")[0] == 200
    assert look(web, "../../etc/passwd")[0] == 404
    lines = look(web, "metrics")[1].splitlines()
    assert all(line.startswith(("# HELP ich_mil_", "# TYPE ich_mil_", "ich_mil_")) for line in lines)
    node.stop()
    assert "sent to ARCHIVE" in caplog.text
    assert "Secret" not in caplog.text
    names = {path.name for path in (tmp_path / "spool").iterdir()}
    assert names == {".lock", "failed", "outbox", "results", "sent", "studies"}


def test_unknown_callers_are_rejected(start):
    node = start()
    port = node.listener.port
    assert echo(port, calling="STRANGER") == (1, 3)  # calling AE title not recognised
    assert echo(port, called="WRONG") == (1, 7)  # called AE title not recognised
    assert send(port, study(1), calling="STRANGER") == []
    wait_for(lambda: metric(node.status.port, "associations_rejected_total") == 3)
    assert metric(node.status.port, "objects_received_total") == 0
    assert node.status._server.server_address[0] == "127.0.0.1"


def test_too_many_connections_are_rejected(start):
    port = start(associations=2).listener.port
    held = [connect(port) for _ in range(2)]
    assert echo(port) == (2, 2)  # transient: local limit exceeded
    for association in held:
        association.release()
    wait_for(lambda: echo(port) == 0)


def test_study_without_a_result_fails_and_the_next_is_judged(start, archive, tmp_path):
    node = start()
    no_ct = study(0, slices=1, Modality="OT", SOPClassUID=SecondaryCaptureImageStorage)
    no_ct[0].file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    wishes = [
        study(number, slices=1, StudyDescription=wish) for number, wish in enumerate(["idle", "boast"], 1)
    ]
    assert send(node.listener.port, sum(wishes, no_ct) + study(9)) == [0] * 6
    failed = tmp_path / "spool" / "failed"
    wait_for(lambda: len(archive.received) == 1 and len(notes(failed)) == 3)
    reasons = {note["study_uid"]: note["reason"] for note in notes(failed)}
    assert reasons[uid(0)] == "none of its files is a CT slice"
    assert "no result" in reasons[uid(1)]
    assert "boasted.dcm" in reasons[uid(2)]
    assert metric(node.status.port, "studies_failed_total") == metric(node.status.port, "studies_failed") == 3
    assert look(node.status.port, "health")[0] == 200


def test_full_spool_and_missing_study_uid_are_answered(start, recwarn):
    node = start(spool_gb=1e-6)
    port, web = node.listener.port, node.status.port
    assert send(port, [ct_slice(uid(1), 0, StudyInstanceUID="")]) == [0xC000]
    assert send(port, study(1)) == [0, 0, 0xA700]  # two objects fill 1 KB
    status, text = look(web, "health")
    assert status == 503
    assert "full" in text
    assert metric(web, "objects_refused_total") == 2
    wait_for(lambda: not list(node.spool.incoming.iterdir()))
    recwarn.clear()  # pydicom warns of the UID


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
        b"\xff" * 1000,
        b"\x01\x00\x00\x00\x00\x04abcd",
        struct.pack(">BBL", 1, 0, 4_000_000_000) + bytes(1000),  # claims gigabytes
    ],
)
def test_other_bytes_than_dicom_do_no_harm(start, content):
    node = start()
    with socket.create_connection(("127.0.0.1", node.listener.port), timeout=60) as wire:
        wire.sendall(content)
        wire.recv(100)
    assert echo(node.listener.port) == 0


def test_health_is_starting_until_the_model_is_loaded(make, monkeypatch):
    may_load = threading.Event()
    load = node_module.JudgeProcess.start
    monkeypatch.setattr(node_module.JudgeProcess, "start", lambda self: may_load.wait(60) and load(self))
    node = make(local=False, http_port=free_port())
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


@pytest.mark.parametrize("refused", ["model", "http_port", "port"])
def test_node_that_cannot_start_leaves_no_spool(tmp_path, refused):
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"port": port} if refused == "model" else {refused: taken.getsockname()[1]}
        settings = settings_of(tmp_path, spool=tmp_path / "data" / "spool", **ports)
        with pytest.raises(ModelError if refused == "model" else ConfigError):
            serve(settings, FakeJudge(usable=refused != "model"))
    assert not (tmp_path / "data").exists()
    assert send(port, study(1)) == []


def test_node_that_cannot_start_leaves_an_existing_spool_as_it_is(start, tmp_path):
    node = start()
    send(node.listener.port, study(1))
    node.stop()
    files = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    with pytest.raises(ModelError):
        serve(settings_of(tmp_path), FakeJudge(usable=False))
    after = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert {path: path.read_bytes() for path in after} == before


def test_stop_returns_a_study_to_the_queue(start, archive, tmp_path):
    calls = tmp_path / "calls"
    node = start(FakeJudge(seconds=600, calls=calls), local=False)
    send(node.listener.port, study(1))
    wait_for(calls.exists)
    node.stop()
    assert not archive.received
    with pytest.raises(OSError, match="refused"):
        look(node.status.port, "health")
    start(FakeJudge(calls=calls))
    wait_for(lambda: len(archive.received) == 1)


def test_stop_lets_callers_end(make):
    node = make()
    node.listener.start()
    association = connect(node.listener.port)
    stopping = threading.Thread(target=node.stop)
    stopping.start()
    wait_for(lambda: not connect(node.listener.port).is_established)
    assert association.send_c_store(study(1)[0]).Status == 0
    association.release()
    stopping.join()


def test_settings_reach_the_spool(make, tmp_path):
    node = make(free_gb=1e9, keep_hours=1.0, retry_seconds=5.0, longest_retry_seconds=8.0)
    assert node.spool.problem()
    for hours in (0.9, 1.1):
        result = capture(ct_slice(uid(1), 0), [], tmp_path / "spool" / "result.dcm")
        node.outbox.put(f"study-{hours}", uid(1), [result])
        assert node.outbox.postpone(node.outbox.due(), [result.name], "down") == 5.0
        (delivery,) = node.outbox.waiting()
        assert node.outbox.postpone(delivery, [result.name], "down") == 8.0
        node.outbox.took(delivery)
        os.utime(tmp_path / "spool" / "sent" / f"study-{hours}.json", (time.time() - hours * 3600,) * 2)
    node.spool.clean(stale=60.0)
    assert [path.stem for path in node.outbox.sent_folder.iterdir()] == ["study-0.9"]


def test_memory_is_that_of_the_whole_node(tmp_path, monkeypatch):
    shares = []
    monkeypatch.setattr(node_module, "JudgeProcess", lambda *_, memory_mb, **__: shares.append(memory_mb))
    settings = settings_of(tmp_path, memory_mb=4000.0, workers=3, associations=10)
    Node(settings, FakeJudge(), stop=threading.Event()).spool.close()
    assert len(set(shares)) == 1
    assert sum(shares) + NODE_MB + 10 * ASSOCIATION_MB == pytest.approx(4000.0)


def test_workers_judge_in_parallel(start):
    node = start(FakeJudge(seconds=600), local=False, workers=2)
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


def test_signal_while_the_model_is_loaded(tmp_path):
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
    serve(settings_of(tmp_path, http_port=web), hang)
    asking.join()
    assert seen == [503]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert not judging_processes()


def test_taken_ports_and_spools_are_refused(make, start, tmp_path):
    node = start()
    with pytest.raises(DataError):
        start()
    with pytest.raises(ConfigError, match="http_port"):
        start(spool=tmp_path / "two", http_port=node.status.port)
    with pytest.raises(ConfigError, match="cannot listen on"):
        make(spool=tmp_path / "three", port=node.listener.port).start()


def _full():
    return open("/dev/full", "w", encoding="utf-8")  # noqa: PTH123 - the test closes it


def _broken():
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w", encoding="utf-8")
    os.close(reading)
    return stream  # a pipe that nobody reads


@pytest.mark.parametrize("opened", [_full, _broken])
def test_log_line_that_cannot_be_written_is_dropped(monkeypatch, opened, capfd):
    with opened() as out, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", out)
        with log_to_output():
            node_module._LOG.info("one")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("encoding", "line"), [("utf-8", "größer: \\udcff"), ("ascii", "gr\\xf6\\xdfer: \\udcff")]
)
def test_log_line_is_written_at_once_with_its_time(monkeypatch, tmp_path, encoding, line):
    with (tmp_path / "log").open("w", encoding=encoding) as out, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", out)
        patch.setattr(
            logging.getLogger("ich_mil.serve"), "propagate", False
        )  # pytest-xdist sends UTF-8 alone
        with log_to_output():
            node_module._LOG.info("größer: \udcff")
            stamp, level, text = (tmp_path / "log").read_text(encoding=encoding).split(" ", 2)
    assert text == f"{line}\n"
    assert level == "INFO"
    time.strptime(stamp, "%Y-%m-%dT%H:%M:%S%z")


def test_a_study_that_grew_is_judged_with_what_was_sent_of_it(start, archive):
    told = []

    def make_judge():
        def judge(study, out, sent):
            told.append([path.name for path in sent])
            names = sorted(path.name for path in study.iterdir())
            return [capture(ct_slice(uid(1), 0), names, out / f"{len(names)}.dcm")]

        return judge

    node = start(make_judge)
    for n_slices in (1, 2, 3):
        assert send(node.listener.port, study(1, slices=n_slices)[-1:]) == [0]
        wait_for(lambda n=n_slices: len(archive.received) == n and not node.outbox.waiting())
    assert [sorted(names) for names in told] == [[], ["1.dcm"], ["1.dcm", "2.dcm"]]
