"""Exception classes for bad input and configuration.

Each message is one line: what is wrong, in which file or setting, and what to do about it. The commands print
it and exit with code 2; library users catch `IchMilError`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


class IchMilError(Exception):
    """Base class of all errors that bad input can cause."""


class ConfigError(IchMilError):
    """A configuration file or a command-line value that cannot be used."""


class DataError(IchMilError):
    """A data set, label file, prepared store or feature file that cannot be used."""


class DiskFullError(DataError):
    """The disk, or the user's quota on it, is full."""


class ScanError(DataError):
    """A scan of a batch that cannot be used.

    Attributes:
        scan: index in the batch.
        reason: what is wrong, and what to do.
    """

    def __init__(self, scan: int, reason: str) -> None:
        super().__init__(f"scan {scan}: {reason}")
        self.scan, self.reason = scan, reason


class DicomError(IchMilError):
    """A refused DICOM file.

    Attributes:
        code: ledger code (`ich_mil.ledger.Code`).
        study_uid: StudyInstanceUID; '' where unknown.
        series_uid: SeriesInstanceUID; '' where unknown.
        sop_uid: SOPInstanceUID; '' where unknown.
        orientation: direction cosines of ImageOrientationPatient; None where missing.
        is_dicom: False for a file that could not be opened, or without any sign of DICOM content.
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
    """Another process of the same run cannot be reached, or has ended early."""


def check_installed(package: str, extra: str, what: str) -> None:
    """Raise `ConfigError` unless the optional package that `what` needs is installed."""
    if find_spec(package) is None:
        raise ConfigError(f"{what}: {package} is not installed; pip install 'ich-mil[{extra}]'")


@contextmanager
def named(source: Path | str) -> Iterator[None]:
    """Prefix each `DataError` raised in this block with `source`, a file, folder or data set."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
