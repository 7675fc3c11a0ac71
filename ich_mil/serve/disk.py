"""What the queue needs of the disk: files that outlive a crash, sizes.

In: paths. Out: digests, bytes. And whether an error is the disk's fault.
"""

import errno
import hashlib
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from ich_mil.errors import DiskFullError


def digest_of(text: str) -> str:
    """24 hex digits that stand for `text`, whatever it holds."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def sync_file(path: Path) -> str:
    """Wait until the bytes of a file are on disk. Returns their SHA-256, in hex."""
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256")
        os.fsync(file.fileno())
    return content.hexdigest()


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def is_disk_full(error: BaseException) -> bool:
    """Whether `error`, or what caused it, is that the disk or our share of it is full."""
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
    """Bytes of all files below `folder`; 0 where there is none. Files that vanish meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total
