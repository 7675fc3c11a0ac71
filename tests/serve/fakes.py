"""Stand-ins for tests of the node: an archive, a machine that sends, and looks at the status pages."""

import json
import multiprocessing
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnProcess
from pathlib import Path

from pydicom.dataset import Dataset
from pydicom.uid import (
    CTImageStorage,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    SecondaryCaptureImageStorage,
)
from pynetdicom import AE, DEFAULT_TRANSFER_SYNTAXES, AllStoragePresentationContexts, evt
from pynetdicom.association import Association

STORAGE = [context.abstract_syntax for context in AllStoragePresentationContexts]


def send(
    port: int,
    images: Iterable[Dataset | Path],
    *,
    calling: str = "SCANNER",
    called: str = "NODE",
    patience: float = 60.0,
) -> list[int]:
    """C-STORE each; its statuses, -1 where no answer came; [] where the association was rejected.

    An answer is waited for `patience` seconds. pynetdicom 3.0.4 does not always see that its peer is gone:
    then it waits so long for nothing.
    """
    ae = AE(ae_title=calling)
    ae.dimse_timeout = patience
    for sop_class in (CTImageStorage, SecondaryCaptureImageStorage):
        ae.add_requested_context(sop_class, [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
    association = ae.associate("127.0.0.1", port, ae_title=called)
    if not association.is_established:
        return []
    connection = association.dul.socket.socket
    statuses: list[int] = []
    for image in images:
        if -1 in statuses or not association.is_established:
            statuses.append(-1)
            continue
        said = association.send_c_store(image)
        statuses.append(int(said.Status) if "Status" in said else -1)
    if association.is_established:
        association.release()
    if connection is not None:
        connection.close()  # pynetdicom 3.0.4 leaves one open that was cut
    return statuses


def connect(port: int) -> Association:
    """A caller that is connected, and may send CT slices."""
    ae = AE(ae_title="SCANNER")
    ae.add_requested_context(CTImageStorage)
    return ae.associate("127.0.0.1", port, ae_title="NODE")


class Archive:
    """Counts what it is sent, by those who call it by its name.

    Attributes:
        status: its answer.
        answers: SOP instance UID -> answer to this object.
        then: called before each answer.
        received: SOP instance UIDs that were answered with 0.
        callers: AE titles of those who sent.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        takes: Iterable[str] = STORAGE,
        syntaxes: Sequence[str] = DEFAULT_TRANSFER_SYNTAXES,
    ) -> None:
        self.status = 0
        self.answers: dict[str, int] = {}
        self.then: Callable[[], object] = lambda: None
        self.received: list[str] = []
        self.callers: set[str] = set()
        self._ae = AE(ae_title="ARCHIVE")
        self._ae.require_called_aet = True
        for sop_class in takes:
            self._ae.add_supported_context(sop_class, syntaxes)
        self._server = self._ae.start_server(
            ("127.0.0.1", port), block=False, evt_handlers=[(evt.EVT_C_STORE, self._store)]
        )
        self.port = self._server.server_address[1]

    def _store(self, event: evt.Event) -> int:
        sop = str(event.request.AffectedSOPInstanceUID)
        self.callers.add(event.assoc.requestor.ae_title)
        status = self.answers.get(sop, self.status)
        if status == 0:
            self.received.append(sop)
        self.then()
        return status

    def is_called(self) -> bool:
        """Whether anybody is connected."""
        return bool(self._ae.active_associations)

    def stop(self) -> None:
        self._ae.shutdown()


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def judging_processes() -> list[SpawnProcess]:
    """Those that run; joblib keeps processes of another class for other tests."""
    return [one for one in multiprocessing.active_children() if isinstance(one, SpawnProcess)]


def alive(pid: int) -> bool:
    """Whether a process of this number runs: not one that has ended and is not collected yet."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_for(true: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Wait until `true()`; `AssertionError` if it does not become so."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.05)


def look(port: int, page: str) -> tuple[int, str]:
    """HTTP status and text of a page of the status server."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metric(port: int, name: str) -> float:
    """One value of /metrics."""
    lines = look(port, "metrics")[1].splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"ich_mil_{name} ")))


def notes(folder: Path) -> list[dict]:
    """The JSON files of a folder of the spool; those that it moves away meanwhile are left out."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with suppress(FileNotFoundError):
            found.append(json.loads(path.read_bytes()))
    return found


@contextmanager
def no_room_for(folder: Path) -> Iterator[None]:
    """Nothing can be written into this empty folder meanwhile."""
    folder.rmdir()
    folder.touch()
    yield
    folder.unlink()
    folder.mkdir()


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """This file or folder is there, but cannot be opened meanwhile."""
    aside = path.rename(path.with_name("aside"))
    path.symlink_to(path)  # to itself: too many links
    yield
    path.unlink()
    aside.rename(path)
