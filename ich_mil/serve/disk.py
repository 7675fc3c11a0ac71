"""Disk operations of the queue: digests, durable writes, sizes, records by age, detection of a full disk."""

import errno
import hashlib
import os
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ich_mil.errors import DiskFullError


def digest_of(text: str) -> str:
    """The first 24 hexadecimal digits of the SHA-256 of `text`; safe as a file name."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def sync_file(path: Path) -> str:
    """Flush a file to disk with fsync. Returns its SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256")
        os.fsync(file.fileno())
    return content.hexdigest()


def sync_folder(path: Path) -> None:
    """Flush the directory entries of a folder to disk with fsync."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sync_tree(root: Path, files: Iterable[Path]) -> None:
    """Flush files below `root` to disk, and the folders that lead to them."""
    folders = set()
    for path in files:
        sync_file(path)
        folders |= {root / parent for parent in path.relative_to(root).parents}
    for folder in folders:
        sync_folder(folder)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether `error` or one of its causes is a full disk or an exhausted quota."""
    while error is not None:
        if isinstance(error, DiskFullError):
            return True
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            return True
        error = error.__cause__
    return False


def tree_size(folder: Path) -> int:
    """Total size in bytes of the files below `folder`, except files that vanish during the walk."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total


def records_by_age(folder: Path) -> list[tuple[str, float]]:
    """Name and modification time of each JSON record in a folder, the oldest first."""
    notes = [(path.stem, path.stat().st_mtime) for path in folder.glob("*.json")]
    return sorted(notes, key=lambda note: note[1])
