"""Spool: durable queue of received studies, studies in progress, and their results.

In: files of single DICOM objects, in any order, possibly repeated or damaged. Out: a `Job` for each study
without a new object for the silence period.

    incoming/                   objects in reception; emptied at the start
    studies/KEY/study.json      the StudyInstanceUID
    studies/KEY/objects/*.dcm   received objects, synced to disk before the C-STORE response
    work/                       studies in progress; emptied at the start
    results/KEY-MARK/           output of the judge
    outbox/ sent/               deliveries, see `ich_mil.serve.outbox`
    failed/KEY-MARK.json        studies without a result, see `ich_mil.serve.failures`
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ich_mil.errors import DataError, IchMilError
from ich_mil.files import alone, remove_leftovers, write_json
from ich_mil.serve.disk import digest_of, records_by_age, sync_folder, sync_tree, tree_size
from ich_mil.serve.failures import Failures
from ich_mil.serve.outbox import Delivery, Outbox
from ich_mil.serve.settings import ServeSettings
from ich_mil.serve.studies import Job, read_job, read_object, sync_object

_LOG = logging.getLogger(__name__)
LEAST_FREE = 1 << 26
"""Free bytes on the disk below which nothing is received, whatever `free_gb` is."""
_HEAVY = 0.9
"""Fill level of the spool above which finished studies are deleted early."""


class SpoolFullError(IchMilError):
    """No object can be stored: the spool or its disk is full, or the folder is gone."""


class _EmptyError(Exception):
    """The spool is empty when it is closed: the node failed to start, or received nothing."""


class Spool:
    """Queue below one folder; safe for several threads of one process.

    Attributes:
        settings: silence period, limits and keep time.
        root: the folder.
        incoming: folder for objects in reception, on the same disk.
        outbox: results for the archive.
    """

    def __init__(self, settings: ServeSettings) -> None:
        """Lock the folder, which is created if absent, and determine the pending studies.

        Raises:
            DataError: the folder cannot be used, or another node uses it.
        """
        self.settings, self.root = settings, settings.spool.resolve()
        self.incoming, self._work = self.root / "incoming", self.root / "work"
        self._studies, self._results = self.root / "studies", self.root / "results"
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._clock = time.time() - time.monotonic()  # at the start
        self._last: dict[str, float] = {}  # waiting study -> time.monotonic of its last object
        self._active: set[str] = set()
        self._held = ExitStack()
        try:
            is_new = not self.root.exists()
            self._held.enter_context(alone(self.root, doing="using"))
            if is_new:
                self.root.chmod(0o700)
            for folder in (self.incoming, self._work):
                shutil.rmtree(folder, ignore_errors=True)
            for folder in (self.incoming, self._work, self._studies, self._results):
                folder.mkdir(mode=0o700, exist_ok=True)
            self.outbox, self._failures = Outbox(settings), Failures(self.root)
            remove_leftovers(self.outbox.waiting_folder, self.outbox.sent_folder)
            for folder in self._studies.iterdir():
                if self._job(folder.name) is not None:
                    self._last[folder.name] = time.monotonic()
        except OSError as error:
            reason = f"cannot be used as a spool ({error.strerror or error}); choose another folder"
            raise DataError(f"{settings.spool}: {reason}") from error
        self._bytes = self._size()

    def close(self) -> None:
        """Release the folder and delete unfinished work; remove the folders of an empty spool."""
        for folder in (self.incoming, self._work):
            shutil.rmtree(folder, ignore_errors=True)
        kept = (self._studies, self._results, self._failures.folder)
        folders = (*kept, self.outbox.waiting_folder, self.outbox.sent_folder)
        with suppress(OSError, _EmptyError), self._held:
            if not any(next(folder.iterdir(), None) for folder in folders):
                for folder in folders:
                    folder.rmdir()
                raise _EmptyError  # makes `alone` remove the folder and lock that it created

    def store(self, file: Path, *, sop_uid: str) -> bool:
        """Move a received file into the spool; on return it is durable under its final name.

        Args:
            file: file in `incoming`; moved or deleted.
            sop_uid: SOP instance UID of the request, for an object without its own.

        Returns:
            False for an object that is already present, or is one of our results sent back.

        Raises:
            SpoolFullError: no object can be stored now (`problem`).
            RefusedError: the object has no readable StudyInstanceUID of at most 64 characters.
        """
        if problem := self.problem():
            raise SpoolFullError(problem)
        with self._reading:  # one at a time: a header can inflate to 32 MB
            study_uid, own_uid, position = read_object(file)
        if self.outbox.is_ours(sop_uid := own_uid or sop_uid):
            file.unlink()
            return False
        identity, name = sync_object(file, sop_uid, position)
        folder = self._studies / (key := digest_of(study_uid)) / "objects"
        target = folder / name
        with self._lock:
            if not (folder.parent / "study.json").exists():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_json(folder.parent / "study.json", {"study_uid": study_uid})
                for parent in (folder.parent, self._studies):
                    sync_folder(parent)
            is_new = not target.exists()
            # same object with other bytes: the last one is kept; a kill in between leaves both
            older = [path for path in folder.glob(f"{identity}-*.dcm") if path != target]
            if is_new:
                self._bytes += file.stat().st_size
                file.replace(target)
                sync_folder(folder)
            else:
                file.unlink()
            for path in older:
                self._bytes -= path.stat().st_size
                path.unlink()
            if is_new or older or key in self._last:
                self._last[key] = time.monotonic()
        return is_new

    def take(self) -> Job | None:
        """Reserve the study with the longest silence until `judged`, `fail` or `back`; None if none is ready.

        Raises:
            OSError: the study cannot be read now; it has moved to the end of the queue.
        """
        with self._lock:
            now = time.monotonic()
            for key, last in sorted(self._last.items(), key=lambda item: item[1]):
                if key in self._active or now - last < self.settings.silence_seconds:
                    continue
                try:
                    job = self._job(key)
                except OSError:
                    self._last[key] = now
                    raise
                if job is not None:
                    self._active.add(key)
                    return job
                del self._last[key]
        return None

    def work(self, job: Job) -> Path:
        """Create an empty work folder for a job."""
        folder = self._work / job.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return folder

    def judged(self, job: Job, files: Sequence[Path]) -> None:
        """Move the output in `work(job)` to the results, and add `files` to the outbox."""
        made, kept = self._work / job.name, self._results / job.name
        sync_tree(made, files)
        shutil.rmtree(kept, ignore_errors=True)
        made.rename(kept)
        sync_folder(self._results)
        self.outbox.put(job.name, job.study_uid, [kept / path.relative_to(made) for path in files])
        self._settle(job)

    def fail(self, job: Job, reason: str) -> None:
        """Record that a job has no result, with the reason."""
        about = {"key": job.key, "mark": job.mark, "study_uid": job.study_uid, "objects": str(job.objects)}
        self._failures.put(job.name, about, reason, work=self._work / job.name)
        self._settle(job)

    def back(self, job: Job) -> None:
        """Return a job without a result to the end of the queue."""
        shutil.rmtree(self._work / job.name, ignore_errors=True)
        with self._lock:
            self._last[job.key] = time.monotonic()
            self._active.discard(job.key)

    def lost(self, delivery: Delivery) -> None:
        """Drop a delivery with missing files; its study is judged again."""
        self.outbox.drop(delivery)
        shutil.rmtree(self._results / delivery.name, ignore_errors=True)
        with self._lock:
            self._last[delivery.name.split("-")[0]] = time.monotonic()  # `take` checks its objects

    def counts(self) -> dict[str, int]:
        """Number of waiting, active and failed studies; bytes used and free."""
        with self._lock:
            return {
                "queued": len(set(self._last) - self._active),
                "judging": len(self._active),
                "failed": len(list(self._failures.folder.glob("*.json"))),
                "bytes": self._bytes,
                "free_bytes": self.free_bytes(),
            }

    def clean(self, *, stale: float) -> None:
        """Delete finished studies after the keep time, and incoming files not modified for `stale` seconds.

        In a nearly full spool, sent studies are deleted early, then the objects of failed ones. Ages are by
        the clock now or that of the start, whichever is less: a clock that jumps deletes nothing.
        """
        self._bytes, keep = self._size(), self.settings.keep_hours * 3600
        now = min(time.time(), self._clock + time.monotonic())
        for name, at in records_by_age(self.outbox.sent_folder):
            if now - at > keep or self._is_heavy():
                self._remove(name)
        for name, at in records_by_age(self._failures.folder):
            if now - at > keep:
                self._remove(name)
            elif self._is_heavy():
                self._drop_objects(name.split("-")[0])
        for path in self.incoming.iterdir():  # last, so that an error here blocks nothing else
            with suppress(FileNotFoundError):
                if now - path.stat().st_mtime > stale:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def free_bytes(self) -> int:
        """Free bytes on the disk of the spool; 0 if its folder cannot be written."""
        with suppress(OSError):
            return shutil.disk_usage(self.incoming).free if os.access(self.incoming, os.W_OK) else 0
        return 0

    def problem(self) -> str:
        """Why no object can be stored now; '' if one can."""
        most, least = self.settings.spool_gb * 1e9, max(self.settings.free_gb * 1e9, LEAST_FREE)
        if not os.access(self.incoming, os.W_OK):
            return f"{self.root}: the spool is gone or read-only; mend that, or restart the node"
        if self._bytes > most:
            return f"{self.root}: the spool is full, {self._bytes / 1e9:.2f} GB of {most / 1e9:.2f} GB"
        if (free := self.free_bytes()) < least:
            return f"{self.root}: its disk is full, {free / 1e6:.0f} MB of {least / 1e6:.0f} MB are free"
        return ""

    def _is_heavy(self) -> bool:
        return self._bytes > _HEAVY * self.settings.spool_gb * 1e9

    def _settle(self, job: Job) -> None:
        """Mark this state of the study as done; the study stays queued if newer objects have arrived."""
        with self._lock:
            self._active.discard(job.key)
            with suppress(OSError):  # `take` will report it
                if self._job(job.key) is None:
                    self._last.pop(job.key, None)

    def _job(self, key: str) -> Job | None:
        """The pending job of a study; None if there is none."""
        job = read_job(self._studies / key)
        done = job is None or self.outbox.knows(job.name) or self._failures.knows(job.name)
        return None if done else job

    def _remove(self, name: str) -> None:
        """Delete the records and results of a state, and its objects unless another state needs them."""
        key = name.split("-")[0]
        with self._lock:
            if key in self._last:
                return
            self.outbox.forget(name)
            self._failures.forget(name)
            self._delete(self._results / name)
            if not self._failures.knows_any(key) and not self.outbox.knows_any(key):
                self._delete(self._studies / key)

    def _drop_objects(self, key: str) -> None:
        """Delete the received objects of a failed study, unless another state or delivery needs them."""
        with self._lock:
            folder = self._studies / key
            if key in self._last or self.outbox.knows_any(key) or not folder.exists():
                return
            self._delete(folder)
        _LOG.warning("%s: the objects of this failed study are deleted early: the spool is nearly full", key)

    def _delete(self, folder: Path) -> None:
        self._bytes -= tree_size(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def _size(self) -> int:
        return tree_size(self._studies) + tree_size(self._results)
