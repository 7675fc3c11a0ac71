"""DICOM slices, a judge without a model, and an Orthanc without a database.

`python -m tests.serve.fakes URL OUT` runs a worker on Orthanc with the fake judge.
"""

import errno
import json
import os
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

from pydicom import dcmread
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from ich_mil.errors import ConfigError, DataError, DiskFullError, ModelError
from ich_mil.files import digest

WISHES = {
    "refuse": DataError("no usable slice"),
    "model": ModelError("no finished run"),
    "config": ConfigError("no such phrase"),
    "full": DiskFullError("x: the disk is full"),
    "full device": OSError(errno.ENOSPC, "No space left on device"),
    "bug": KeyError("bug"),
}
"""What `fake_judge` raises for a StudyDescription."""


def uid(*words: object) -> str:
    """A UID of these words, the same each time."""
    return generate_uid(entropy_srcs=[str(word) for word in words])


def key(study: str) -> str:
    """Key of a study in OUT."""
    return digest(study.encode())


def ct_slice(study: str, number: int, **changes: object) -> Dataset:
    """A CT slice of 8 x 8 pixels."""
    image = Dataset()
    image.file_meta = FileMetaDataset()
    image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image.SOPClassUID, image.SOPInstanceUID = CTImageStorage, uid(study, number)
    image.StudyInstanceUID, image.SeriesInstanceUID = study, uid(study, "series")
    image.Modality, image.PatientName, image.PatientID = "CT", "Secret^Name", "P1"
    image.InstanceNumber, image.Rows, image.Columns = number, 8, 8
    image.ImagePositionPatient = [0, 0, number]
    image.BitsAllocated = image.BitsStored = 16
    image.HighBit, image.PixelRepresentation, image.SamplesPerPixel = 15, 0, 1
    image.PhotometricInterpretation, image.PixelData = "MONOCHROME2", bytes(128)
    for keyword, value in changes.items():
        setattr(image, keyword, value)
    return image


def write(image: Dataset, path: Path) -> Path:
    """Write a slice, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save_as(path.with_suffix(".tmp"), enforce_file_format=True)
    return path.with_suffix(".tmp").rename(path)


def result(sops: Sequence[str], study: str) -> Dataset:
    """Result of a study with these SOP instance UIDs."""
    report = ct_slice(study, 0, Modality="SR", Manufacturer="ich_mil", SeriesInstanceUID=uid(*sops, "series"))
    report.SOPInstanceUID = uid(*sorted(sops))
    return report


def fake_judge(study: Path, out: Path, replaced: Sequence[Path]) -> None:
    """Write one result, whose UID is a function of the slices, or obey the StudyDescription."""
    images = [dcmread(path) for path in sorted(study.rglob("*")) if path.is_file() and path.stat().st_size]
    print(images[0].PatientName)
    wish = str(images[0].get("StudyDescription", ""))
    if wish == "crash":
        os._exit(7)
    if wish == "hang":
        time.sleep(1000)
    if wish in WISHES:
        raise WISHES[wish]
    (out / "replaced.json").write_text(json.dumps([dcmread(path).SOPInstanceUID for path in replaced]))
    if wish != "idle":
        sops = [image.SOPInstanceUID for image in images]
        write(result(sops, images[0].StudyInstanceUID), out / "dicom" / "report-1.dcm")


def wait_for(is_true: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Wait until `is_true()`; `AssertionError` after `seconds`."""
    until = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.05)


def free_port() -> int:
    """A free port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def orthanc_id(text: str) -> str:
    """Orthanc's ID of the resource with a UID."""
    return sha256(text.encode()).hexdigest()[:16]


class FakeOrthanc:
    """The parts of Orthanc's REST API that the worker uses.

    Attributes:
        tags: data sets by SOP instance UID.
        posts: number of POST requests of each path; `bodies` are those that forward results.
        is_stable: whether all studies are stable.
        modalities, servers: names that it knows.
        fault: function (path) -> HTTP status of the answer, 0 for the right one, -1 for a cut connection.
        logins: values of the header Authorization.
    """

    def __init__(self) -> None:
        self.tags: dict[str, Dataset] = {}
        self.posts, self.bodies, self.logins = Counter[str](), list[dict](), set[str]()
        self.is_stable, self.lock = True, threading.RLock()
        self.date = "20260101T000000"
        self.modalities, self.servers = ["PACS", "PACS 1"], ["cloud"]
        self.fault: Callable[[str], int] = lambda path: 0
        self._changes: list[dict] = []
        self._n_changes, self._n_stored = 0, Counter[str]()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"orthanc": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def store(self, *images: Dataset, change: str = "StableStudy") -> None:
        """Store images, as by C-STORE, and add a change for the study of the last."""
        with self.lock:
            for image in images:
                self._n_stored[image.SOPInstanceUID] += image.SOPInstanceUID not in self.tags
            self.tags |= {str(image.SOPInstanceUID): image for image in images}
            level, keyword = ("series", "Series") if change == "NewSeries" else ("studies", "Study")
            name = orthanc_id(images[-1][f"{keyword}InstanceUID"].value)
            self._n_changes += 1
            about = {"ChangeType": change, "ID": name, "Path": f"/{level}/{name}", "Seq": self._n_changes}
            self._changes.append(about | {"Date": self.date})

    def delete(self, study: str) -> None:
        """Delete a study with its changes."""
        self.tags = {sop: image for sop, image in self.tags.items() if image.StudyInstanceUID != study}
        self._changes = [change for change in self._changes if change["ID"] != orthanc_id(study)]

    def renew(self) -> None:
        """Start with an empty database."""
        self.tags, self._changes, self._n_changes, self.date = {}, [], 0, "20270101T000000"

    def results(self) -> Counter[str]:
        """Number of results of each study."""
        return Counter(str(image.StudyInstanceUID) for image in self.tags.values() if image.Modality == "SR")

    def answer(self, path: str) -> object:
        """Answer to a GET request; None for an unknown resource."""
        if match := re.match(r"/changes\?since=(\d+)&limit=(\d+)$", path):
            since, limit = map(int, match.groups())
            page = [change for change in self._changes if change["Seq"] > since][:limit]
            return {"Changes": page, "Last": max((each["Seq"] for each in page or self._changes), default=0)}
        if path in ("/modalities", "/dicom-web/servers"):
            return self.modalities if path == "/modalities" else self.servers
        level, name, *rest = path.strip("/").split("/")
        keyword = {"studies": "Study", "series": "Series", "instances": "SOP"}[level] + "InstanceUID"
        images = [image for image in self.tags.values() if orthanc_id(image[keyword].value) == name]
        if not images or level == "instances":
            return _content(images[0]) if images else None
        about = [
            {
                "ID": orthanc_id(image.SOPInstanceUID),
                "ParentSeries": orthanc_id(image.SeriesInstanceUID),
                "FileUuid": sha256(_content(image)).hexdigest() + str(self._n_stored[image.SOPInstanceUID]),
                "MainDicomTags": {k: str(image.get(k)) for k in ("Modality", "Manufacturer") if k in image},
            }
            for image in images
        ]
        if rest == ["instances"]:
            return about
        if rest == ["series"]:
            return list(
                {each["ParentSeries"]: each | {"ID": each["ParentSeries"]} for each in about}.values()
            )
        uid = images[0].StudyInstanceUID
        tags = {"StudyInstanceUID": uid}
        return {"ID": orthanc_id(uid), "IsStable": self.is_stable, "MainDicomTags": tags}

    def post(self, path: str, body: bytes) -> object:
        """Answer to a POST request."""
        self.posts[path] += 1
        if path != "/instances":
            self.bodies.append(json.loads(body))
            return {}
        image = dcmread(BytesIO(body))
        self.store(image)
        return {"ID": orthanc_id(image.SOPInstanceUID)}


def _content(image: Dataset) -> bytes:
    buffer = BytesIO()
    image.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


class _Handler(BaseHTTPRequestHandler):
    orthanc: FakeOrthanc

    def do_GET(self) -> None:
        self._answer(lambda: self.orthanc.answer(self.path))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(lambda: self.orthanc.post(self.path, body))

    def _answer(self, answer: Callable[[], object]) -> None:
        status = self.orthanc.fault(self.path)
        with self.orthanc.lock:
            self.orthanc.logins.add(self.headers.get("Authorization", ""))
            content = answer() if status <= 0 else {}
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        with suppress(OSError):  # the worker was killed
            self.send_response(404 if content is None else max(status, 200))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if status < 0 else body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    from ich_mil.serve.orthanc import Orthanc
    from ich_mil.serve.worker import Worker
    from tests.serve.fakes import fake_judge as judge

    url, out = sys.argv[1:]
    worker = Worker(Orthanc(url, Path(out)), Path(out), judge, seconds=60)
    while True:
        worker.poll()
        time.sleep(0.02)
