"""The sender between an outbox and an archive on the loopback."""

import socket
import threading

import pytest
from pydicom import dcmread
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    RLELossless,
    SecondaryCaptureImageStorage,
)

from ich_mil.serve import archive as archive_module
from ich_mil.serve import sender as sender_module
from ich_mil.serve.settings import ArchiveSettings
from tests.serve.fakes import Archive, free_port, no_room_for, notes, wait_for
from tests.serve.judges import capture, ct_slice, uid


@pytest.fixture
def start(send):
    """Function that starts the sender."""
    return lambda port, *, title="ARCHIVE", stop=None: send(ArchiveSettings(title, "127.0.0.1", port), stop)


def put(outbox, study=1, *, n_files=1):
    """Results of one study; gives their files and SOP instance UIDs."""
    files = [
        capture(ct_slice(uid(study), 0), [str(index)], outbox.root / f"{study}-{index}.dcm")
        for index in range(n_files)
    ]
    outbox.put(f"study{study}", uid(study), files)
    return files, [str(dcmread(path).SOPInstanceUID) for path in files]


def error_of(outbox):
    """Why the delivery that waits was not sent."""
    return next((delivery.error for delivery in outbox.waiting()), "")


def test_only_what_was_not_taken_is_sent_again(start, archive, outbox):
    files, (one, two, three) = put(outbox, n_files=3)
    archive.answers[two] = 0xA700
    sender = start(archive.port)
    wait_for(lambda: outbox.waiting()[0].attempts > 1)
    assert archive.received == [one, three]
    assert [note["files"] for note in notes(outbox.waiting_folder)] == [[files[1].name]]
    assert "0xA700" in error_of(outbox)
    del archive.answers[two]
    wait_for(lambda: not outbox.waiting())
    assert (archive.received, archive.callers) == ([one, three, two], {"NODE"})
    assert [note["error"] for note in notes(outbox.sent_folder)] == [""]
    assert sender._metrics.value("results_sent_total") == 3
    wait_for(lambda: not archive.is_called())


@pytest.mark.parametrize(
    ("status", "error"), [(0xB000, ""), (0xBFFF, ""), (0xC000, "0xC000"), (0x0110, "0x0110")]
)
def test_a_remark_is_no_refusal(start, archive, outbox, status, error):
    archive.status = status
    put(outbox)
    start(archive.port)
    wait_for(lambda: not outbox.waiting() or error_of(outbox))
    assert error in error_of(outbox)
    assert bool(outbox.waiting()) == bool(error)


@pytest.mark.parametrize(
    ("own", "taken"),
    [
        (ExplicitVRLittleEndian, [ImplicitVRLittleEndian]),
        (DeflatedExplicitVRLittleEndian, [ImplicitVRLittleEndian]),
        (RLELossless, [ImplicitVRLittleEndian, RLELossless]),
    ],
)
def test_a_file_is_offered_in_the_syntaxes_it_can_be_sent_in(start, outbox, own, taken):
    archive = Archive(syntaxes=taken)
    image = ct_slice(uid(1), 0)
    if own.is_encapsulated:
        image.compress(own)
    image.file_meta.TransferSyntaxUID = own
    image.save_as(outbox.root / "one.dcm", enforce_file_format=True)
    outbox.put("study", uid(1), [outbox.root / "one.dcm"])
    start(archive.port)
    wait_for(lambda: not outbox.waiting() or error_of(outbox))
    archive.stop()
    assert (archive.received, error_of(outbox)) == ([image.SOPInstanceUID], "")


def test_a_class_that_the_archive_does_not_take_holds_up_no_other(start, outbox):
    archive = Archive(takes=[SecondaryCaptureImageStorage])
    ct = outbox.root / "ct.dcm"
    ct_slice(uid(1), 0).save_as(ct, enforce_file_format=True)
    result = capture(ct_slice(uid(1), 0), [], outbox.root / "result.dcm")
    outbox.put("study", uid(1), [ct, result])
    start(archive.port)
    wait_for(lambda: error_of(outbox))
    assert error_of(outbox) == "the archive does not accept CT Image Storage"
    assert [delivery.files for delivery in outbox.waiting()] == [("ct.dcm",)]
    archive.stop()


def test_an_archive_that_takes_no_class_is_told_so(start, outbox):
    archive = Archive(takes=[SecondaryCaptureImageStorage], syntaxes=[RLELossless])
    put(outbox)
    start(archive.port)
    wait_for(lambda: error_of(outbox))
    error = error_of(outbox)  # once it has stopped, the next try finds nobody
    archive.stop()
    assert error == "the archive does not accept Secondary Capture Image Storage"


def test_a_damaged_file_holds_up_no_other_study(start, archive, outbox):
    (file,), _ = put(outbox)
    file.write_bytes(b"damaged")
    _, sops = put(outbox, study=2)
    start(archive.port)
    wait_for(lambda: archive.received == sops and error_of(outbox))
    assert "InvalidDicomError" in error_of(outbox)


@pytest.mark.parametrize(
    ("title", "up", "error"), [("OTHER", True, "rejects"), ("ARCHIVE", False, "cannot be reached")]
)
def test_an_archive_that_takes_no_connection(start, archive, outbox, title, up, error):
    put(outbox)
    start(archive.port if up else free_port(), title=title)
    wait_for(lambda: error in error_of(outbox))


def test_an_archive_that_says_nothing_is_waited_for_as_long_as_allowed(start, outbox, monkeypatch):
    monkeypatch.setattr(archive_module, "TIMEOUT_SECONDS", 0.3)
    put(outbox)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start(silent.getsockname()[1])
        wait_for(lambda: error_of(outbox))


def test_an_archive_that_falls_silent(start, archive, outbox, monkeypatch):
    monkeypatch.setattr(archive_module, "TIMEOUT_SECONDS", 0.3)
    wake = threading.Event()
    archive.then = lambda: wake.wait(10)
    put(outbox, n_files=3)
    start(archive.port)
    wait_for(lambda: error_of(outbox) == "the archive does not answer")
    wake.set()


def test_a_stop_while_it_sends_is_no_failure(start, archive, outbox):
    stop = threading.Event()
    archive.then = stop.set
    _, sops = put(outbox, n_files=2)
    sender = start(archive.port, stop=stop)
    sender.join(10)
    assert archive.received == sops[:1]
    assert [(note["attempts"], len(note["files"])) for note in notes(outbox.waiting_folder)] == [(0, 2)]
    assert sender._metrics.value("sends_failed_total") == 0


def test_notes_that_cannot_be_written_end_no_sender(start, archive, outbox, monkeypatch):
    monkeypatch.setattr(sender_module, "PAUSE_SECONDS", 0.5)
    _, sops = put(outbox)
    with no_room_for(outbox.sent_folder):
        sender = start(archive.port)
        wait_for(lambda: sender.problem)
        assert [note["name"] for note in notes(outbox.waiting_folder)] == ["study1"]
    wait_for(lambda: not outbox.waiting() and not sender.problem)
    assert set(archive.received) == set(sops)  # at least once
