"""Subprocess that runs the model on studies.

It loads the model once (`ModelJudge`) and can be killed at any time without loss. For each study it returns
the paths of the DICOM results, or raises an exception by cause: the study (`StudyFailedError`, permanent),
the process (`JudgeLostError`, a new process may succeed), or the disk (`DiskFullError`, a later attempt may
succeed). The subprocess ends by itself when the node ends, whether cleanly or not.
"""

import json
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from ich_mil.errors import DiskFullError, IchMilError, ModelError
from ich_mil.guard import show_warning
from ich_mil.serve.disk import is_disk_full

_POLL_SECONDS = 0.05
_LOG = "log.txt"
_SPAWN = multiprocessing.get_context("spawn")  # fork would inherit the node's threads and sockets


class Judge(Protocol):
    """Callable that runs the model on one study."""

    def __call__(self, study: Path, out: Path, sent: Sequence[Path], /) -> Sequence[Path]:
        """Read the study below `study` and write all results below `out`.

        Args:
            study: folder of the received objects.
            out: empty folder.
            sent: results of earlier states of the study that the archive has.

        Returns:
            Paths of the DICOM files to send to the archive.

        Raises:
            IchMilError: the study cannot be processed; a retry would fail again.
        """


JudgeFactory = Callable[[], Judge]
"""Creates a judge inside the subprocess; must be picklable. Raises `IchMilError` if the model is unusable."""


@dataclass(frozen=True)
class ModelJudge:
    """Factory of the judge that runs a trained model, with the settings of the same names.

    The model's libraries are imported in the judging process only, which keeps the node small.
    """

    model: Path
    triage: Path | None
    contrast_words: Path | None = None

    def __call__(self) -> Judge:
        """Load the model; returns a judge that writes all results of a study and returns its DICOM files."""
        from ich_mil.commands.steps.pages import Shown
        from ich_mil.commands.steps.predict import Predictor

        predictor = Predictor(self.model, self.triage, self.contrast_words)

        def study(root: Path, out: Path, sent: Sequence[Path], /) -> list[Path]:
            return predictor(root, out, shown=Shown(dicom=True, replaced=tuple(sent)))[-1]

        return study


class StudyFailedError(Exception):
    """The study cannot be processed; the message gives the reason."""


class JudgeLostError(Exception):
    """The process crashed, exceeded its time or memory limit, or raised an unexpected exception."""


class StoppedError(Exception):
    """The node is stopping."""


class JudgeProcess:
    """A judging subprocess, started on first use and restarted after it was lost.

    `seconds` limits the start and each study; above a resident memory of `memory_mb` the process is replaced;
    `stop` is set when the node stops, and the process is then killed.

    Attributes:
        starts: number of processes started so far.
    """

    def __init__(
        self, factory: JudgeFactory, *, seconds: float, memory_mb: float, stop: threading.Event
    ) -> None:
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

    def judge(self, study: Path, out: Path, sent: Sequence[Path] = ()) -> list[Path]:
        """Process one study; arguments and result as for `Judge`, errors as in the module's description.

        Raises:
            ModelError: the model cannot be loaded.
            StoppedError: the node is stopping.
        """
        self.start()
        assert self._pipe is not None, "started"
        try:
            _send(self._pipe, [str(study), str(out), *map(str, sent)])
        except OSError as error:
            self.end()
            raise JudgeLostError("the judging process ended") from error
        kind, value = self._answer()
        if self._is_too_large():
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
                    return _receive(self._pipe)
            except (EOFError, OSError):
                self._process.join(1)
                reason = f"the judging process ended with exit code {self._process.exitcode}"
                break
            if self._stop.is_set():
                break
            if time.monotonic() > until:
                reason = f"the judging process took longer than {self._seconds:g} s"
            elif self._is_too_large():
                reason = f"the judging process took more than {self._memory / 1e6:g} MB"
        self.end()
        if self._stop.is_set():
            raise StoppedError
        raise JudgeLostError(reason)

    def _is_too_large(self) -> bool:
        pid = None if self._process is None else self._process.pid
        return pid is not None and resident_bytes(pid) > self._memory


def resident_bytes(pid: int) -> float:
    """Resident memory of a process, bytes; 0 if it has ended or the value is unavailable."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _send(pipe: Connection, message: Sequence[object]) -> None:
    """Send a message as JSON: the child decodes untrusted files, so the node must not unpickle its data."""
    pipe.send_bytes(json.dumps(message).encode())


def _receive(pipe: Connection) -> Any:
    return json.loads(pipe.recv_bytes())


def _serve(pipe: Connection, factory: JudgeFactory) -> None:
    """Main function of the child: create the judge, then process studies until the pipe closes."""
    warnings.showwarning = show_warning
    os.setpgid(0, 0)  # Ctrl-C reaches the node only; the group can be killed at once
    node = multiprocessing.parent_process()
    assert node is not None, "started by the node"
    threading.Thread(target=_end_with, args=(node,), daemon=True).start()
    try:
        judge = factory()
    except IchMilError as error:
        _send(pipe, ["unusable", str(error)])
        return
    _send(pipe, ["ready", ""])
    while True:
        try:
            study, out, *sent = map(Path, _receive(pipe))
        except EOFError:
            return
        _send(pipe, _judge(judge, study, out, sent))


def _judge(judge: Judge, study: Path, out: Path, sent: Sequence[Path]) -> tuple[str, list[str] | str]:
    """Process one study; its standard output goes to a file beside its results, not to the node's log."""
    try:
        with (out / _LOG).open("w", encoding="utf-8") as log, redirect_stdout(log):
            return "done", [str(path) for path in judge(study, out, sent)]
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
