"""Outbox: durable queue of results for the archive.

`outbox/NAME.json` is a waiting delivery. `sent/NAME.json` is a finished one: sent, or superseded while it
waited by the results of a more complete state of its study, since the archive must not receive results of an
older state after those of a newer one. Each file is sent at least once: a file sent just before a crash is
sent again, with the same SOP instance UID.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydicom import dcmread

from ich_mil.errors import DataError
from ich_mil.files import write_json
from ich_mil.serve.disk import digest_of
from ich_mil.serve.settings import ServeSettings

_LOG = logging.getLogger(__name__)
_SUPERSEDED = "not sent: results of a more complete state of the study replace it"


@dataclass(frozen=True)
class Delivery:
    """The results of one state of a study (`Job.name`).

    `files` are still to be sent, relative to the spool; `sops` are digests of the SOP instance UIDs of all
    files, to recognise results that are sent back; `attempts` counts failed sends, and `error` is the reason
    of the last one, or why the delivery will not be sent.
    """

    name: str
    study_uid: str
    files: tuple[str, ...]
    sops: tuple[str, ...]
    attempts: int = 0
    error: str = ""


class Outbox:
    """Deliveries below the spool folder; thread-safe."""

    def __init__(self, settings: ServeSettings) -> None:
        """Read the existing deliveries; all waiting ones are due immediately."""
        self.root = settings.spool.resolve()
        self.waiting_folder, self.sent_folder = self.root / "outbox", self.root / "sent"
        self._pause, self._longest = settings.retry_seconds, settings.longest_retry_seconds
        self._lock = threading.Lock()
        self._waiting: dict[str, Delivery] = {}
        self._due: dict[str, float] = {}  # on the clock of time.monotonic
        self._ours: dict[str, frozenset[str]] = {}
        for folder in (self.sent_folder, self.waiting_folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.json")):
                delivery = _read(path)
                if delivery.name in self._ours:  # killed between writing one file and deleting the other
                    path.unlink()
                elif folder is self.sent_folder:
                    self._ours[delivery.name] = frozenset(delivery.sops)
                else:
                    self._add(delivery)

    def put(self, name: str, study_uid: str, files: Sequence[Path]) -> None:
        """Add a delivery; it supersedes waiting deliveries of the same study.

        Raises:
            DataError: the delivery, or the end of a superseded delivery, cannot be written.
            Exception: as raised by pydicom for a file that is not DICOM.
        """
        uids = [dcmread(path, specific_tags=["SOPInstanceUID"]).SOPInstanceUID for path in files]
        names = tuple(str(path.relative_to(self.root)) for path in files)
        delivery = Delivery(name, study_uid, names, tuple(digest_of(str(uid)) for uid in uids))
        with self._lock:
            # finish older deliveries first: after a kill in between, the study is judged again in order
            for older in [one for one in self._waiting.values() if one.study_uid == study_uid]:
                self._finish(replace(older, error=_SUPERSEDED))
                _LOG.info("%s: %s", older.name, _SUPERSEDED)
            # if this write fails, the delivery does not exist and its study is judged again
            write_json(self.waiting_folder / f"{name}.json", asdict(delivery))
            self._add(delivery)

    def due(self) -> Delivery | None:
        """The due delivery that has waited longest; None if none is due."""
        with self._lock:
            now = time.monotonic()
            ready = [name for name, at in self._due.items() if at <= now]
            return self._waiting[min(ready, key=lambda name: self._due[name])] if ready else None

    def took(self, delivery: Delivery) -> None:
        """Mark a delivery as sent: the archive has all its files."""
        with self._lock:
            self._finish(replace(delivery, error=""))

    def drop(self, delivery: Delivery) -> None:
        """Remove a delivery that cannot be sent, as if it had never been added."""
        with self._lock:
            (self.waiting_folder / f"{delivery.name}.json").unlink(missing_ok=True)
            for known in (self._waiting, self._due, self._ours):
                known.pop(delivery.name, None)

    def postpone(
        self, delivery: Delivery, left: Sequence[str], error: str, *, may_heal: bool = True
    ) -> float:
        """Schedule the files in `left` for another send, at the next start unless the error may heal.

        Returns the pause in seconds; infinity until the next start.
        """
        later = replace(delivery, files=tuple(left), attempts=delivery.attempts + 1, error=error)
        pause = min(self._pause * 2.0 ** min(delivery.attempts, 60), self._longest) if may_heal else math.inf
        with self._lock:
            if later.name not in self._waiting:  # superseded meanwhile
                return pause
            self._waiting[later.name], self._due[later.name] = later, time.monotonic() + pause
            write_json(self.waiting_folder / f"{later.name}.json", asdict(later))
        return pause

    def knows(self, name: str) -> bool:
        """Whether a delivery `name` is waiting or finished."""
        with self._lock:
            return name in self._ours

    def knows_any(self, key: str) -> bool:
        """Whether a delivery of any state of a study is waiting or finished."""
        with self._lock:
            return any(name.startswith(f"{key}-") for name in self._ours)

    def sent(self, key: str) -> list[Path]:
        """DICOM files below `results/` of all states of a study that the archive has received."""
        found: list[Path] = []
        for record in sorted(self.sent_folder.glob(f"{key}-*.json")):
            delivery = _read(record)
            unsent = [self.root / name for name in delivery.files] if delivery.error else []
            files = sorted((self.root / "results" / delivery.name).rglob("*.dcm"))
            found += [path for path in files if path not in unsent]
        return found

    def is_ours(self, sop_uid: str) -> bool:
        """Whether the SOP instance UID is that of one of our results."""
        key = digest_of(sop_uid)
        with self._lock:
            return any(key in sops for sops in self._ours.values())

    def waiting(self) -> list[Delivery]:
        """All waiting deliveries."""
        with self._lock:
            return list(self._waiting.values())

    def forget(self, name: str) -> None:
        """Delete the record of a finished delivery."""
        with self._lock:
            (self.sent_folder / f"{name}.json").unlink(missing_ok=True)
            self._ours.pop(name, None)

    def _add(self, delivery: Delivery) -> None:
        self._ours[delivery.name] = frozenset(delivery.sops)
        self._waiting[delivery.name], self._due[delivery.name] = delivery, 0.0

    def _finish(self, delivery: Delivery) -> None:
        """Move a delivery from waiting to finished; after a `DataError` it is still waiting."""
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
            f"{path}: is not a delivery of this version ({error}); move it away and start again"
        ) from error
