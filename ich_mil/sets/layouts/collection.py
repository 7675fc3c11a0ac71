"""Collection: DICOM files below a root folder, and their labels. One subclass per folder layout.

Collections read label files and folder names only; `ich_mil.study` reads pixels and geometry.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ich_mil.errors import DataError
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.progress import say
from ich_mil.sets.labels import UNKNOWN
from ich_mil.sets.scan_labels import unlabelled
from ich_mil.study.files.header import SliceHeader


class Source(NamedTuple):
    """Source of one slice: the path of its file below the root, and its SOP instance UID."""

    path: str
    sop: str


class Series(NamedTuple):
    """A series of a scan: scan id, SeriesInstanceUID, and the path of one of its files below the root."""

    scan: str
    uid: str
    path: str


Scans = Iterable[tuple[str, Sequence[Source]]]
"""Scan ids, each with its usable slices."""
Refused = Iterable[LedgerEntry]
"""A ledger line for each file that is not a usable slice."""


class Collection(ABC):
    """DICOM files below a root folder, and their labels.

    Attributes:
        root: the folder.
        entries: ledger lines about the label files.
        left_out: scans without a label, which take no part; known after `check`.
        pictures: whether PNG and JPEG files count as slices.
    """

    pictures = False

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            what = "is a file; name its folder" if root.is_file() else "no such folder; correct the path"
            raise DataError(f"{root}: {what}")
        self.root = root
        self.entries: list[LedgerEntry] = []
        self.left_out: set[str] = set()

    @abstractmethod
    def files(self) -> Iterator[str]:
        """Paths, relative to the root, of all files that may be slices. `DataError`: no such folder."""

    def scan_id(self, path: str, study_uid: str) -> str:
        """Id of the scan that a file belongs to: by default its study UID, '' where unknown."""
        return study_uid

    @abstractmethod
    def scan_label(self, scan: str, sources: Sequence[Source]) -> int:
        """Label of a scan, given all of its slices: 0, 1 or `UNKNOWN`."""

    def slice_label(self, sop: str, *, scan: str = "") -> int:
        """Label of one slice of `scan`: 0, 1 or `UNKNOWN`."""
        return UNKNOWN

    def patient(self, scan: str) -> str:
        """Patient key from the label files; '' to use the PatientID of the DICOM files."""
        return ""

    def named_elsewhere(self, scan: str, used: set[str], headers: Callable[[], Sequence[SliceHeader]]) -> str:
        """Name in the row of a label that means other slices of the scan than those `used`; ''.

        `used` are names of slices (`slice_name`), `headers` reads those of the scan.
        """
        return ""

    @abstractmethod
    def check(self, scans: Scans, refused: Refused = (), series: Iterable[Series] = ()) -> None:
        """Compare the labels with the scans and their series. `DataError`: labels that do not fit."""

    def leave_out(self, scans: Mapping[str, str], reading: str) -> None:
        """Leave scans without a label out of the set, and print what was read of the labels.

        `scans` maps scan ids to the path of one of their files, `reading` is the reading of the table.
        """
        self.left_out = {*scans}
        detail = "it has no label and takes no part"
        self.entries += [LedgerEntry(scan, path, Code.NO_LABEL, detail) for scan, path in scans.items()]
        say(f"{reading}{unlabelled(len(scans))}")

    def check_twins(self, scan: str, other: str) -> None:  # noqa: B027 - most layouts accept any
        """Raise `DataError` if the labels of two scans with identical slices conflict."""


def every_file(folder: Path, root: Path) -> Iterator[str]:
    """List all files below `folder`, including hidden files and links, as paths relative to `root`.

    A folder that cannot be listed is yielded as well: the attempt to read it then yields the reason. Paths
    are strings, because creating a `Path` for each file would take longer than the rest of a second run.
    `DataError` if `root` itself cannot be listed.
    """
    closed: list[str] = []
    seen: set[tuple[int, int]] = set()
    base = str(root.absolute())
    skipped = len(os.path.join(base, ""))  # noqa: PTH118

    def keep(error: OSError) -> None:
        if str(error.filename) == base:
            reason = os.strerror(error.errno or 0)
            raise DataError(f"{root}: cannot be listed ({reason}); make the folder readable") from error
        closed.append(str(error.filename))

    for parent, folders, names in os.walk(folder.absolute(), onerror=keep, followlinks=True):
        folders.sort()
        status = os.stat(parent)  # noqa: PTH116
        if (status.st_dev, status.st_ino) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        start = os.path.join(parent, "")[skipped:]  # noqa: PTH118
        yield from (start + name for name in sorted(names))
    yield from (path[skipped:] for path in closed)
