"""The studies without a result: a note for each, with the reason and what the ledger said of its files.

In: a reason, and the folder the study was judged in, which is deleted. Out: `failed/NAME.json`.
"""

import shutil
import time
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ich_mil.files import remove_leftovers, write_json

LEDGER_LINES = 50
"""Lines of a ledger that a note keeps besides the columns: the last ones."""
_LEDGER = Path("prepared") / "ledger.csv"


class Failures:
    """Notes in `failed/` below the spool folder `root`."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "failed"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        remove_leftovers(self.folder)

    def put(self, name: str, about: dict[str, str], reason: str, *, work: Path) -> None:
        """Keep a note, and delete the folder the study was judged in.

        Args:
            name: of this state of the study.
            about: what is known of the study.
            reason: why there is no result; what it says of files in `work` is told without their folder.
            work: where it was judged; deleted first, for on a full disk this makes room.

        Raises:
            DataError: the note cannot be written.
        """
        reason = reason.replace(str(work / _LEDGER), "the ledger below")
        reason = reason.replace(f"{work}/", "").replace(str(work), "its work folder")
        note = {**about, "reason": reason, "ledger": _last_lines(work / _LEDGER), "time": time.time()}
        shutil.rmtree(work, ignore_errors=True)
        write_json(self.folder / f"{name}.json", note)

    def knows(self, name: str) -> bool:
        """Whether this state of a study failed."""
        return (self.folder / f"{name}.json").exists()

    def knows_any(self, key: str) -> bool:
        """Whether any state of a study failed."""
        return any(self.folder.glob(f"{key}-*.json"))

    def by_age(self) -> list[tuple[str, float]]:
        """Name and time of each note, the oldest first."""
        notes = [(path.stem, path.stat().st_mtime) for path in self.folder.glob("*.json")]
        return sorted(notes, key=lambda note: note[1])

    def count(self) -> int:
        """Number of notes."""
        return sum(1 for _ in self.folder.glob("*.json"))

    def forget(self, name: str) -> None:
        """Drop a note."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)


def _last_lines(ledger: Path) -> list[str]:
    """The columns and the last lines of a ledger; none where there is none, for the reason counts more."""
    with suppress(OSError), ledger.open(encoding="utf-8", errors="replace") as file:
        lines = (line.rstrip("\n") for line in file)
        return [*islice(lines, 1), *deque(lines, maxlen=LEDGER_LINES)]
    return []
