"""Spool: durable queue of received studies, studies in progress, and their results.

In: files of single DICOM objects, in any order, possibly repeated or damaged. Out: a `Job` for each study
without a new object for the silence period. File names never contain received text: a study is named by the
digest of its UID, an object by digests of its UID with position and of its content. A result is named by the
digest of the study's objects at the time of processing, so that a later object creates a new job and a
repeated object does not.

    incoming/                   objects in reception; emptied at the start
    studies/KEY/study.json      the StudyInstanceUID
    studies/KEY/objects/*.dcm   received objects, synced to disk before the C-STORE response
    work/                       studies in progress; emptied at the start
    results/KEY-MARK/           output of the judge
    outbox/ sent/               deliveries, see `ich_mil.serve.outbox`
    failed/KEY-MARK.json        studies without a result, see `ich_mil.serve.failures`
"""

import json
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from ich_mil.dicom.files.elements import read_elements
from ich_mil.errors import DataError, IchMilError
from ich_mil.files import alone, remove_leftovers, write_json
from ich_mil.serve.disk import digest_of, sync_file, sync_folder, tree_size
from ich_mil.serve.failures import Failures
from ich_mil.serve.log import say
from ich_mil.serve.outbox import Delivery, Outbox

UID_LENGTH = 64
"""Maximum length of a UID, characters (PS3.5 6.2)."""
_OF_A_SLICE = ("StudyInstanceUID", "SOPInstanceUID", "ImagePositionPatient")
_HEAVY = 0.9
"""Fill level of the spool above which finished studies are deleted early."""


class SpoolFullError(IchMilError):
    """There is no room for another object."""


class RefusedError(IchMilError):
    """An object without a usable StudyInstanceUID."""


class _EmptyError(Exception):
    """The spool is empty when it is closed: the node failed to start, or received nothing."""


@dataclass(frozen=True)
class Job:
    """A complete study, ready to be processed.

    Attributes:
        key: digest of the StudyInstanceUID.
        mark: digest of the names of its objects.
        study_uid: StudyInstanceUID.
        objects: folder of its DICOM files.
    """

    key: str
    mark: str
    study_uid: str
    objects: Path

    @property
    def name(self) -> str:
        """Name of this state of the study: `KEY-MARK`."""
        return f"{self.key}-{self.mark}"


class Spool:
    """Queue below one folder; safe for several threads of one process.

    Attributes:
        root: the folder.
        incoming: folder for objects in reception, on the same disk.
        outbox: results for the archive.
    """

    def __init__(
        self,
        root: Path,
        *,
        silence: float,
        most_bytes: float,
        least_free: float,
        keep: float,
        pause: float,
        longest_pause: float,
    ) -> None:
        """Lock the folder and determine the pending studies.

        Args:
            root: the folder; created if absent.
            silence: seconds without a new object after which a study is complete.
            most_bytes: maximum size of the spool.
            least_free: minimum free space on its disk, bytes.
            keep: seconds that a study is kept after its results were sent, or after it failed.
            pause: initial retry pause of the outbox, seconds.
            longest_pause: maximum retry pause of the outbox, seconds.

        Raises:
            DataError: the folder cannot be used, or another node uses it.
        """
        self.root = root.resolve()
        self._silence, self._keep = silence, keep
        self._most_bytes, self._least_free = most_bytes, least_free
        self.incoming, self._work = self.root / "incoming", self.root / "work"
        self._studies, self._results = self.root / "studies", self.root / "results"
        self._lock = threading.Lock()
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
            self.outbox = Outbox(self.root, pause=pause, longest_pause=longest_pause)
            self._failures = Failures(self.root)
            remove_leftovers(self.root / "outbox", self.root / "sent")
            for folder in self._studies.iterdir():
                if self._job(folder.name) is not None:
                    self._last[folder.name] = time.monotonic()
        except OSError as error:
            reason = f"cannot be used as a spool ({error.strerror or error}); choose another folder"
            raise DataError(f"{root}: {reason}") from error
        self._bytes = self._size()

    def close(self) -> None:
        """Release the folder and delete unfinished work; remove the folders of an empty spool."""
        for folder in (self.incoming, self._work):
            shutil.rmtree(folder, ignore_errors=True)
        kept = (self._studies, self._results, self.outbox.waiting_folder, self.outbox.sent_folder)
        folders = (*kept, self._failures.folder)
        with suppress(OSError, _EmptyError), self._held:
            if not any(next(folder.iterdir(), None) for folder in folders):
                for folder in folders:
                    folder.rmdir()
                raise _EmptyError  # makes `alone` remove the folder and lock that it created

    def store(self, file: Path, *, sop_uid: str) -> bool:
        """Move a received file into the spool; on return it is durable under its final name.

        Args:
            file: file in `incoming`; moved or deleted.
            sop_uid: SOP instance UID of the C-STORE request, for an object without its own.

        Returns:
            False for an object that is already present, or is one of our results sent back.

        Raises:
            SpoolFullError: the spool or its disk is full.
            RefusedError: the object has no readable StudyInstanceUID of at most 64 characters.
        """
        if self.is_full():
            raise SpoolFullError(f"{self.root}: {self._bytes / 1e9:.2f} GB are used, or its disk is full")
        study_uid, own_uid, place = _names(file)
        sop_uid = own_uid or sop_uid
        if not 0 < len(study_uid) <= UID_LENGTH:
            raise RefusedError(
                f"its StudyInstanceUID has {len(study_uid)} characters, 1 to {UID_LENGTH} can be"
            )
        if self.outbox.is_ours(sop_uid):
            file.unlink()
            return False
        content = sync_file(file)
        key = digest_of(study_uid)
        # some anonymisers give every slice the same UID: another position means another slice
        identity = digest_of(f"{sop_uid} {place}") if sop_uid else content[:24]
        folder = self._studies / key / "objects"
        target = folder / f"{identity}-{content[:16]}.dcm"
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
        """The study with the longest silence, if it exceeds the silence period.

        The study is reserved until the caller calls `judged`, `fail` or `back`.

        Raises:
            OSError: the study cannot be read now; it has moved to the end of the queue.
        """
        with self._lock:
            now = time.monotonic()
            ready = [
                key
                for key, last in self._last.items()
                if now - last >= self._silence and key not in self._active
            ]
            for key in sorted(ready, key=lambda key: self._last[key]):
                try:
                    job = self._job(key)
                except OSError:
                    self._last[key] = now
                    raise
                if job is None:
                    del self._last[key]
                    continue
                self._active.add(key)
                return job
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
        for path in files:
            sync_file(path)
        for folder in {made / parent for path in files for parent in path.relative_to(made).parents}:
            sync_folder(folder)
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
        key = delivery.name.split("-")[0]
        with self._lock:
            self._last[key] = time.monotonic()  # `take` checks whether its objects still exist

    def counts(self) -> dict[str, int]:
        """Number of waiting, active and failed studies; bytes used and free."""
        failed = self._failures.count()
        with self._lock:
            n_active = len(self._active)
            return {
                "queued": len(set(self._last) - self._active),
                "judging": n_active,
                "failed": failed,
                "bytes": self._bytes,
                "free_bytes": shutil.disk_usage(self.root).free,
            }

    def clean(self, *, stale: float) -> None:
        """Delete finished studies after the keep time, and incoming files not modified for `stale` seconds.

        In a nearly full spool, sent studies are deleted early, and then the objects of failed studies, the
        oldest first; their failure records remain.
        """
        now = time.time()
        self._bytes = self._size()
        for name, at in sorted(self.outbox.sent(), key=lambda item: item[1]):
            if now - at > self._keep or self._is_heavy():
                self._remove(name)
        for name, at in self._failures.by_age():
            if now - at > self._keep:
                self._remove(name)
            elif self._is_heavy():
                self._drop_objects(name.split("-")[0])
        for path in self.incoming.iterdir():  # last, so that an error here blocks nothing else
            with suppress(FileNotFoundError):
                if now - path.stat().st_mtime <= stale:
                    continue
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def is_full(self) -> bool:
        """Whether there is no room for another object."""
        return self._bytes > self._most_bytes or shutil.disk_usage(self.root).free < self._least_free

    def _is_heavy(self) -> bool:
        return self._bytes > _HEAVY * self._most_bytes

    def _settle(self, job: Job) -> None:
        """Mark this state of the study as done; the study stays queued if newer objects have arrived."""
        with self._lock:
            self._active.discard(job.key)
            with suppress(OSError):  # `take` will report it
                if self._job(job.key) is None:
                    self._last.pop(job.key, None)

    def _job(self, key: str) -> Job | None:
        """The pending job of a study; None if there is none. `OSError` if the study cannot be read now."""
        folder = self._studies / key
        try:
            study_uid = json.loads((folder / "study.json").read_bytes())["study_uid"]
            # not glob, which treats an unreadable folder as empty
            names = sorted(path.name for path in (folder / "objects").iterdir() if path.suffix == ".dcm")
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):
            # killed during its creation: it contains no object yet
            return None
        job = Job(key, digest_of("\n".join(names))[:12], str(study_uid), folder / "objects")
        done = not names or self.outbox.knows(job.name) or self._failures.knows(job.name)
        return None if done else job

    def _remove(self, name: str) -> None:
        """Delete the records and results of one state of a study.

        Its objects are deleted too, unless another state or delivery needs them.
        """
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
        say(f"{key}: failed, its objects are deleted before their time: the spool is nearly full")

    def _delete(self, folder: Path) -> None:
        self._bytes -= tree_size(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def _size(self) -> int:
        return tree_size(self._studies) + tree_size(self._results)


def _names(file: Path) -> tuple[str, str, str]:
    """StudyInstanceUID, SOPInstanceUID and ImagePositionPatient; '' for each if the file cannot be parsed."""
    try:
        elements = read_elements(file, _OF_A_SLICE)
        study, sop, position = map(elements.text, _OF_A_SLICE)
        return study, sop, position
    except OSError:
        raise
    except Exception:  # malformed input can raise any exception in the parser
        return "", "", ""
