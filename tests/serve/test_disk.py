"""Whether an error is the disk's fault."""

import errno
import sqlite3

import pytest

from ich_mil.errors import DataError
from ich_mil.files import whole_file
from ich_mil.serve.disk import is_disk_full


def raised_by(action):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind
        action()
    return caught.value


def full_device():
    with open("/dev/full", "wb", buffering=0) as file:  # noqa: PTH123 - a device
        file.write(b"x")


def full_database():
    with sqlite3.connect(":memory:") as database:
        database.execute("PRAGMA max_page_count = 1")
        database.execute("CREATE TABLE a (b)")


def test_errors_of_a_full_disk_are_known():
    assert is_disk_full(raised_by(full_device))
    assert is_disk_full(raised_by(full_database))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "x"),
        OSError(errno.EDQUOT, "x"),
        RuntimeError('IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })'),
        RuntimeError('I/O error: No space left on device (os error 28) at path "/x/.tmpEXGcTV"'),
        RuntimeError('I/O error: Disk quota exceeded (os error 122) at path "/x/.tmpEXGcTV"'),
    ],
)
def test_so_are_they_behind_our_own(tmp_path, error):
    def write():
        with whole_file(tmp_path / "file"):
            raise error

    ours = raised_by(write)
    assert isinstance(ours, DataError)
    assert is_disk_full(ours)
    outer = DataError("outer")
    outer.__cause__ = ours
    assert is_disk_full(outer)


@pytest.mark.parametrize(
    "error",
    [
        DataError("none of its files is a CT slice"),
        DataError("the modality is 'No space left on device'"),
        OSError(errno.EACCES, "x"),
        sqlite3.OperationalError("no such table"),
        KeyError("bug"),
    ],
)
def test_others_are_not(error):
    assert not is_disk_full(error)
    outer = DataError("outer")
    outer.__cause__ = error
    assert not is_disk_full(outer)
