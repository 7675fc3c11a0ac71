"""Subprocess that runs the model on studies.

It loads the model once and can be killed at any time without loss. In: a factory of the `Judge`, the callable
that runs the model on one study. Out: for each study the paths of its DICOM results, or an exception by
cause: the study (`StudyFailedError`, permanent), the process (`JudgeLostError`, a new process may succeed),
or the disk (`DiskFullError`, a later attempt may succeed). The subprocess ends by itself when the node ends,
whether cleanly or not.
"""

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from ich_mil.errors import DiskFullError, IchMilError, ModelError
from ich_mil.serve.disk import is_disk_full

_POLL_SECONDS = 0.05
_LOG = "log.txt"
_SPAWN = multiprocessing.get_context("spawn")  # fork would inherit the node's threads and sockets


class Judge(Protocol):
    """Callable that runs the model on one study."""

    def __call__(self, study: Path, out: Path, /) -> Sequence[Path]:
        """Read the study below `study` and write all results below `out`.

        Returns:
            Paths of the DICOM files to send to the archive.

        Raises:
            IchMilError: the study cannot be processed; a retry would fail again.
        """


JudgeFactory = Callable[[], Judge]
"""Creates a judge inside the subprocess; must be picklable. Raises `IchMilError` if the model is unusable."""


class StudyFailedError(Exception):
    """The study cannot be processed; the message gives the reason."""


class JudgeLostError(Exception):
    """The process crashed, exceeded its time or memory limit, or raised an unexpected exception."""


class StoppedError(Exception):
    """The node is stopping."""


class JudgeProcess:
    """A judging subprocess, started on first use and restarted after it was lost.

    Attributes:
        starts: number of processes started so far.
    """

    def __init__(
        self, factory: JudgeFactory, *, seconds: float, memory_mb: float, stop: threading.Event
    ) -> None:
        """Set the limits; no process is started.

        Args:
            factory: creates the judge.
            seconds: time limit for a study, and for the start.
            memory_mb: resident memory above which the process is replaced, MB.
            stop: set when the node stops; the process is then killed.
        """
        self._factory, self._seconds, self._memory = factory, seconds, memory_mb * 1e6
        self._stop = stop
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self.starts = 0

    def start(self) -> None:
        """Start the process and load the model, unless it is running.

        Raises:
            ModelError: the model cannot be loaded, or the start exceeds the time or memory limit.
            StoppedError: the node is stopping.
        """
        if self._process is not None and self._process.is_alive():
            return
        self.end()
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, self._factory), daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe closes when the child ends
        self.starts += 1
        try:
            kind, value = self._answer()
        except JudgeLostError as error:  # not caused by a study
            raise ModelError(f"the judging process does not start: {error}") from error
        if kind != "ready":
            self.end()
            raise ModelError(str(value))

    def judge(self, study: Path, out: Path) -> list[Path]:
        """Process one study; arguments and result as for `Judge`.

        Raises:
            StudyFailedError: the study cannot be processed.
            JudgeLostError: the process was lost; try again.
            DiskFullError: the disk is full; try again when there is room.
            ModelError: the model cannot be loaded.
            StoppedError: the node is stopping.
        """
        self.start()
        assert self._pipe is not None, "started"
        try:
            _say(self._pipe, [str(study), str(out)])
        except OSError as error:
            self.end()
            raise JudgeLostError("the judging process ended") from error
        kind, value = self._answer()
        if self._resident() > self._memory:
            self.end()  # between studies, so no work is lost
        if kind == "failed":
            raise StudyFailedError(value)
        if kind == "full":
            raise DiskFullError(value)
        if kind == "broken":
            self.end()  # its state is undefined after an unexpected error
            raise JudgeLostError(value)
        return [Path(path) for path in value]

    def end(self) -> None:
        """Kill the process and its process group."""
        if self._process is not None and self._process.pid is not None:
            with suppress(ProcessLookupError, PermissionError):  # has its own group once started
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join()
            self._process.close()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def _answer(self) -> tuple[str, list[str] | str]:
        """Wait for the next message of the child, within the time and memory limits."""
        assert self._pipe is not None, "started"
        assert self._process is not None, "started"
        until = time.monotonic() + self._seconds
        reason = ""
        while not reason:
            try:
                if self._pipe.poll(_POLL_SECONDS):
                    kind, value = _hear(self._pipe)
                    return kind, value
            except (EOFError, OSError):
                self._process.join(1)
                reason = f"the judging process ended with exit code {self._process.exitcode}"
                break
            if self._stop.is_set():
                break
            if time.monotonic() > until:
                reason = f"the judging process took longer than {self._seconds:g} s"
            elif self._resident() > self._memory:
                reason = f"the judging process took more than {self._memory / 1e6:g} MB"
        self.end()
        if self._stop.is_set():
            raise StoppedError
        raise JudgeLostError(reason)

    def _resident(self) -> float:
        """Resident memory of the child, bytes; 0 if it has ended or the value is unavailable."""
        if self._process is None or self._process.pid is None:
            return 0.0
        return resident_bytes(self._process.pid)


def resident_bytes(pid: int) -> float:
    """Resident memory of a process, bytes; 0 if it has ended or the value is unavailable."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _say(pipe: Connection, message: Sequence[object]) -> None:
    """Send a message as JSON: the child decodes untrusted files, so the node must not unpickle its data."""
    pipe.send_bytes(json.dumps(message).encode())


def _hear(pipe: Connection) -> Any:
    return json.loads(pipe.recv_bytes())


def _serve(pipe: Connection, factory: JudgeFactory) -> None:
    """Main function of the child: create the judge, then process studies until the pipe closes."""
    os.setpgid(0, 0)  # Ctrl-C reaches the node only; the group can be killed at once
    node = multiprocessing.parent_process()
    assert node is not None, "started by the node"
    threading.Thread(target=_end_with, args=(node,), daemon=True).start()
    try:
        judge = factory()
    except IchMilError as error:
        _say(pipe, ["unusable", str(error)])
        return
    _say(pipe, ["ready", ""])
    while True:
        try:
            study, out = _hear(pipe)
        except EOFError:
            return
        _say(pipe, _judge(judge, Path(study), Path(out)))


def _judge(judge: Judge, study: Path, out: Path) -> tuple[str, list[str] | str]:
    """Process one study; its standard output goes to a file beside its results, not to the node's log."""
    try:
        with (out / _LOG).open("w", encoding="utf-8") as log, redirect_stdout(log):
            return "done", [str(path) for path in judge(study, out)]
    except Exception as error:  # unexpected errors must neither end the node nor lose the study
        if is_disk_full(error):
            return "full", f"the disk is full while a study is judged: {error}"
        if isinstance(error, IchMilError):
            return "failed", str(error)
        return "broken", f"{type(error).__name__}: {error}"


def _end_with(node: multiprocessing.process.BaseProcess) -> None:
    """Kill this process and its group when the node ends."""
    node.join()
    os.killpg(0, signal.SIGKILL)
