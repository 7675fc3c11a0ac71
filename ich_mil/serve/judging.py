"""The process that judges: it loads the model once, and may be killed at any time without loss.

In: a callable that makes the judge. Out: for each study the DICOM files it wrote, or what went wrong, told
apart by whose fault it is: the study's (`StudyFailedError`), the process's (`JudgeLostError`), which a new
process may cure, or the disk's (`DiskFullError`), which time may. The child ends by itself when the node
does, however that ended.
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
_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy the node's threads and sockets


class Judge(Protocol):
    """Judges one study."""

    def __call__(self, study: Path, out: Path, /) -> Sequence[Path]:
        """Read the study below `study`, write all results below `out`.

        Returns:
            The DICOM files that go to the archive.

        Raises:
            IchMilError: the study cannot be judged, and will not be if tried again.
        """


JudgeFactory = Callable[[], Judge]
"""Makes a judge in its process; can be pickled. Raises `IchMilError` where the model cannot be used."""


class StudyFailedError(Exception):
    """The study cannot be judged; the text says why."""


class JudgeLostError(Exception):
    """The process crashed, took too long or too much memory, or raised what it should not."""


class StoppedError(Exception):
    """The node stops."""


class JudgeProcess:
    """One judging process, started when it is first needed and again when it was lost.

    Attributes:
        starts: processes started so far.
    """

    def __init__(
        self, factory: JudgeFactory, *, seconds: float, memory_mb: float, stop: threading.Event
    ) -> None:
        """Nothing is started yet.

        Args:
            factory: makes the judge.
            seconds: a study may take, and the start likewise.
            memory_mb: resident memory above which the process is replaced.
            stop: set when the node stops; then the process is killed.
        """
        self._factory, self._seconds, self._memory = factory, seconds, memory_mb * 1e6
        self._stop = stop
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self.starts = 0

    def start(self) -> None:
        """Load the model, unless it is loaded.

        Raises:
            ModelError: it cannot be loaded, or takes too long or too much memory.
            StoppedError: the node stops.
        """
        if self._process is not None and self._process.is_alive():
            return
        self.end()
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, self._factory), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the child is the end of the pipe
        self.starts += 1
        try:
            kind, value = self._answer()
        except JudgeLostError as error:  # no study had a part in it
            raise ModelError(f"the judging process does not start: {error}") from error
        if kind != "ready":
            self.end()
            raise ModelError(str(value))

    def judge(self, study: Path, out: Path) -> list[Path]:
        """Judge one study; the arguments and result are those of `Judge`.

        Raises:
            StudyFailedError: the study cannot be judged.
            JudgeLostError: the process is gone; try again.
            DiskFullError: the disk is full; try again when there is room.
            ModelError: the model cannot be loaded.
            StoppedError: the node stops.
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
            self.end()  # between two studies: nothing is lost by it
        if kind == "failed":
            raise StudyFailedError(value)
        if kind == "full":
            raise DiskFullError(value)
        if kind == "broken":
            self.end()  # after an error nobody thought of
            raise JudgeLostError(value)
        return [Path(path) for path in value]

    def end(self) -> None:
        """Kill the process and all it started."""
        if self._process is not None and self._process.pid is not None:
            with suppress(ProcessLookupError, PermissionError):  # it leads a group of its own, once it runs
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join()
            self._process.close()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def _answer(self) -> tuple[str, list[str] | str]:
        """What the child says next."""
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
        """Resident bytes of the child; 0 where it is gone, or the system does not say."""
        if self._process is None or self._process.pid is None:
            return 0.0
        return resident_bytes(self._process.pid)


def resident_bytes(pid: int) -> float:
    """Resident bytes of a process; 0 where it is gone, or the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _say(pipe: Connection, message: Sequence[object]) -> None:
    """As JSON: the child decodes files of strangers, so the node unpickles nothing of it."""
    pipe.send_bytes(json.dumps(message).encode())


def _hear(pipe: Connection) -> Any:
    return json.loads(pipe.recv_bytes())


def _serve(pipe: Connection, factory: JudgeFactory) -> None:
    """What the child does: make the judge, then one study after the other until the pipe ends."""
    os.setpgid(0, 0)  # Ctrl-C reaches the node alone, and all that a study starts can be killed at once
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
    """One study; what it prints is kept beside its results, not in the node's log."""
    try:
        with (out / _LOG).open("w", encoding="utf-8") as log, redirect_stdout(log):
            return "done", [str(path) for path in judge(study, out)]
    except Exception as error:  # what nobody thought of must not end the node, nor lose the study
        if is_disk_full(error):
            return "full", f"the disk is full while a study is judged: {error}"
        if isinstance(error, IchMilError):
            return "failed", str(error)
        return "broken", f"{type(error).__name__}: {error}"


def _end_with(node: multiprocessing.process.BaseProcess) -> None:
    """End this process and its group when the node has ended."""
    node.join()
    os.killpg(0, signal.SIGKILL)
