"""ZIP files, as PACS export writes them, unpacked into a temporary folder.

In: the path of a ZIP file. Out: a folder with its files, removed after use. Names are made safe: parts `..`
and drive letters are dropped, backslashes of Windows programs separate folders, and of equal names the later
gets a number. Modification times are those in the ZIP, so that a second run finds unchanged files.

Source: PKWARE APPNOTE 6.3.10, 4.4.4 (bit 0: encrypted) and 4.4.17 (names).
"""

import os
import re
import shutil
import time
import zipfile
import zlib
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, gettempdir

from ich_mil.errors import DataError

MOST_FILES = 200_000
"""Maximum number of files in a ZIP: a study in slices of 0.5 mm has some hundred to a few thousand."""
MOST_BYTES = 1 << 36
"""Maximum unpacked size [bytes], 64 GiB."""
MOST_RATIO = 100
"""Maximum ratio of unpacked to packed size above `HARMLESS_BYTES`: CT is packed to a half or a third."""
HARMLESS_BYTES = 1 << 28
"""Unpacked size up to which the ratio does not matter [bytes]."""
_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")  # of the first file, of an empty ZIP
_ENCRYPTED = 0x1
_DRIVE = re.compile(r"[A-Za-z]:")


def is_zip(path: Path) -> bool:
    """Whether `path` is a file that begins as a ZIP."""
    try:
        with path.open("rb") as file:
            return file.read(4) in _MAGIC
    except OSError:
        return False


def check_zip(path: Path) -> None:
    """Check a ZIP by its directory, without unpacking; other paths pass. `DataError` as in `unpacked`."""
    if is_zip(path):
        with _opened(path):
            pass


@contextmanager
def unpacked(path: Path, only: Container[str] | None = None) -> Iterator[Path]:
    """Yield a temporary folder with the files of a ZIP; a path that is no ZIP is yielded itself.

    Args:
        path: ZIP file, or any other file or folder.
        only: paths in the folder of the files that are needed; None: all files.

    Raises:
        DataError: the ZIP is encrypted, damaged, packed in a way that is not read, has too many files, or is
            too large for the limits of this module or the temporary folder.
    """
    if path.is_dir() or not is_zip(path):
        yield path
        return
    with TemporaryDirectory(prefix="ich-mil-") as name:
        folder = Path(name)
        with _opened(path) as (archive, members):
            _unpack(archive, members, folder, only)
        yield folder


@contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]]:
    """The open ZIP and its files, after `_check`. `DataError`: it is refused, or cannot be unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            _check(members, path)
            yield archive, members
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        raise DataError(f"{path}: is a damaged ZIP ({error}); copy or export it again") from error
    except NotImplementedError as error:
        raise DataError(
            f"{path}: is packed in a way that is not read ({error}); unpack it and name the folder"
        ) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise DataError(
            f"{path}: cannot be unpacked into {gettempdir()} ({reason}); set TMPDIR to another folder"
        ) from error


def _unpack(
    archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], folder: Path, only: Container[str] | None
) -> None:
    for name, member in _names(members).items():
        if only is not None and name not in only:
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(member) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
        with suppress(ValueError, OverflowError):  # an impossible date
            seconds = time.mktime((*member.date_time, 0, 0, -1))
            os.utime(target, (seconds, seconds))


def _check(members: list[zipfile.ZipInfo], path: Path) -> None:
    """Check a ZIP by its directory, before anything is unpacked; no file can give more than stands there."""
    if any(member.flag_bits & _ENCRYPTED for member in members):
        raise DataError(f"{path}: is encrypted; unpack it with its password and name the folder")
    if not members:
        raise DataError(f"{path}: is a ZIP without files; export it again")
    size, packed = sum(m.file_size for m in members), sum(m.compress_size for m in members)
    if len(members) > MOST_FILES:
        limit = f"holds {len(members)} files, more than {MOST_FILES}"
    elif size > MOST_BYTES:
        limit = f"would unpack to {size >> 20} MB, more than {MOST_BYTES >> 20} MB"
    elif size > HARMLESS_BYTES and size > MOST_RATIO * packed:
        limit = f"would unpack {packed >> 10} kB to {size >> 20} MB, more than {MOST_RATIO} times as much"
    elif size > (free := shutil.disk_usage(gettempdir()).free):
        raise DataError(
            f"{path}: would unpack to {size >> 20} MB, and {gettempdir()} has {free >> 20} MB; set TMPDIR to "
            "a larger folder"
        )
    else:
        return
    raise DataError(f"{path}: {limit}; if you trust it, unpack it and name the folder")


def _names(members: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Members by their safe paths."""
    named: dict[str, zipfile.ZipInfo] = {}
    for number, member in enumerate(members):
        whole = PurePosixPath(member.filename.replace("\\", "/"))
        parts = [part for part in whole.parts if part not in ("/", "//", "..") and not _DRIVE.fullmatch(part)]
        name = "/".join(parts) or f"file {number}"
        named[f"{name} ({number})" if name in named else name] = member
    return named
