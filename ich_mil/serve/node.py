"""DICOM node: listener, spool, workers, sender and status server, from start to a clean stop.

C-STORE -> Listener -> Spool -> Worker (JudgeProcess) -> Outbox -> Sender -> C-STORE or STOW-RS
"""

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO, TextIOWrapper
from types import FrameType
from typing import Any

from ich_mil.progress import PrintableFormatter
from ich_mil.serve.judging import JudgeFactory, JudgeProcess, StoppedError, resident_bytes
from ich_mil.serve.listener import IDLE_SECONDS, Listener
from ich_mil.serve.sender import Sender
from ich_mil.serve.settings import ServeSettings
from ich_mil.serve.spool import Spool
from ich_mil.serve.status import ADDRESS, Metrics, StatusServer
from ich_mil.serve.worker import Worker

_LOG = logging.getLogger(__name__)

CLEAN_SECONDS = 120.0
"""Interval between cleanings of the spool."""
GRACE_SECONDS = 3.0
"""Time for open connections to end when the node stops."""
STOP_SECONDS = 40.0
"""Time for each thread to end: a send may be waiting for a response of the archive."""


class Node:
    """All components of `serve`; run between `start` and `stop`."""

    def __init__(self, settings: ServeSettings, judge: JudgeFactory, *, stop: threading.Event) -> None:
        """Open the spool and create the components; nothing is started.

        Args:
            settings: settings of the node.
            judge: creates the judge in its process.
            stop: event that ends the work of all threads; call `stop` afterwards.

        Raises:
            DataError: the spool cannot be used.
        """
        self.settings = settings
        self.metrics = Metrics()
        self._stop, self._began = stop, time.monotonic()
        self.spool = Spool(settings)
        self.outbox = self.spool.outbox
        self._processes = [
            JudgeProcess(judge, seconds=settings.study_seconds, memory_mb=settings.judge_mb, stop=self._stop)
            for _ in range(settings.workers)
        ]
        lost: Counter[str] = Counter()
        self.workers = [
            Worker(self.spool, process, self.metrics, lost=lost, stop=self._stop)
            for process in self._processes
        ]
        self.sender = Sender(self.outbox, settings, self.metrics, lost=self.spool.lost, stop=self._stop)
        self.listener = Listener(settings, self.spool, self.metrics)
        self.status = StatusServer(settings.http_port, health=self.health, metrics=self.metrics_text)
        cleaner = threading.Thread(target=self._clean, name="cleaner", daemon=True)
        self._threads = (*self.workers, self.sender, cleaner)
        self._clean_problem = ""
        self._is_up = False

    def start(self) -> None:
        """Load the model, then start listening.

        Raises:
            ConfigError: a port is taken.
            ModelError: the model cannot be loaded.
            StoppedError: the node is stopped before the model is loaded.
        """
        self.status.start()
        for process in self._processes:
            process.start()
        self.listener.start()
        for thread in self._threads:
            thread.start()
        self._is_up = True

    def stop(self) -> None:
        """Stop listening and end all threads; studies in progress return to the queue."""
        self.listener.stop(grace=GRACE_SECONDS)
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(STOP_SECONDS)
        for process in self._processes:
            process.end()
        self.status.stop()
        self.spool.close()

    def health(self) -> dict[str, Any]:
        """Values of `/health`; status `starting` until the model is loaded and all threads run."""
        counts = self.spool.counts()
        waiting = self.outbox.waiting()
        problems = [worker.problem for worker in self.workers if worker.problem]
        dead = [thread for thread in self._threads if self._is_up and not thread.is_alive()]
        problems += [f"the {thread.name} thread does not run" for thread in dead]
        archive = self.settings.archive.name
        problems += sorted({f"{archive}: {delivery.error}" for delivery in waiting if delivery.error})
        problems += filter(None, (self.spool.problem(), self.sender.problem, self._clean_problem))
        return {
            "status": "failing" if problems else "ok" if self._is_up else "starting",
            "problems": problems,
            "seconds": round(time.monotonic() - self._began, 1),
            "studies_queued": counts["queued"],
            "studies_judging": counts["judging"],
            "studies_failed": counts["failed"],
            "deliveries_waiting": len(waiting),
        }

    def metrics_text(self) -> str:
        """Text of `/metrics`."""
        counts = self.spool.counts()
        gauges = {
            "studies_queued": ("studies being received or waiting to be judged", counts["queued"]),
            "studies_judging": ("studies being judged", counts["judging"]),
            "studies_failed": ("notes in failed/", counts["failed"]),
            "deliveries_waiting": ("studies whose results wait for the archive", len(self.outbox.waiting())),
            "judge_starts": ("judging processes started", sum(p.starts for p in self._processes)),
            "spool_bytes": ("bytes of the spool", counts["bytes"]),
            "spool_free_bytes": ("bytes free on its disk", counts["free_bytes"]),
            "resident_bytes": (
                "memory of the node, without its judging processes",
                resident_bytes(os.getpid()),
            ),
        }
        return self.metrics.text(gauges)

    def _clean(self) -> None:
        while not self._stop.wait(CLEAN_SECONDS):
            try:
                self.spool.clean(stale=2 * IDLE_SECONDS)
                self._clean_problem = ""
            except Exception as error:  # no error may end the cleaning thread
                self._clean_problem = f"the spool cannot be cleaned: {type(error).__name__}: {error}"
                _LOG.error(self._clean_problem)


def serve(settings: ServeSettings, judge: JudgeFactory) -> None:
    """Run a node until SIGTERM or SIGINT.

    Raises:
        ModelError: the model cannot be loaded.
        DataError: the spool cannot be used.
        ConfigError: a port is taken.
    """
    return_freed_memory()
    stop = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with log_to_output():
            node = Node(settings, judge, stop=stop)
            try:
                node.start()
                _LOG.info(
                    "%s listens on %s:%d, accepts studies from %s, sends to %s; status on http://%s:%d/health",
                    *(settings.ae_title, settings.host, node.listener.port, ", ".join(settings.senders)),
                    *(settings.archive.name, ADDRESS, node.status.port),
                )
                stop.wait()
                _LOG.info("stopping: connections are closed, studies in progress return to the queue")
            except StoppedError:
                pass  # stopped while the model was loading
            finally:
                node.stop()
            _LOG.info("stopped")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def return_freed_memory() -> None:
    """Let glibc, where it is used, return freed memory to the kernel, from 1 MB on.

    By default the limit rises to 64 MB, which the arena of each thread then keeps.
    """
    trim_threshold, mmap_threshold, mmap_max = -1, -3, -4  # malloc.h: M_TRIM_THRESHOLD, ...
    with suppress(OSError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(trim_threshold, 2**20)
        libc.mallopt(mmap_threshold, 2**20)
        libc.mallopt(mmap_max, 65536)


class _OutputHandler(logging.StreamHandler):
    """Log to standard output, one line with a time stamp for each record.

    A line that cannot be written, because the disk is full or the reader has closed the pipe, is dropped. The
    buffer of sys.stdout is bypassed: what is left in it would fail the next flush, as at a process start.
    """

    def __init__(self) -> None:
        raw: Any = FileIO(sys.stdout.fileno(), "w", closefd=False)
        super().__init__(TextIOWrapper(raw, sys.stdout.encoding, "backslashreplace", write_through=True))
        self.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a name of logging
        """Drop the line."""


@contextmanager
def log_to_output() -> Iterator[None]:
    """Write the log of the node to standard output within the block."""
    log, handler = logging.getLogger("ich_mil.serve"), _OutputHandler()
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
