"""The listener alone, in front of a spool: what it bears of callers and of the disk, and how it stops."""

import re
import socket
import struct
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydicom import dcmread
from pydicom.uid import CTImageStorage
from pynetdicom import AE, _config
from pynetdicom.pdu import A_ASSOCIATE_RQ
from pynetdicom.pdu_primitives import (
    A_ASSOCIATE,
    ImplementationClassUIDNotification,
    MaximumLengthNotification,
)

from ich_mil.errors import DataError
from ich_mil.serve import listener as listener_module
from ich_mil.serve.listener import Listener
from ich_mil.serve.metrics import Metrics
from ich_mil.serve.settings import ArchiveSettings, ServeSettings
from ich_mil.serve.spool import Spool
from tests.serve.fakes import connect, send, wait_for
from tests.serve.judges import ct_slice, uid


@pytest.fixture
def spool(tmp_path):
    limits = {"silence": 60.0, "most_bytes": 1e9, "least_free": 0.0, "keep": 60.0}
    made = Spool(tmp_path / "spool", **limits, pause=1.0, longest_pause=1.0)
    yield made
    made.close()


@pytest.fixture
def listen(tmp_path, spool):
    """Starts a listener of these settings; it is stopped at the end."""
    started = []

    def one(**changes):
        archive = ArchiveSettings("ARCHIVE", "127.0.0.1", 104)
        values = {"model": tmp_path, "spool": spool.root, "archive": archive, "senders": ["SCANNER"]}
        settings = ServeSettings(**values, ae_title="NODE", port=0, **changes)
        started.append(Listener(settings, spool, Metrics()))
        started[-1].start()
        return started[-1]

    yield one
    for listener in started:
        listener.stop(grace=0.0)


def study(n_slices, **changes):
    return [ct_slice(uid(1), index, **changes) for index in range(n_slices)]


def connects(port):
    """Whether a sender gets an association."""
    association = connect(port)
    established = association.is_established
    if established:
        association.release()
    return established


@pytest.mark.parametrize("first", [b"", struct.pack(">BBL", 1, 0, 200) + bytes(100)])
def test_a_caller_that_falls_silent_is_cut_off(listen, monkeypatch, first):
    monkeypatch.setattr(listener_module, "IDLE_SECONDS", 0.3)
    port = listen().port
    with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
        wire.sendall(first)
        while wire.recv(100):  # a word of farewell
            pass


@pytest.mark.parametrize("drips", [False, True])
def test_a_caller_that_makes_no_request_is_cut_off_before_its_time(listen, monkeypatch, drips):
    """It must not hold a place that the senders need, nor with a byte now and then."""
    monkeypatch.setattr(listener_module, "REQUEST_SECONDS", 0.5)
    listener = listen(associations=1)
    with socket.create_connection(("127.0.0.1", listener.port), timeout=0.1) as wire:
        wire.sendall(struct.pack(">BBL", 1, 0, 200))

        def is_cut():
            try:
                if drips:
                    wire.sendall(b"\0")
                return wire.recv(100) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_for(is_cut, seconds=5)
    wait_for(lambda: connects(listener.port), seconds=5)


def test_a_caller_that_made_its_request_in_time_may_stay(listen, monkeypatch):
    monkeypatch.setattr(listener_module, "REQUEST_SECONDS", 0.2)
    association = connect(listen().port)
    time.sleep(0.6)
    assert association.is_established
    association.release()


def test_a_caller_that_sends_nothing_more_is_cut_off(listen, monkeypatch):
    monkeypatch.setattr(listener_module, "IDLE_SECONDS", 0.3)
    association = connect(listen().port)
    wait_for(lambda: association.is_aborted, seconds=5)


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.0\r\n\r\n"])
def test_a_caller_that_goes_without_a_request_takes_no_place(listen, first):
    """A monitor that looks whether the port is open, every few seconds, must not keep senders out."""
    port = listen(associations=2).port
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
            wire.sendall(first)

    wait_for(lambda: connects(port), seconds=5)


def test_the_largest_size_is_that_of_one_object(listen):
    port = listen(instance_mb=0.1).port
    assert send(port, study(4, PixelData=bytes(60_000))) == [0] * 4


def test_objects_are_received_in_the_spool_and_nothing_else_is(listen, spool, monkeypatch):
    listener, folders, store = listen(), [], spool.store

    def watched(file, *, sop_uid):
        folders.append(file.parent)
        return store(file, sop_uid=sop_uid)

    monkeypatch.setattr(spool, "store", watched)
    assert send(listener.port, study(1)) == [0]
    assert folders == [spool.incoming]
    listener.stop(grace=0.0)
    assert Path(tempfile.gettempdir()) != spool.incoming


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), DataError("the disk is full")])
def test_what_cannot_be_written_is_refused_for_lack_of_room(listen, spool, monkeypatch, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(spool, "store", full)
    listener = listen()
    assert send(listener.port, study(1)) == [0xA700]
    assert listener._metrics.value("objects_refused_total") == 1


def test_a_disk_without_room_is_not_written_to_while_receiving(listen, monkeypatch):
    listener, room = listen(), [1 << 20]
    monkeypatch.setattr(listener_module, "disk_usage", lambda _: SimpleNamespace(free=room[0]))
    assert connect(listener.port).is_established is False
    room[0] = 1 << 30
    assert send(listener.port, study(1)) == [0]


def test_an_object_without_a_name_has_that_of_its_request(listen, spool, tmp_path, monkeypatch):
    monkeypatch.setattr(_config, "STORE_SEND_CHUNKED_DATASET", True)  # it is named as its file is
    files = []
    for value in range(2):
        image = ct_slice(uid(1), 0, PixelData=bytes([value] * 128))
        del image.SOPInstanceUID
        files.append(tmp_path / f"{value}.dcm")
        image.save_as(files[-1], enforce_file_format=True)
    assert send(listen().port, files) == [0, 0]
    (kept,) = spool.root.glob("studies/*/objects/*.dcm")  # the last of this name
    assert dcmread(kept).PixelData == image.PixelData


def test_a_connection_that_breaks_is_counted(listen):
    listener = listen()
    connect(listener.port).abort()
    wait_for(lambda: listener._metrics.value("associations_broken_total") == 1)


def test_a_stop_lets_a_caller_end_and_takes_no_other(listen):
    listener = listen()
    association = connect(listener.port)
    stopping = threading.Thread(target=listener.stop, kwargs={"grace": 30.0})
    stopping.start()
    wait_for(lambda: not connect(listener.port).is_established)
    assert association.send_c_store(study(1)[0]).Status == 0
    association.release()
    stopping.join(10)
    assert not stopping.is_alive()


def test_a_stop_cuts_a_caller_that_stays(listen):
    listener = listen()
    association = connect(listener.port)
    listener.stop(grace=0.1)
    wait_for(lambda: not association.is_established, seconds=5)


def request(calling: bytes, called: bytes) -> bytes:
    """An A-ASSOCIATE-RQ as pynetdicom sends it, with these 16 bytes of AE titles."""
    ae = AE(ae_title="SCANNER")
    ae.add_requested_context(CTImageStorage)
    primitive = A_ASSOCIATE()
    primitive.application_context_name = "1.2.840.10008.3.1.1.1"
    primitive.calling_ae_title, primitive.called_ae_title = "SCANNER", "NODE"
    contexts = ae.requested_contexts
    contexts[0].context_id = 1
    primitive.presentation_context_definition_list = contexts
    length, version = MaximumLengthNotification(), ImplementationClassUIDNotification()
    length.maximum_length_received, version.implementation_class_uid = 16384, "1.2.3"
    primitive.user_information = [length, version]
    pdu = A_ASSOCIATE_RQ()
    pdu.from_primitive(primitive)
    content = bytearray(pdu.encode())
    content[10:26], content[26:42] = called, calling
    return bytes(content)


def answer(port: int, content: bytes) -> int:
    """The type of the PDU that comes back: 2 accepts, 3 rejects, 7 aborts; 0 nothing."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
        wire.sendall(content)
        back = wire.recv(1)
        return back[0] if back else 0


@pytest.mark.parametrize("padding", [b" ", b"\0", b"\0 ", b"\0x"])
def test_titles_padded_with_nul_are_titles(listen, padding):
    calling, called = (title + (padding * 16)[: 16 - len(title)] for title in (b"SCANNER", b"NODE"))
    assert answer(listen().port, request(calling, called)) == 2


NODE, SCANNER = b"NODE".ljust(16), b"SCANNER".ljust(16)


@pytest.mark.parametrize(
    ("content", "kind", "told"),
    [
        (request(b"STRANGER".ljust(16), NODE), 3, r"rejected: 'STRANGER' .*: Calling AE title"),
        (request(b"STRANGER".ljust(16, b"\0"), NODE), 3, r"rejected: 'STRANGER' .*: Calling AE title"),
        (request(SCANNER, b"OTHER".ljust(16)), 3, r"rejected: 'SCANNER' .*: Called AE title"),
        (request(bytes(16), NODE), 7, r"refused: .*no valid request"),
        (request(SCANNER, NODE)[:6] + b"\xff" * 300, 7, r"refused: .*no valid request"),
        (b"GET / HTTP/1.0\r\n\r\n", 7, r"refused: .*no valid request"),
        (struct.pack(">BBL", 1, 0, 1 << 31), 0, r"refused: .*more than it may"),
    ],
)
def test_a_refused_connection_leaves_one_line_with_caller_reason_and_time(listen, capfd, content, kind, told):
    assert answer(listen().port, content) == kind
    line = re.compile(rf"^20\d\d-\d\d-\d\dT[\d:]{{8}}\S* {told}.*$", re.MULTILINE)
    said = ""

    def is_told():
        nonlocal said
        said += capfd.readouterr().out
        return line.search(said)

    wait_for(is_told, seconds=5)
    time.sleep(0.3)
    said += capfd.readouterr().out
    assert len(said.splitlines()) == 1
    assert " from 127.0.0.1:" in said


def test_an_aborted_connection_and_one_without_a_request_leave_a_line_and_a_check_of_the_port_none(
    listen, capfd, monkeypatch
):
    monkeypatch.setattr(listener_module, "REQUEST_SECONDS", 0.3)
    port = listen().port
    socket.create_connection(("127.0.0.1", port)).close()
    association = connect(port)
    association.release()
    time.sleep(0.2)
    assert capfd.readouterr().out == ""
    association = connect(port)
    association.abort()
    said = ""

    def has(text):
        nonlocal said
        said += capfd.readouterr().out
        return text in said

    wait_for(lambda: has("aborted: 'SCANNER' from 127.0.0.1:"), seconds=5)
    assert has(": by the caller")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
        wire.recv(1)
    wait_for(lambda: has("no request for an association within 0.3 s"), seconds=5)
    association = connect(port)
    association.dul.socket.socket.close()
    wait_for(lambda: has("the connection was lost"), seconds=5)
