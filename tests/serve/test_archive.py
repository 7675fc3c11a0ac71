"""The node between dcmtk's storescu and a real archive, Debian's Orthanc, on the loopback.

20 studies go in and each has its result in Orthanc: two of them are sent twice, one has a damaged slice, one
has an object beside its slices that is no CT. A 21st has no CT at all and ends in `failed/`. Where
ICH_MIL_SERVE_MODEL names the folder of a run, that model judges; else a stand-in with the real reader does.
"""

import json
import os
import shutil
import subprocess
import threading
import urllib.request
from pathlib import Path

import pandas as pd
import pytest
from pydicom import dcmread

from ich_mil.serve.judging import ModelJudge
from ich_mil.serve.node import Node
from ich_mil.serve.settings import ArchiveSettings
from ich_mil.synthetic.data_sets import write_cq500
from tests.serve.fakes import free_port, metric, notes, settings_of, wait_for
from tests.serve.judges import capture, load_reader, uid

ORTHANC = shutil.which("Orthanc") or shutil.which("Orthanc", path="/usr/sbin")
STORESCU = shutil.which("storescu", path="/usr/bin")  # pynetdicom has one of its own in the environment
MODEL = os.environ.get("ICH_MIL_SERVE_MODEL")
SIZE = int(os.environ.get("ICH_MIL_SERVE_SIZE", "64"))
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(ORTHANC is None, reason="Orthanc is not installed (Debian: apt-get install orthanc)"),
    pytest.mark.skipif(STORESCU is None, reason="storescu is not installed (Debian: apt-get install dcmtk)"),
]


class Orthanc:
    """An Orthanc of its own, that knows the node."""

    def __init__(self, folder, node_port):
        self.port, self.http_port = free_port(), free_port()
        config = folder / "orthanc.json"
        config.write_text(
            json.dumps(
                {
                    "Name": "test",
                    "StorageDirectory": str(folder / "store"),
                    "IndexDirectory": str(folder / "store"),
                    "HttpPort": self.http_port,
                    "DicomPort": self.port,
                    "DicomAet": "ORTHANC",
                    "RemoteAccessAllowed": False,
                    "AuthenticationEnabled": False,
                    "DicomModalities": {"node": ["NODE", "127.0.0.1", node_port]},
                    "Plugins": [],
                }
            )
        )
        self._log = (folder / "orthanc.log").open("w")
        self._process = subprocess.Popen([ORTHANC, config], stdout=self._log, stderr=self._log)
        wait_for(self._answers, seconds=60)

    def _answers(self):
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            return bool(self.ask("system"))
        except OSError:
            return False

    def ask(self, page, body=None):
        """What its REST API says."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}/{page}", data=body)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def results(self):
        """StudyInstanceUID -> SOP instance UIDs of what is no CT slice of it."""
        found = {}
        for study in self.ask("studies?expand"):
            sops = []
            for series in study["Series"]:
                about = self.ask(f"series/{series}")
                if about["MainDicomTags"].get("Modality") != "CT":
                    sops += [
                        self.ask(f"instances/{one}")["MainDicomTags"]["SOPInstanceUID"]
                        for one in about["Instances"]
                    ]
            found[study["MainDicomTags"]["StudyInstanceUID"]] = sops
        return found

    def stop(self):
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


def store(port, called, *paths):
    """Send files with dcmtk's storescu; `CalledProcessError` if one is not taken."""
    command = [STORESCU, "-aet", "SCANNER", "-aec", called, "+sd", "+r", "-R", "127.0.0.1", str(port), *paths]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.fixture
def studies(tmp_path):
    """20 studies, by folder."""
    write_cq500(tmp_path / "set", n_studies=20, seed=0, size=SIZE, n_jobs=1)
    by_series = {}
    for path in sorted((tmp_path / "set").rglob("*.dcm")):
        image = dcmread(path, specific_tags=["StudyInstanceUID", "SeriesInstanceUID"])
        by_series.setdefault(str(image.StudyInstanceUID), {}).setdefault(image.SeriesInstanceUID, []).append(
            path
        )
    folders = {}
    for number, (study, every_series) in enumerate(by_series.items()):
        folders[study] = tmp_path / "in" / f"{number:02}"
        folders[study].mkdir(parents=True)
        for path in min(every_series.values(), key=len):  # the thick one will do
            shutil.copy(path, folders[study] / f"{len(list(folders[study].iterdir()))}.dcm")
    assert len(folders) == 20
    return folders


def test_20_studies_in_20_results_out(tmp_path, studies):
    node_port = free_port()
    orthanc = Orthanc(tmp_path, node_port)
    node = Node(
        settings_of(
            tmp_path,
            archive=ArchiveSettings("ORTHANC", "127.0.0.1", orthanc.port),
            senders=["SCANNER", "ORTHANC"],
            port=node_port,
            silence_seconds=2.0,
        ),
        ModelJudge(Path(MODEL), None) if MODEL else load_reader,
        stop=threading.Event(),
    )
    try:
        node.start()
        _send_and_look(tmp_path, studies, orthanc, node)
    finally:
        node.stop()
        orthanc.stop()


def _send_and_look(tmp_path, studies, orthanc, node):
    uids, folders = list(studies), list(studies.values())
    damaged = sorted(folders[2].glob("*.dcm"))[3]
    image = dcmread(damaged)
    image.PixelData = image.PixelData[:1000]  # the header says more
    image.save_as(damaged)
    beside = dcmread(folders[3] / "0.dcm")
    capture(beside, ["beside"], folders[3] / "beside.dcm")
    no_ct = tmp_path / "in" / "no-ct"
    no_ct.mkdir()
    beside.StudyInstanceUID = uid("no ct")
    capture(beside, ["alone"], no_ct / "alone.dcm")

    for folder in folders[4:12]:  # one association a study
        store(node.listener.port, "NODE", folder)
    store(node.listener.port, "NODE", *folders[:4], no_ct)  # several studies in one
    for folder in folders[:2]:
        store(node.listener.port, "NODE", folder)  # twice
    for folder in folders[12:]:
        store(orthanc.port, "ORTHANC", folder)  # and the archive itself sends studies on
    sent = tmp_path / "spool" / "sent"
    seconds = 600 if MODEL else 90
    wait_for(lambda: len(notes(sent)) == 12, seconds=seconds)
    n_back = sum(len(sops) for sops in orthanc.results().values())  # our results come back with their studies
    assert n_back >= 12
    for study in orthanc.ask("studies"):
        answer = orthanc.ask("modalities/node/store", study.encode())
        assert answer["FailedInstancesCount"] == 0

    failed = tmp_path / "spool" / "failed"
    wait_for(lambda: notes(failed) and len(notes(sent)) + len(notes(failed)) >= 21, seconds=seconds)
    assert {note["study_uid"]: note["reason"] for note in notes(failed)}.keys() == {uid("no ct")}
    assert {note["study_uid"] for note in notes(sent)} == set(uids)
    web = node.status.port
    wait_for(lambda: metric(web, "studies_queued") + metric(web, "deliveries_waiting") == 0, seconds=60)

    results = orthanc.results()
    assert set(results) == set(uids)
    n_sent = sum(len(sops) for sops in results.values())
    assert all(results.values())
    assert metric(web, "results_sent_total") == n_sent
    if not MODEL:
        assert n_sent == metric(web, "studies_judged_total") == 20

    (note,) = notes(failed)
    assert note["study_uid"] == uid("no ct")
    assert "none of its 1 files is a CT slice" in note["reason"]
    codes = {}
    for delivery in notes(sent):
        ledger = pd.read_csv(next((tmp_path / "spool" / "results" / delivery["name"]).rglob("ledger.csv")))
        codes[delivery["study_uid"]] = set(ledger.code)
    assert "unreadable" in codes[uids[2]]
    assert "not-ct" in codes[uids[3]]
    assert not any(codes[one] & {"unreadable", "not-ct"} for one in uids[4:])
    n_twice = sum(len(list(folder.iterdir())) for folder in folders[:2])
    assert metric(web, "objects_repeated_total") == n_twice + n_back
    n_objects = sum(len(list(folder.iterdir())) for folder in folders) + 1
    assert metric(web, "objects_received_total") == n_objects
    print(f"node: {metric(web, 'resident_bytes') / 1e6:.0f} MB after {n_objects} objects")
