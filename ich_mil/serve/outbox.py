"""Results that wait for the archive: a queue on disk that outlives the process.

In: the DICOM files of a judged study. Out: one delivery after the other, until each of its files was taken.
`outbox/NAME.json` is a delivery that waits, `sent/NAME.json` one that is done: sent, or replaced while it
waited by the results of more of its study, which the archive must not get before those of less. A file is
sent at least once: one that was sent a moment before a crash is sent again, and its SOP instance UID is the
same.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydicom import dcmread

from ich_mil.errors import DataError
from ich_mil.files import write_json
from ich_mil.serve.disk import digest_of
from ich_mil.serve.log import say

_OLDER = "not sent, the results of more of the study go instead"


@dataclass(frozen=True)
class Delivery:
    """The results of one study.

    Attributes:
        name: of the judged study.
        study_uid: its StudyInstanceUID.
        files: DICOM files that are still to be sent, below the spool.
        sops: digests of the SOP instance UIDs of all of them: they are known should they come back to us.
        attempts: sends that failed.
        error: why the last send failed, or why there will be none; '' where there is no reason.
    """

    name: str
    study_uid: str
    files: tuple[str, ...]
    sops: tuple[str, ...]
    attempts: int = 0
    error: str = ""


class Outbox:
    """Deliveries below the spool folder `root`; safe to use from several threads."""

    def __init__(self, root: Path, *, pause: float, longest_pause: float) -> None:
        """Read what waits; everything is due at once.

        Args:
            root: the spool.
            pause: seconds after the first send that failed; doubled after each further one.
            longest_pause: seconds, at most.
        """
        self.root = root = root.resolve()
        self.waiting_folder, self.sent_folder = root / "outbox", root / "sent"
        self._pause, self._longest = pause, longest_pause
        self._lock = threading.Lock()
        self._waiting: dict[str, Delivery] = {}
        self._due: dict[str, float] = {}  # on the clock of time.monotonic
        self._ours: dict[str, frozenset[str]] = {}
        for folder in (self.sent_folder, self.waiting_folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.json")):
                delivery = _read(path)
                if delivery.name in self._ours:  # killed after the one note and before the end of the other
                    path.unlink()
                    continue
                self._ours[delivery.name] = frozenset(delivery.sops)
                if folder is self.waiting_folder:
                    self._waiting[delivery.name], self._due[delivery.name] = delivery, 0.0

    def put(self, name: str, study_uid: str, files: Sequence[Path]) -> None:
        """Keep a delivery, in place of those of its study that wait.

        Raises:
            DataError: it cannot be written, or not that those which wait are not sent. Other errors are what
                pydicom raises of a file that is no DICOM.
        """
        sops = tuple(
            digest_of(str(dcmread(path, specific_tags=["SOPInstanceUID"]).SOPInstanceUID)) for path in files
        )
        delivery = Delivery(name, study_uid, tuple(str(path.relative_to(self.root)) for path in files), sops)
        with self._lock:
            # before the new one is kept: killed in between, its study is judged again, and the order holds
            for older in [one for one in self._waiting.values() if one.study_uid == study_uid]:
                self._finish(replace(older, error=_OLDER))
                say(f"{older.name}: {_OLDER}")
            # what could not be written is not ours, and its study is judged again
            write_json(self.waiting_folder / f"{name}.json", asdict(delivery))
            self._ours[name] = frozenset(sops)
            self._waiting[name], self._due[name] = delivery, 0.0

    def due(self) -> Delivery | None:
        """The delivery that has waited longest of those whose pause is over."""
        with self._lock:
            now = time.monotonic()
            ready = [name for name, at in self._due.items() if at <= now]
            return self._waiting[min(ready, key=lambda name: self._due[name])] if ready else None

    def took(self, delivery: Delivery) -> None:
        """All of it is in the archive."""
        with self._lock:
            self._finish(replace(delivery, error=""))

    def drop(self, delivery: Delivery) -> None:
        """It cannot be sent: as if it had never been put here."""
        with self._lock:
            (self.waiting_folder / f"{delivery.name}.json").unlink(missing_ok=True)
            for known in (self._waiting, self._due, self._ours):
                known.pop(delivery.name, None)

    def postpone(self, delivery: Delivery, left: Sequence[str], error: str) -> float:
        """`left` of it could not be sent: try again later. Returns the pause in seconds."""
        later = replace(delivery, files=tuple(left), attempts=delivery.attempts + 1, error=error)
        pause = min(self._pause * 2.0 ** min(delivery.attempts, 60), self._longest)
        with self._lock:
            if later.name not in self._waiting:  # newer results of the study came meanwhile
                return pause
            self._waiting[later.name], self._due[later.name] = later, time.monotonic() + pause
            write_json(self.waiting_folder / f"{later.name}.json", asdict(later))
        return pause

    def knows(self, name: str) -> bool:
        """Whether results of `name` wait or were sent."""
        with self._lock:
            return name in self._ours

    def knows_any(self, key: str) -> bool:
        """Whether results of any state of a study wait or were sent."""
        with self._lock:
            return any(name.startswith(f"{key}-") for name in self._ours)

    def is_ours(self, sop_uid: str) -> bool:
        """Whether the object of this UID is one of our own results."""
        key = digest_of(sop_uid)
        with self._lock:
            return any(key in sops for sops in self._ours.values())

    def waiting(self) -> list[Delivery]:
        """All that wait."""
        with self._lock:
            return list(self._waiting.values())

    def sent(self) -> Iterator[tuple[str, float]]:
        """Name, and time of the last send, of all that were sent."""
        for path in self.sent_folder.glob("*.json"):
            yield path.stem, path.stat().st_mtime

    def forget(self, name: str) -> None:
        """Drop the note of a delivery that was sent."""
        with self._lock:
            (self.sent_folder / f"{name}.json").unlink(missing_ok=True)
            self._ours.pop(name, None)

    def _finish(self, delivery: Delivery) -> None:
        """It waits no longer. `DataError` if that cannot be written; then it does."""
        path = self.sent_folder / f"{delivery.name}.json"
        write_json(path, asdict(delivery))
        (self.waiting_folder / path.name).unlink(missing_ok=True)
        self._waiting.pop(delivery.name, None)
        self._due.pop(delivery.name, None)


def _read(path: Path) -> Delivery:
    try:
        values = json.loads(path.read_bytes())
        return Delivery(**{**values, "files": tuple(values["files"]), "sops": tuple(values["sops"])})
    except (OSError, TypeError, ValueError, KeyError) as error:
        raise DataError(
            f"{path}: is no delivery of this version ({error}); move it away and start again"
        ) from error
