"""Stand-ins for tests of the node: settings, an archive, a sender, and access to the status pages.

`python -m tests.serve.fakes FILE.json SECONDS CALLS` runs a node with a fake judge.
"""

import json
import multiprocessing
import socket
import sys
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

from ich_mil.serve.settings import ArchiveSettings, ServeSettings
from ich_mil.serve.spool import Spool
from ich_mil.serve.studies import Job
from tests.serve.judges import capture, ct_slice, uid

STORAGE = [context.abstract_syntax for context in AllStoragePresentationContexts]


def settings_of(folder: Path, *, archive: int | ArchiveSettings = 104, **changes: object) -> ServeSettings:
    """Settings of a node with short times, and a spool in `folder`."""
    values: dict = {
        "model": folder,
        "spool": folder / "spool",
        "archive": ArchiveSettings("ARCHIVE", "127.0.0.1", archive) if isinstance(archive, int) else archive,
        "senders": ["SCANNER", "OTHER"],
        "ae_title": "NODE",
        "port": 0,
        "http_port": 0,
        "silence_seconds": 0.3,
        "retry_seconds": 0.2,
        "longest_retry_seconds": 0.4,
        "free_gb": 0.0,
    }
    return ServeSettings(**(values | changes))


def open_spool(folder: Path, **changes: object) -> Spool:
    """A spool in `folder` without a silence period."""
    return Spool(settings_of(folder, **({"silence_seconds": 1e-9, "keep_hours": 1.0} | changes)))


def store(spool: Spool, image: Dataset, *, sop_uid: str | None = None) -> bool:
    """Store an object as the listener does."""
    path = spool.incoming / f"{time.monotonic_ns()}.dcm"
    image.save_as(path, enforce_file_format=True)
    return spool.store(path, sop_uid=str(image.SOPInstanceUID) if sop_uid is None else sop_uid)


def judge(spool: Spool, job: Job, *names: str) -> list[Path]:
    """Write one result, or one of each name, as a worker does."""
    image, work = ct_slice(job.study_uid, 0), spool.work(job)
    sops = sorted(path.name for path in job.objects.iterdir())
    return [capture(image, [*sops, name], work / f"{name}.dcm") for name in names or ["capture"]]


def judged(spool: Spool, study: int = 1, number: int = 0, *, sent: bool = False) -> Job:
    """Store a slice of a study and judge the study; with `sent`, mark its result as sent."""
    store(spool, ct_slice(uid(study), number))
    job = spool.take()
    spool.judged(job, judge(spool, job))
    if sent:
        spool.outbox.took(spool.outbox.due())
    return job


def failed(spool: Spool, study: int = 1, number: int = 0) -> Job:
    """Store a slice of a study and record that the study has no result."""
    store(spool, ct_slice(uid(study), number))
    job = spool.take()
    spool.fail(job, "why")
    return job


def send(
    port: int,
    images: Iterable[Dataset | Path],
    *,
    calling: str = "SCANNER",
    called: str = "NODE",
    patience: float = 60.0,
) -> list[int]:
    """Statuses of a C-STORE of each image, -1 without an answer in time; [] for a rejected association."""
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
    """An association that may send CT slices."""
    ae = AE(ae_title="SCANNER")
    ae.add_requested_context(CTImageStorage)
    return ae.associate("127.0.0.1", port, ae_title="NODE")


class Archive:
    """Archive that answers `status`, or `answers[SOP instance UID]`, after it has called `then`."""

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
        """Whether an association is open."""
        return bool(self._ae.active_associations)

    def stop(self) -> None:
        self._ae.shutdown()


def free_port() -> int:
    """A free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def judging_processes() -> list[SpawnProcess]:
    """Running judging processes; those of joblib have another class."""
    return [one for one in multiprocessing.active_children() if isinstance(one, SpawnProcess)]


def alive(pid: int) -> bool:
    """Whether a process runs, as opposed to a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_for(true: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Wait until `true()`; `AssertionError` after `seconds`."""
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
    """The JSON files of a folder of the spool."""
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


if __name__ == "__main__":
    from ich_mil.serve.node import serve
    from tests.serve.judges import FakeJudge

    file, seconds, calls = sys.argv[1:]
    values = json.loads(Path(file).read_bytes())
    settings = settings_of(Path(file).parent, **values)
    serve(settings, FakeJudge(seconds=float(seconds), calls=Path(calls)))
