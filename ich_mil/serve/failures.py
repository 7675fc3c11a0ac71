"""Records of studies without a result, `failed/NAME.json`: the reason, and the last lines of the ledger."""

import shutil
import time
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ich_mil.files import remove_leftovers, write_json

LEDGER_LINES = 50
"""Number of ledger lines in a record besides the header: the last ones."""
_LEDGER = Path("prepared") / "ledger.csv"


class Failures:
    """Failure records in `failed/` below the spool folder `root`."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "failed"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        remove_leftovers(self.folder)

    def put(self, name: str, about: dict[str, str], reason: str, *, work: Path) -> None:
        """Write a failure record, and delete the work folder of the study.

        Args:
            name: name of this state of the study (`Job.name`).
            about: identifying values of the study.
            reason: why there is no result; the path of `work` is removed from it.
            work: work folder of the study; deleted first, which makes room on a full disk.
        """
        reason = reason.replace(str(work / _LEDGER), "the ledger below")
        reason = reason.replace(f"{work}/", "").replace(str(work), "its work folder")
        note = {**about, "reason": reason, "ledger": _last_lines(work / _LEDGER), "time": time.time()}
        shutil.rmtree(work, ignore_errors=True)
        write_json(self.folder / f"{name}.json", note)

    def knows(self, name: str) -> bool:
        """Whether this state of a study has a failure record."""
        return (self.folder / f"{name}.json").exists()

    def knows_any(self, key: str) -> bool:
        """Whether any state of a study has a failure record."""
        return any(self.folder.glob(f"{key}-*.json"))

    def forget(self, name: str) -> None:
        """Delete a record."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)


def _last_lines(ledger: Path) -> list[str]:
    """Header and last lines of a ledger; empty if it cannot be read, so that the reason is still recorded."""
    with suppress(OSError), ledger.open(encoding="utf-8", errors="replace") as file:
        lines = (line.rstrip("\n") for line in file)
        return [*islice(lines, 1), *deque(lines, maxlen=LEDGER_LINES)]
    return []
