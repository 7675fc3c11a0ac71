"""The worker with its bundled model beside Debian's Orthanc, which forwards the results to a second Orthanc.

Studies arrive by dcmtk's dcmsend. Worker and Orthanc are killed while they work.
"""

import csv
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from io import BytesIO
from pathlib import Path

import pytest
from pydicom import dcmread

from tests.phantoms import cq500
from tests.serve.fakes import free_port, wait_for

ROOT = Path(__file__).parents[2]
ORTHANC = shutil.which("Orthanc") or shutil.which("Orthanc", path="/usr/sbin")
DCMSEND, STORESCP = shutil.which("dcmsend"), shutil.which("storescp", path="/usr/bin")
DICOMWEB = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
IS_INSTALLED = ORTHANC and DICOMWEB.exists() and DCMSEND and STORESCP
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(not IS_INSTALLED, reason="Debian: apt-get install orthanc orthanc-dicomweb dcmtk"),
]
LOGIN = {"name": "worker", "password": "open sesame"}
PATIENCE = 300.0


class Server:
    """An Orthanc with a store of its own, and other servers that it knows."""

    def __init__(self, folder, **settings):
        folder.mkdir()
        self.port, self.http_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http_port}"
        about = {
            "StorageDirectory": str(folder / "store"),
            "IndexDirectory": str(folder / "store"),
            "HttpPort": self.http_port,
            "DicomPort": self.port,
            "DicomAet": folder.name.upper(),
            "AuthenticationEnabled": True,
            "RegisteredUsers": {LOGIN["name"]: LOGIN["password"]},
            "StableAge": 3,
            "DicomAlwaysAllowStore": True,
            "Plugins": [str(DICOMWEB)],
        }
        (folder / "orthanc.json").write_text(json.dumps(about | settings))
        passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
        passwords.add_password(None, self.url, *LOGIN.values())
        self._opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
        self._folder, self.process = folder, None
        self.start()

    def start(self):
        with (self._folder / "log").open("a") as log:
            command = [ORTHANC, self._folder / "orthanc.json"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self._answers)

    def _answers(self):
        assert self.process.poll() is None, (self._folder / "log").read_text()
        try:
            return self.ask("/system")
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.wait()

    def wait(self):
        return self.process.wait(30)

    def ask(self, path):
        with self._opener.open(self.url + path, timeout=60) as answer:
            content = answer.read()
        return content if path.endswith("/file") else json.loads(content)

    def delete(self, path):
        with self._opener.open(urllib.request.Request(self.url + path, method="DELETE"), timeout=60):
            pass

    def send(self, *paths):
        """Store files by C-STORE."""
        subprocess.run(
            [DCMSEND, "-aec", self._folder.name.upper(), "127.0.0.1", str(self.port), *paths],
            check=True,
            capture_output=True,
        )

    def results(self):
        """SOP instance UID -> data set of each object that is no CT slice."""
        images = [
            dcmread(BytesIO(self.ask(f"/instances/{instance}/file")), defer_size=1024)
            for series in self.ask("/series?expand")
            if series["MainDicomTags"]["Modality"] != "CT"
            for instance in series["Instances"]
        ]
        return {str(image.SOPInstanceUID): image for image in images}


class WorkerProcess:
    """`ich-mil serve` with these options."""

    def __init__(self, folder, *options):
        self.out, self._log = folder / "out", folder / "worker.log"
        self._command = [sys.executable, "-m", "ich_mil", "serve", "--out", self.out, *options]
        self.process = None

    def start(self):
        n_starts = self.log().count("ready")
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)
        wait_for(
            lambda: self.process.poll() is None and self.log().count("ready") > n_starts, seconds=PATIENCE
        )

    def kill(self):
        self.process.kill()
        self.wait()

    def wait(self):
        return self.process.wait(30)

    def log(self):
        return self._log.read_text() if self._log.exists() else ""

    def states(self):
        return [json.loads(path.read_text()) for path in self.out.glob("*/state.json")]


@pytest.fixture
def ended():
    """List of servers and workers that are killed at the end."""
    made = []
    yield made
    for each in made:
        each.kill()
        each.wait()


@pytest.fixture
def slices(tmp_path):
    """Files of the thick series of a phantom study, lowest slice first."""
    root = cq500(tmp_path / "set", studies=1)
    by_series = {}
    for path in root.rglob("*.dcm"):
        image = dcmread(path, stop_before_pixels=True)
        by_series.setdefault(image.SeriesInstanceUID, {})[float(image.ImagePositionPatient[2])] = path
    return [path for _, path in sorted(min(by_series.values(), key=len).items())]


def test_worker_beside_orthanc(tmp_path, ended, slices):
    pacs = Server(tmp_path / "pacs")
    ended.append(pacs)
    orthanc = Server(
        tmp_path / "orthanc",
        DicomModalities={"pacs": ["PACS", "127.0.0.1", pacs.port]},
        DicomWeb={"Servers": {"web": [f"{pacs.url}/dicom-web/", *LOGIN.values()]}},
    )
    ended.append(orthanc)
    (tmp_path / "login").write_text(":".join(LOGIN.values()))
    options = ["--orthanc", orthanc.url, "--login", tmp_path / "login", "--send", "pacs", "--stow", "web"]
    worker = WorkerProcess(tmp_path, *options)
    ended.append(worker)
    worker.start()

    orthanc.send(*slices[:-4])
    orthanc.kill()  # before the study is stable
    time.sleep(3)
    orthanc.start()
    wait_for(lambda: list(worker.out.glob("*/.work/out")), seconds=PATIENCE)
    worker.kill()  # while it judges
    assert worker.states() == []
    pacs.kill()
    worker.start()
    wait_for(lambda: orthanc.results(), seconds=PATIENCE)
    wait_for(lambda: "HTTP Error" in worker.log())  # the second Orthanc is away
    worker.kill()
    pacs.start()
    worker.start()
    wait_for(lambda: [state["status"] for state in worker.states()] == ["done"], seconds=PATIENCE)
    first = orthanc.results()
    assert {image.Modality for image in first.values()} == {"OT", "SR", "KO"}
    assert {image.Manufacturer for image in first.values()} == {"ich_mil"}
    assert pacs.results().keys() == first.keys()

    orthanc.send(*slices[:-4])  # the same study again
    n_changes = orthanc.ask("/changes?last")["Last"]
    wait_for(lambda: json.loads((worker.out / "orthanc.json").read_text())["since"] >= n_changes)
    assert orthanc.results().keys() == first.keys()

    orthanc.send(*slices[-4:])  # it grows
    wait_for(lambda: [len(state["sent"]) for state in worker.states()] == [2], seconds=PATIENCE)
    wait_for(lambda: [state["status"] for state in worker.states()] == ["done"])
    second = {sop: image for sop, image in orthanc.results().items() if sop not in first}
    (old,), (new,) = (
        [image for image in images.values() if image.Modality == "SR"] for images in (first, second)
    )
    (study,) = new.PredecessorDocumentsSequence
    (series,) = study.ReferencedSeriesSequence
    assert [item.ReferencedSOPInstanceUID for item in series.ReferencedSOPSequence] == [old.SOPInstanceUID]
    assert pacs.results().keys() == first.keys() | second.keys()
    assert worker.log().count(": judged") == 2
    assert "CQ500" not in worker.log()

    (study,) = orthanc.ask("/studies")
    orthanc.delete(f"/studies/{study}")
    assert orthanc.results() == {}
    orthanc.send(*slices)  # the latest results are delivered again
    wait_for(lambda: orthanc.results().keys() == second.keys(), seconds=PATIENCE)
    assert worker.log().count(": judged") == 2


def test_worker_notices_a_new_database(tmp_path, ended, slices):
    (tmp_path / "login").write_text(":".join(LOGIN.values()))
    first = Server(tmp_path / "orthanc")
    ended.append(first)
    worker = WorkerProcess(tmp_path, "--orthanc", first.url, "--login", tmp_path / "login")
    ended.append(worker)
    worker.start()
    first.send(slices[0])
    wait_for(lambda: worker.states(), seconds=PATIENCE)
    worker.kill()
    since = json.loads((worker.out / "orthanc.json").read_text())["since"]
    first.kill()
    shutil.rmtree(tmp_path / "orthanc" / "store")
    first.start()
    first.send(*slices)
    wait_for(lambda: first.ask("/changes?last")["Last"] > since)
    worker.start()
    wait_for(lambda: first.results(), seconds=PATIENCE)
    assert worker.log().count("new database") == 1


def test_worker_beside_storescp(tmp_path, ended, slices):
    (tmp_path / "in").mkdir()
    port = free_port()
    sorting = ["-od", tmp_path / "in", "-su", "study", "+uf"]  # a folder for each study
    server = subprocess.Popen([STORESCP, "-aet", "IN", *sorting, str(port)])
    ended.append(server)
    worker = WorkerProcess(tmp_path, "--folder", tmp_path / "in", "--silence", "3")
    ended.append(worker)
    worker.start()
    subprocess.run([DCMSEND, "-aec", "IN", "127.0.0.1", str(port), *slices], check=True)
    wait_for(lambda: [state["status"] for state in worker.states()] == ["done"], seconds=PATIENCE)
    (state,) = worker.states()
    assert len(state["contents"]) == len(slices)
    (folder,) = (path for path in worker.out.glob("*/*") if path.is_dir())
    assert {"index.html", "scans.csv", "dicom"} <= {path.name for path in folder.iterdir()}
    assert list(folder.rglob("report-1.dcm"))
    with (folder / "scans.csv").open(newline="") as file:
        assert [row["folder"] for row in csv.DictReader(file)] == [""]  # its name is not on the page
    lost = next((tmp_path / "in").glob("*/*")).with_name("cut")
    lost.write_bytes(slices[0].read_bytes()[:200])
    wait_for(lambda: [len(state["sent"]) for state in worker.states()] == [2], seconds=PATIENCE)
    latest = worker.out.glob(f"*/{worker.states()[0]['sent'][1]}/predictions.json")
    (scan,) = json.loads(next(latest).read_text())["scans"]
    files = [line["file"] for line in scan["ledger"] if line["code"] == "unreadable"]
    assert files == [str(lost.relative_to(tmp_path / "in"))]
    assert scan["decision"] != "negative"
    worker.process.terminate()
    assert worker.wait() == 0
