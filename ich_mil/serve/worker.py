"""Worker: judges the complete studies of a source and hands their results back.

    OUT/<key>/state.json   state of a study; the key is a digest of its StudyInstanceUID
    OUT/<key>/<digest>/    results for the files with that digest: page, dicom/, predictions, ledger
    OUT/ledger.csv         files of no study (`FolderSource`); OUT/orthanc.json: place in the feed (`Orthanc`)

A result folder is renamed into place when it is complete, and each step is recorded after it is done. A
killed worker repeats at most its last step; the UIDs of DICOM results are a function of their content. A lock
per study keeps several workers on one OUT apart.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from filelock import FileLock, Timeout

from ich_mil.errors import DataError, ProcessError
from ich_mil.files import digest, write_json
from ich_mil.serve.judging import run_in_child

LOG = logging.getLogger("ich_mil.serve")
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0  # seconds after a failed step, doubled after each further failure
ATTEMPTS = 2  # at a study whose judging process is lost
LOST = "lost:"  # before the digest of a file that may be of the study
LEAST_FREE = 256e6  # bytes on the disk, below which no study is judged


class Study(NamedTuple):
    """A complete study."""

    key: str  # digest of its UID
    signature: str  # digest that changes with each new or changed file
    fetch: Callable[[Path], None]  # copies its files into a folder, or links them


class Source(Protocol):
    """Origin of studies and destination of results. `OSError`: a later call may succeed."""

    def waiting(self) -> Sequence[str]:
        """Names of the studies that may be complete and are not settled."""

    def study(self, name: str) -> Study | None:
        """One of these studies; None if it is not complete or no longer there."""

    def settle(self, name: str) -> None:
        """Record that a study needs no work until it changes."""

    def deliver(self, results: Sequence[Path]) -> None:
        """Hand over the DICOM results of a study."""


@dataclass
class _State:
    """Content of `state.json`."""

    status: str = ""  # 'judged', after the delivery of the results 'done'; or 'failed'; '' for a new study
    reason: str = ""  # of a failure
    signature: str = ""  # of the files seen last
    contents: list[str] = field(default_factory=list)  # SHA-256 of each judged file, sorted
    sent: list[str] = field(default_factory=list)  # result folders of which any part was delivered

    @property
    def digest(self) -> str:
        """Name of the result folder."""
        return digest(*map(str.encode, self.contents))


class Worker:
    """Judges studies of `source` by `judge` within `seconds`; results and states are in the folder `out`."""

    def __init__(self, source: Source, out: Path, judge: Callable[..., None], *, seconds: float) -> None:
        self._source, self._out, self._judge, self._seconds = source, out, judge, seconds
        self._pauses: dict[str, tuple[float, float, str]] = {}  # name: due time, pause, reason
        self.counts = Counter[str]()  # of studies, and the time of the last success (`start_metrics`)
        out.mkdir(mode=0o700, parents=True, exist_ok=True)  # DICOM results name the patient

    def poll(self) -> None:
        """Finish each waiting study that is due. `ModelError`: the model cannot be loaded."""
        names: Sequence[str] = []
        if self._is_due(""):
            try:
                names = self._source.waiting()
                self._pauses.pop("", None)
                self.counts["studies_waiting"] = len(names)
            except (OSError, DataError) as error:
                self._postpone("", "source of the studies", error)
        for name in filter(self._is_due, names):
            label = name
            try:
                if (study := self._source.study(name)) is None:
                    continue
                label, home = study.key, self._out / study.key
                home.mkdir(exist_ok=True)
                with FileLock(home / ".lock", timeout=0):
                    self._finish(study, home)
                self._source.settle(name)
                self._pauses.pop(name, None)
            except (OSError, DataError) as error:
                self._postpone(name, label, error)

    def _is_due(self, name: str) -> bool:
        return name not in self._pauses or time.monotonic() >= self._pauses[name][0]

    def _postpone(self, name: str, label: str, error: Exception) -> None:
        """Try again later. A reason is logged once, without paths, which can name patients."""
        _, pause, logged = self._pauses.get(name, (0.0, FIRST_PAUSE / 2, ""))
        cause = error.__cause__ if isinstance(error, DataError) else error
        reason = getattr(cause, "strerror", None) or (str(cause) if isinstance(cause, OSError) else "error")
        if reason != logged and not isinstance(error, Timeout):  # Timeout: another worker has the study
            LOG.error("%s: %s; to be tried again", label, reason)
        pause = min(2 * pause, LONGEST_PAUSE)
        self._pauses[name] = time.monotonic() + pause, pause, reason

    def _finish(self, study: Study, home: Path) -> None:
        """Judge a study if its files are new, and deliver its results if they are not delivered yet."""
        file, work = home / "state.json", home / ".work"
        try:
            state = _State(**json.loads(file.read_bytes())) if file.exists() else _State()
            is_there = (home / state.digest).is_dir()
        except (ValueError, TypeError, AttributeError):
            LOG.warning("%s: its state.json is damaged; the study is repeated", study.key)
            state, is_there = _State(), False
        if state.status == "judged" and not is_there:
            state.status = ""
        if not state.status or state.signature != study.signature:
            shutil.rmtree(work, ignore_errors=True)  # of a killed worker
            try:
                self._update(study, home, state, work)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            write_json(file, asdict(state))
        if state.status == "judged":
            if state.digest not in state.sent:
                state.sent.append(state.digest)
                write_json(file, asdict(state))
            self._source.deliver(sorted((home / state.digest).rglob("*.dcm")))
            state.status = "done"
            write_json(file, asdict(state))

    def _update(self, study: Study, home: Path, state: _State, work: Path) -> None:
        """Judge the files of a study unless they are known. Sets `state`, and creates the result folder."""
        if shutil.disk_usage(home).free < LEAST_FREE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        files, out = work / "study", work / "out"
        files.mkdir(parents=True)
        study.fetch(files)
        contents = sorted({_sha256(path) for path in files.rglob("*") if path.is_symlink() or path.is_file()})
        state.signature = study.signature
        new, old = set(contents), set(state.contents)
        if state.status and new <= old and not any(content.startswith(LOST) for content in old - new):
            if new == old and state.status == "done" and (home / state.digest).is_dir():
                state.status = "judged"  # it was sent again, perhaps after it was deleted with its results
            return  # otherwise, only some files are gone
        if state.status == "judged" and state.digest not in state.sent:
            shutil.rmtree(home / state.digest)
        state.contents, state.status = contents, "judged"
        results = home / state.digest  # there already if a worker was killed before it recorded them
        replaced = [path for name in state.sent for path in sorted((home / name).rglob("*.dcm"))]
        try:
            if not contents:
                raise DataError("no CT image")
            if not results.is_dir():
                self._attempt(partial(self._judge, files, out, replaced), out)
                out.rename(results)
            state.reason, self.counts["last_success_seconds"] = "", int(time.time())
            LOG.info("%s: judged", study.key)
        except (DataError, ProcessError) as error:
            state.status = "failed"
            state.reason = (
                str(error).replace(f"{out}/", "").replace(f"{files}/", "").removeprefix(f"{files}: ")
            )
            LOG.warning("%s: failed, see its state.json", study.key)
        self.counts[f"studies_{state.status}"] += 1

    def _attempt(self, work: Callable[[], None], out: Path) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            try:
                run_in_child(work, seconds=self._seconds)
            except ProcessError:
                if attempt == ATTEMPTS:
                    raise
                continue
            if not any(out.rglob("*.dcm")):
                raise DataError("the judge wrote no DICOM result")
            return


def _sha256(path: Path) -> str:
    """SHA-256 of a file, or of its name if it is closed; after `LOST` for a link."""
    begin = LOST if path.is_symlink() else ""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return begin + hashlib.file_digest(file, "sha256").hexdigest()
    return begin + hashlib.sha256(os.fsencode(path.name)).hexdigest()
