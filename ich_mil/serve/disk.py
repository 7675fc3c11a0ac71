"""Disk operations of the queue: digests, durable writes, sizes, and detection of a full disk.

In: texts, paths and exceptions. Out: digests, synced files and folders, and sizes in bytes.
"""

import errno
import hashlib
import os
import sqlite3
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


def is_disk_full(error: BaseException) -> bool:
    """Whether `error` or one of its causes is a full disk or an exhausted quota."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DiskFullError):
            return True
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            return True
        cause = cause.__cause__
    return False


def tree_size(folder: Path) -> int:
    """Total size in bytes of all files below `folder`; 0 if it does not exist.

    Files that vanish during the walk are ignored.
    """
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total
