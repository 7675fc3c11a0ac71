"""Atomic file writes, folder locks and digests.

Every file of the project is written under a temporary name, synced and renamed: a reader sees the whole file
or none.
"""

import csv
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ich_mil.errors import ConfigError, DataError, DiskFullError
from ich_mil.progress import say

if TYPE_CHECKING:
    import pandas as pd


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_UMASK = _umask()
"""Read once, at import: `os.umask` reads by setting, which later would affect other threads."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` after the block, or removed after an error.

    Raises:
        DiskFullError: the disk or quota is full.
        DataError: the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        with suppress(OSError):  # some file systems have no permissions
            temporary.chmod(0o666 & ~_UMASK)  # some libraries write files that only their owner can read
        temporary.replace(path)
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        filename = getattr(error, "filename", None)
        if isinstance(filename, str) and Path(filename) not in (temporary, path, *path.parents):
            raise  # the error concerns another file, one that the block reads
        # safetensors gives the error number in its message only
        if number is None and (match := re.search(r"(?:\(os error|Os { code:) (\d+)", str(error))):
            number = int(match[1])
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"{path}: the disk is full; free space and run the same command again (a training: --resume)"
            ) from error
        if number is not None:
            raise DataError(
                f"{path}: cannot be written ({os.strerror(number)}); choose another folder"
            ) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


_NO_LOCKS = (errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP)
"""Errors of a file system without locks, as some mounts of Lustre and NFS."""


@contextmanager
def alone(folder: Path, *, doing: str) -> Iterator[None]:
    """Lock a folder for this process; the operating system releases the lock when the process ends.

    The folder is created where missing. `doing` tells other processes what happens, such as `writing`. On
    file systems without locks the folder is not locked, and a line says so. After an error the lock file is
    removed, and so are the folders created for it that are still empty.

    Raises:
        DataError: another process has locked the folder, or it cannot be written.
    """
    from filelock import FileLock, Timeout  # imports asyncio

    path = folder / ".lock"
    created = [each for each in (path, folder, *folder.parents) if not each.exists()]
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise DataError(
            f"{folder}: another process is {doing} it; wait for that one, or choose another folder"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        if error.errno not in _NO_LOCKS:
            raise DataError(f"{folder}: cannot be written ({reason}); choose another folder") from error
        say(f"{folder}: its file system has no locks ({reason}); run one command at a time on it")
    try:
        yield
    except (Exception, KeyboardInterrupt):
        with suppress(OSError):  # stop at the first folder that is not empty
            for each in created:
                each.unlink() if each == path else each.rmdir()
        raise
    finally:
        lock.release()


def check_apart(out: Path, root: Path) -> None:
    """Raise `ConfigError` if the output folder `out` is the input folder `root` or lies below it."""
    if out.resolve().is_relative_to(root.resolve()):
        raise ConfigError(
            f"{out}: lies in the folder that is read ({root}), where results would be taken for parts of "
            "studies; choose another --out"
        )


def remove_leftovers(*folders: Path) -> None:
    """Remove the temporary files of a killed run from these folders."""
    for folder in folders:
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, encoding: str = "utf-8") -> None:
    """Write `text` to `path` atomically."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding=encoding)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def copy_files(source: Path, to: Path, *names: str) -> None:
    """Copy the named files that exist in `source` to the folder `to`, each atomically."""
    for name in names:
        if (source / name).is_file():
            with whole_file(to / name) as temporary:
                shutil.copyfile(source / name, temporary)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON to `path` atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


# A cell that begins so is a formula, where ; and tabs can separate cells too; list of OWASP, "CSV Injection".
_START, _FORMULA = r"(?:^|(?<=[;\"\t\r\n]))", r"(?='*[=+\-@\t\r\n\uff0b\uff0d\uff1d\uff20])"
_FORMULA_START, _INERT_START = re.compile(_START + _FORMULA), re.compile(f"{_START}'{_FORMULA}")


def inert(cell: Any) -> Any:
    """`cell` of a table; a text with `'` before each part that a spreadsheet would run as a formula."""
    return _FORMULA_START.sub("'", cell) if isinstance(cell, str) else cell


def original(cell: Any) -> Any:
    """Inverse of `inert`."""
    return _INERT_START.sub("", cell) if isinstance(cell, str) and "'" in cell else cell


def each_text(table: "pd.DataFrame", change: Callable[[Any], Any]) -> "pd.DataFrame":
    """`table` with `change`, `inert` or `original`, applied to its columns of texts."""
    return table.apply(lambda cells: cells.map(change) if cells.dtype.kind == "O" else cells)


def write_csv(
    path: Path, table: "pd.DataFrame", *, float_format: str | None = None, encoding: str = "utf-8"
) -> None:
    """Write a table without its index, with texts made `inert`; missing values are empty."""
    table = each_text(table.rename(columns=inert), inert)
    text = table.to_csv(index=False, float_format=float_format)
    if "\r" in text:
        text = table.to_csv(index=False, float_format=float_format, quoting=csv.QUOTE_ALL)
    write_text(path, text, encoding=encoding)


class CsvRows:
    """Write a header and rows to an open CSV file, with texts made `inert`.

    A carriage return, which a file name may contain, ends a row unless its field is quoted. `csv.writer`
    quotes only its own line terminator, so rows with a carriage return are quoted in full.
    """

    def __init__(self, file: TextIO, columns: Sequence[str]) -> None:
        self._plain = csv.writer(file, lineterminator="\n")
        self._quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        self._plain.writerow(columns)

    def write(self, row: Sequence[object]) -> None:
        """Write one row, in the order of the columns."""
        odd = any(isinstance(value, str) and "\r" in value for value in row)
        (self._quoted if odd else self._plain).writerow(map(inert, row))


def escaped(text: str) -> str:
    """`text` with invalid Unicode, as in file names of old archives, replaced by escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def settings_digest(values: Mapping[str, Any]) -> str:
    """Digest of settings, 12 hex digits, independent of their order; paths count as text."""
    return digest(json.dumps(values, default=str, sort_keys=True).encode())


def digest(*parts: bytes) -> str:
    """The first 12 hex digits of the SHA-256 of `parts`, each preceded by its length."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()[:12]
