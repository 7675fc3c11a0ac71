"""A node in its own process: killed while it receives, judges and sends, and stopped by a signal."""

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pydicom import dcmread

from tests.serve.fakes import alive, free_port, look, metric, notes, send, wait_for
from tests.serve.judges import ct_slice, uid

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


class NodeProcess:
    """A node started from a file of settings."""

    def __init__(self, folder, archive_port):
        self.spool, self.calls = folder / "spool", folder / "calls"
        self.port, self.http_port = free_port(), free_port()
        self._file, self._log = folder / "serve.json", folder / "log"
        self._file.write_text(
            json.dumps(
                {
                    "archive": archive_port,
                    "port": self.port,
                    "http_port": self.http_port,
                    "silence_seconds": 1.0,
                    "retry_seconds": 0.5,
                    "longest_retry_seconds": 1.0,
                }
            )
        )
        self.process = None

    def start(self, *, seconds=0.0):
        command = [sys.executable, "-m", "tests.serve.fakes", self._file, str(seconds), self.calls]
        with self._log.open("a") as log:
            n_starts = self.log().count("listens")
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        wait_for(lambda: self.process.poll() is None and self.log().count("listens") > n_starts)

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        return self.process.wait(60)

    def log(self):
        return self._log.read_text()

    def objects(self):
        """SOP instance UIDs that are in the spool."""
        return {str(dcmread(path).SOPInstanceUID) for path in self.spool.glob("studies/*/objects/*.dcm")}

    def judged(self):
        """(study, slices, process) of each study that a judge began with."""
        if not self.calls.exists():
            return []
        return [
            (line.split()[0], *map(int, line.split()[1:])) for line in self.calls.read_text().splitlines()
        ]


@pytest.fixture
def node(tmp_path, archive):
    made = NodeProcess(tmp_path, archive.port)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


def killing(node, images, first, last):
    """The images in turn; the node is killed at some moment after it was given `first` and before `last`."""
    killer = threading.Thread(target=node.kill)
    for index, image in enumerate(images):
        if index == first:
            killer.start()
        if index == last:
            killer.join()
        yield image


def test_killed_while_it_receives_nothing_that_was_answered_is_lost(node, archive):
    images = [ct_slice(uid(number), index) for number in range(3) for index in range(60)]
    left = list(images)
    answered = set()
    for first in (5, 40):
        node.start()
        statuses = send(node.port, killing(node, left, first, first + 30), patience=10)
        assert -1 in statuses
        new = {image.SOPInstanceUID for image, status in zip(left, statuses, strict=True) if status == 0}
        assert new
        answered |= new
        assert answered <= node.objects()
        left = [image for image in left if image.SOPInstanceUID not in answered]
    node.start()
    assert not list((node.spool / "incoming").iterdir())
    assert set(send(node.port, left)) <= {0}
    wait_for(lambda: {(study, n) for study, n, _ in node.judged()} >= {(uid(i), 60) for i in range(3)})
    # a study judged before it was whole is sent twice: the number sent does not say what still comes
    port = node.http_port
    wait_for(lambda: metric(port, "studies_queued") + metric(port, "studies_judging") == 0)
    wait_for(lambda: not notes(node.spool / "outbox"))
    assert node.objects() == {image.SOPInstanceUID for image in images}
    sent = notes(node.spool / "sent")
    assert {note["study_uid"] for note in sent} == {uid(i) for i in range(3)}
    assert len(set(archive.received)) == sum(note["error"] == "" for note in sent)


def test_killed_while_it_judges_or_sends_it_begins_again(node, archive):
    archive.status = 0xA700
    node.start(seconds=30)
    assert send(node.port, [ct_slice(uid(1), index) for index in range(3)]) == [0, 0, 0]
    wait_for(lambda: len(node.judged()) == 1)
    ((_, _, child),) = node.judged()
    assert alive(child)
    node.kill()
    wait_for(lambda: not alive(child))  # the judging process does not outlive its node
    assert list((node.spool / "work").iterdir())

    node.start()
    wait_for(lambda: metric(node.http_port, "sends_failed_total") >= 1)
    assert [(study, n) for study, n, _ in node.judged()] == [(uid(1), 3)] * 2
    node.kill()
    assert len(notes(node.spool / "outbox")) == 1

    archive.status = 0
    node.start()
    wait_for(lambda: len(archive.received) == 1)
    wait_for(lambda: not notes(node.spool / "outbox"))
    assert len(node.judged()) == 2
    assert look(node.http_port, "health")[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_stop_leaves_no_half_file(node, number):
    node.start(seconds=30)
    assert send(node.port, [ct_slice(uid(1), index) for index in range(3)]) == [0, 0, 0]
    wait_for(lambda: len(node.judged()) == 1)
    ((_, _, child),) = node.judged()
    many = [ct_slice(uid(2), index) for index in range(2000)]
    sender = threading.Thread(target=lambda: send(node.port, many, patience=3))
    sender.start()
    wait_for(lambda: len(node.objects()) > 10)
    assert node.kill(number) == 0
    sender.join()
    assert not alive(child)
    names = {path.name for path in node.spool.iterdir()}
    assert names == {".lock", "failed", "outbox", "results", "sent", "studies"}
    assert not list(node.spool.rglob("*.tmp"))
    assert "Traceback" not in node.log()
    assert "Secret" not in node.log()
    assert all(
        re.match(r"20\d\d-\d\d-\d\dT[\d:]{8}[+-]\d{4} [A-Z]+ ", line) for line in node.log().splitlines()
    )
