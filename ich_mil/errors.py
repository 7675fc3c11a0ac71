"""The errors a user can cause. Each carries one line: what is wrong, where, and what to do about it.

The commands print that line and exit with code 2; library users catch `IchMilError`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class IchMilError(Exception):
    """Base of every error that bad input can cause."""


class ConfigError(IchMilError):
    """A configuration file or a command-line value that cannot be used."""


class DataError(IchMilError):
    """A data set, label file, prepared store or feature file that cannot be used."""


class DiskFullError(DataError):
    """There is no room for what is written: the disk, or our share of it, is full."""


class ScanError(DataError):
    """One of several scans that cannot be used, known by its place.

    `scan` is its number, `reason` what is wrong with it and what to do.
    """

    def __init__(self, scan: int, reason: str) -> None:
        super().__init__(f"scan {scan}: {reason}")
        self.scan, self.reason = scan, reason


class DicomError(IchMilError):
    """One DICOM file that is refused.

    `code` is its ledger code (`ich_mil.ledger.Code`), `study_uid` and `series_uid` what it is of and
    `sop_uid` its own name, '' where not known; `orientation` its direction cosines, None where it has none;
    `is_dicom` is False where nothing in it shows that it is DICOM at all, or nothing could be seen.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code
        self.study_uid = self.series_uid = self.sop_uid = ""
        self.orientation: tuple[float, ...] | None = None
        self.is_dicom = True


class ModelError(IchMilError):
    """A checkpoint, run folder or saved head that cannot be used."""


class ProcessError(IchMilError):
    """Another process of the same run cannot be reached, or has ended before its time."""


@contextmanager
def named(source: Path | str) -> Iterator[None]:
    """Name the file, folder or set of the data in the `DataError`s of this block."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
