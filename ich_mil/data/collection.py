"""A collection: DICOM files on disk and what is known of their labels. One subclass a layout.

In: a root folder. Out: the files to look at, the scan each file belongs to, the label of each scan and slice.
Collections read label files and folder names only; pixels and geometry are the business of `ich_mil.dicom`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.ledger import LedgerEntry


class Source(NamedTuple):
    """One slice as label files know it: its file below the root, its SOP instance UID."""

    path: str
    sop: str


class Collection(ABC):
    """DICOM files below `root`, and their labels.

    Attributes:
        root: the folder.
        entries: ledger lines about the label files.
        pictures: whether PNG and JPEG files are slices too.
    """

    pictures = False

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            what = "is a file; name its folder" if root.is_file() else "no such folder; correct the path"
            raise DataError(f"{root}: {what}")
        self.root = root
        self.entries: list[LedgerEntry] = []

    @abstractmethod
    def files(self) -> Iterator[str]:
        """Every file that may be a slice, by its path below the root. `DataError`: no such folder."""

    def scan_id(self, path: str, study_uid: str) -> str:
        """The scan that a file below the root belongs to: its study, '' where that is not known."""
        return study_uid

    @abstractmethod
    def scan_label(self, scan: str, sources: Sequence[Source]) -> int:
        """0, 1 or `UNKNOWN` for a scan, given all of its slices."""

    def slice_label(self, sop: str, *, scan: str = "") -> int:
        """0, 1 or `UNKNOWN` for a slice, of this scan."""
        return UNKNOWN

    def patient(self, scan: str) -> str:
        """Key of the patient as the label files name it; '' where that of the DICOM files counts."""
        return ""

    @abstractmethod
    def check(
        self, scans: Iterable[tuple[str, Sequence[Source]]], refused: Iterable[LedgerEntry] = ()
    ) -> None:
        """Compare the labels with the scans that were found.

        Args:
            scans: each with its usable slices.
            refused: a line for each file that is none.

        Raises:
            DataError: scans without a label, or labels that name scans which are not there.
        """

    def check_twins(self, scan: str, other: str) -> None:  # noqa: B027 - most layouts accept any
        """Compare the labels of two scans with the same slices. `DataError` if they must be equal."""


def every_file(folder: Path, root: Path) -> Iterator[str]:
    """All files below `folder`, hidden and linked ones too, as paths below `root`.

    A folder that cannot be listed is given too, so that reading it says why. Paths are text: making a `Path`
    for each file would take longer than all the rest of a second run.

    Raises:
        DataError: `root` itself cannot be listed.
    """
    closed: list[str] = []
    seen: set[tuple[int, int]] = set()
    prefix = os.path.join(folder.relative_to(root), "") if folder != root else ""  # noqa: PTH118
    skipped = len(os.path.join(folder, ""))  # noqa: PTH118

    def keep(error: OSError) -> None:
        if str(error.filename) == str(root):
            reason = os.strerror(error.errno or 0)
            raise DataError(
                f"{root}: cannot be listed ({reason}); put the files where they can be read"
            ) from error
        closed.append(str(error.filename))

    for place, folders, names in os.walk(folder, onerror=keep, followlinks=True):
        folders.sort()
        status = os.stat(place)  # noqa: PTH116
        if (status.st_dev, status.st_ino) in seen:  # a link back up
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        start = prefix + os.path.join(place, "")[skipped:]  # noqa: PTH118
        for name in sorted(names):
            yield start + name
    for place in closed:
        yield prefix + place[skipped:]
