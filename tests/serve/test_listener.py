"""The listener in front of a spool: limits of callers, faults of the disk, log lines, and the stop."""

import socket
import struct
import tempfile
import threading
import time
from pathlib import Path

import pytest
from pydicom import dcmread
from pydicom.uid import CTImageStorage, UncompressedTransferSyntaxes
from pynetdicom import AE, _config
from pynetdicom.pdu import A_ASSOCIATE_RQ
from pynetdicom.pdu_primitives import (
    A_ASSOCIATE,
    ImplementationClassUIDNotification,
    MaximumLengthNotification,
)

from ich_mil.dicom.files import codec
from ich_mil.errors import DataError
from ich_mil.serve import listener as listener_module
from ich_mil.serve.listener import HALF_OPEN_OF_ADDRESS, SYNTAXES, Listener
from ich_mil.serve.status import Metrics
from tests.serve.fakes import connect, send, settings_of, wait_for
from tests.serve.judges import ct_slice, uid

HTTP = b"GET / HTTP/1.0\r\n\r\n"


@pytest.fixture
def listen(tmp_path, spool):
    """Function that starts a listener with these settings."""
    started = []

    def one(**changes):
        started.append(Listener(settings_of(tmp_path, **changes), spool, Metrics()))
        started[-1].start()
        return started[-1]

    yield one
    for listener in started:
        listener.stop(grace=0.0)


def study(n_slices, **changes):
    return [ct_slice(uid(1), index, **changes) for index in range(n_slices)]


def can_connect(port):
    association = connect(port)
    established = association.is_established
    if established:
        association.release()
    return established


def wire_to(port):
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def wait_until_closed(wire):
    try:
        while wire.recv(100):  # an abort may come first
            pass
    except ConnectionError:
        pass


@pytest.mark.parametrize("first", [b"", struct.pack(">BBL", 1, 0, 200) + bytes(100)])
def test_silent_connection_is_closed(listen, monkeypatch, first):
    monkeypatch.setattr(listener_module, "IDLE_SECONDS", 0.3)
    with wire_to(listen().port) as wire:
        wire.sendall(first)
        wait_until_closed(wire)


@pytest.mark.parametrize("drips", [False, True])
def test_connection_without_a_request_is_closed_early(listen, monkeypatch, drips):
    """A byte now and then does not extend its time."""
    monkeypatch.setattr(listener_module, "REQUEST_SECONDS", 0.5)
    with wire_to(listen().port) as wire:
        wire.sendall(struct.pack(">BBL", 1, 0, 200))
        wire.settimeout(0.1)

        def is_closed():
            try:
                if drips:
                    wire.sendall(b"\0")
                return wire.recv(100) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_for(is_closed)


@pytest.mark.parametrize("limit", ["address", "total"])
def test_connections_without_a_request_take_no_place_and_are_limited(listen, monkeypatch, caplog, limit):
    """Beyond the limit the oldest is closed, so that a sender always gets its association."""
    monkeypatch.setattr(listener_module, "REQUEST_SECONDS", 600.0)  # closed by their number, not by time
    if limit == "total":
        monkeypatch.setattr(listener_module, "HALF_OPEN", 3)
    most = 3 if limit == "total" else HALF_OPEN_OF_ADDRESS
    listener = listen(associations=1)
    wires = []
    for before in range(most + 4):  # one after the other: the node takes connections in threads, in any order
        wires.append(wire_to(listener.port))
        if before < most:
            wait_for(lambda count=before + 1: listener.half_open() == count)
        else:
            wait_until_closed(wires[before - most])
    assert listener.half_open() == most
    wait_for(lambda: caplog.text.count("too many connections") == 4)  # no timeout of pynetdicom closed them
    assert can_connect(listener.port)
    for wire in wires:
        wire.close()
    wait_for(lambda: listener.half_open() == 0)


def test_associations_are_limited(listen):
    listener = listen(associations=1)
    held = connect(listener.port)
    assert not can_connect(listener.port)
    held.release()
    wait_for(lambda: can_connect(listener.port))


def test_association_requested_in_time_stays(listen, monkeypatch):
    monkeypatch.setattr(listener_module, "REQUEST_SECONDS", 0.2)
    association = connect(listen().port)
    time.sleep(0.6)
    assert association.is_established
    association.release()


def test_silent_association_is_aborted_whatever_the_clock_says(listen, monkeypatch):
    monkeypatch.setattr(listener_module, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(time, "time", lambda: 1e9)  # it was set back, and again and again
    association = connect(listen().port)
    wait_for(lambda: association.is_aborted)


def test_size_limit_is_that_of_one_object(listen):
    port = listen(instance_mb=0.1).port
    assert send(port, study(4, PixelData=bytes(60_000))) == [0] * 4
    assert send(port, study(1, PixelData=bytes(110_000))) == [-1]


def test_objects_are_received_in_the_spool_and_no_other_files(listen, spool, monkeypatch):
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
def test_object_that_cannot_be_written_is_answered_with_out_of_resources(listen, spool, monkeypatch, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(spool, "store", full)
    listener = listen()
    assert send(listener.port, study(1)) == [0xA700]
    assert listener._metrics.value("objects_refused_total") == 1


def test_reception_ends_on_a_full_disk(listen, spool, monkeypatch, caplog):
    listener, room = listen(), [1 << 20]
    monkeypatch.setattr(spool, "free_bytes", lambda: room[0])
    assert connect(listener.port).is_established is False
    wait_for(lambda: "its disk is full" in caplog.text)
    room[0] = 1 << 30
    assert send(listener.port, study(1)) == [0]


def test_object_without_a_uid_has_that_of_its_request(listen, spool, tmp_path, monkeypatch):
    monkeypatch.setattr(_config, "STORE_SEND_CHUNKED_DATASET", True)  # the request has the UID of the file
    files = []
    for value in range(2):
        image = ct_slice(uid(1), 0, PixelData=bytes([value] * 128))
        del image.SOPInstanceUID
        files.append(tmp_path / f"{value}.dcm")
        image.save_as(files[-1], enforce_file_format=True)
    assert send(listen().port, files) == [0, 0]
    (kept,) = spool.root.glob("studies/*/objects/*.dcm")
    assert dcmread(kept).PixelData == image.PixelData  # of the last one


def test_stop_lets_an_association_end_and_accepts_no_other(listen):
    listener = listen()
    association = connect(listener.port)
    stopping = threading.Thread(target=listener.stop, kwargs={"grace": 60.0})
    stopping.start()
    wait_for(lambda: not connect(listener.port).is_established)
    assert association.send_c_store(study(1)[0]).Status == 0
    association.release()
    stopping.join(60)
    assert not stopping.is_alive()


def test_stop_aborts_an_association_that_stays(listen):
    listener = listen()
    association, wire = connect(listener.port), wire_to(listener.port)
    listener.stop(grace=0.1)
    wait_for(lambda: not association.is_established)
    wait_until_closed(wire)
    wire.close()


def request(calling: bytes, called: bytes) -> bytes:
    """An A-ASSOCIATE-RQ of pynetdicom with these 16 bytes of AE titles."""
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
    """Type of the PDU in answer: 2 accepts, 3 rejects, 7 aborts; 0 for no answer."""
    with wire_to(port) as wire:
        wire.sendall(content)
        back = wire.recv(1)
        return back[0] if back else 0


@pytest.mark.parametrize("padding", [b" ", b"\0", b"\0 ", b"\0x"])
def test_nul_padding_of_ae_titles(listen, padding):
    calling, called = (title + (padding * 16)[: 16 - len(title)] for title in (b"SCANNER", b"NODE"))
    assert answer(listen().port, request(calling, called)) == 2


NODE, SCANNER = b"NODE".ljust(16), b"SCANNER".ljust(16)


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (request(b"STRANGER".ljust(16), NODE), 3, ["rejected: 'STRANGER'", "Calling AE title"]),
        (request(b"STRANGER".ljust(16, b"\0"), NODE), 3, ["rejected: 'STRANGER'", "Calling AE title"]),
        (request(SCANNER, b"OTHER".ljust(16)), 3, ["rejected: 'SCANNER'", "Called AE title"]),
        (request(bytes(16), NODE), 7, ["refused", "no valid request"]),
        (request(SCANNER, NODE)[:6] + b"\xff" * 300, 7, ["refused", "no valid request"]),
        (HTTP, 7, ["refused", "no valid request"]),
        (struct.pack(">BBL", 1, 0, 1 << 31), 0, ["refused", "more than is allowed"]),
    ],
)
def test_refused_connection_leaves_one_log_line(listen, caplog, content, kind, words):
    listener = listen()
    assert answer(listener.port, content) == kind
    wait_for(lambda: "from 127.0.0.1" in caplog.text and listener.half_open() == 0)
    (line,) = (one.getMessage() for one in caplog.records if one.name.startswith("ich_mil"))
    assert all(word in line for word in [*words, " from 127.0.0.1:"])


def test_log_lines_of_aborts_and_none_of_a_port_check(listen, caplog, monkeypatch):
    monkeypatch.setattr(listener_module, "REQUEST_SECONDS", 0.3)
    listener = listen()
    wire_to(listener.port).close()
    connect(listener.port).release()
    wait_for(lambda: listener.half_open() == 0)
    assert caplog.text == ""
    connect(listener.port).abort()
    wait_for(lambda: "aborted: 'SCANNER' from 127.0.0.1:" in caplog.text and "by the caller" in caplog.text)
    with wire_to(listener.port) as wire:
        wire.recv(1)
    wait_for(lambda: "no request for an association within 0.3 s" in caplog.text)
    association = connect(listener.port)
    association.dul.socket.socket.close()
    wait_for(lambda: "the connection was lost" in caplog.text)
    wait_for(lambda: listener._metrics.value("associations_broken_total") == 2)


def test_syntaxes_are_those_of_the_reader(listen):
    assert set(SYNTAXES) == {*UncompressedTransferSyntaxes, *codec.PLUGINS}
    assert len(set(SYNTAXES)) == len(SYNTAXES)
    ae = AE(ae_title="SCANNER")
    ae.add_requested_context(CTImageStorage, SYNTAXES[-1])
    ae.add_requested_context(CTImageStorage, "1.2.840.10008.1.2.4.100")  # MPEG2, which cannot be decoded
    association = ae.associate("127.0.0.1", listen().port, ae_title="NODE")
    assert [context.transfer_syntax[0] for context in association.accepted_contexts] == [SYNTAXES[-1]]
    association.release()
