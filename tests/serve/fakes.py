"""Stand-ins for tests of the node: an archive, a machine that sends, and looks at the status pages."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pydicom.dataset import Dataset
from pydicom.uid import (
    CTImageStorage,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    SecondaryCaptureImageStorage,
)
from pynetdicom import AE, AllStoragePresentationContexts, evt


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


class Archive:
    """Counts what it is sent; `status` is its answer."""

    def __init__(self, port: int = 0) -> None:
        self.status = 0
        self.received: list[str] = []
        self._ae = AE(ae_title="ARCHIVE")
        for context in AllStoragePresentationContexts:
            self._ae.add_supported_context(context.abstract_syntax)
        self._server = self._ae.start_server(
            ("127.0.0.1", port), block=False, evt_handlers=[(evt.EVT_C_STORE, self._store)]
        )
        self.port = self._server.server_address[1]

    def _store(self, event: evt.Event) -> int:
        if self.status == 0:
            self.received.append(str(event.request.AffectedSOPInstanceUID))
        return self.status

    def stop(self) -> None:
        self._ae.shutdown()


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


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
