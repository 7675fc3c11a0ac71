"""Disk and time that a preparation will take, from the first scans of it, printed before the rest begins."""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ich_mil.errors import DiskFullError
from ich_mil.progress import say
from ich_mil.sets.store import scan_file

MANY = 20
"""Number of scans above which an estimate is made."""
TRIED = 3
"""Number of scans that it rests on."""
GB = 1e9


class Todo(NamedTuple):
    """A scan to prepare: its id, the fingerprint of its inputs and its number of slices."""

    scan: str
    fingerprint: str
    slices: int


def estimate(
    todo: Sequence[Todo], out: Path, work: Callable[[Sequence[Todo]], object], *, jobs: int
) -> list[Todo]:
    """Prepare the first scans by `work`, print what all will take, and return the scans that are left.

    Raises:
        DiskFullError: the prepared scans will not fit on the disk of `out`.
    """
    if len(todo) <= MANY:
        return [*todo]
    tried = todo[:: len(todo) // TRIED][:TRIED]
    started = time.monotonic()
    work(tried)
    taken = time.monotonic() - started
    sizes = [path.stat().st_size for item in tried if (path := scan_file(out, item.scan)).exists()]
    rest = [item for item in todo if item not in tried]
    share = sum(item.slices for item in rest) / sum(item.slices for item in tried)
    n_bytes, free = sum(sizes) * share, shutil.disk_usage(out).free
    need = f"about {n_bytes / GB:.1f} GB"
    say(
        f"{out}: {len(todo)} scans of {sum(item.slices for item in todo)} slices to prepare: {need} "
        f"({free / GB:.1f} GB are free) and {_duration(taken * share / jobs)} with {jobs} workers"
    )
    if n_bytes > free:
        raise DiskFullError(
            f"{out}: {need} are needed and {free / GB:.1f} GB are free; free space, or choose another folder"
        )
    return rest


def _duration(seconds: float) -> str:
    """Seconds in words."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
