"""Settings of a DICOM node: network addresses, allowed senders, resource limits.

Source: DICOM PS3.5 table 6.2-1 (AE titles).
"""

from dataclasses import dataclass
from pathlib import Path

from ich_mil.settings import check_least

AE_LENGTH = 16
"""Maximum length of an AE title, characters."""


NODE_MB, ASSOCIATION_MB = 256.0, 4.0
"""Parts of `memory_mb` without judging processes, MB: interpreter (100), the header of an object (100); each
association."""


def check_ae_title(name: str, title: str) -> None:
    """Raise `ValueError` if `title` is not a valid AE title.

    Valid: 1 to 16 printable ASCII characters without backslash and without leading or trailing blanks.
    """
    fits = 1 <= len(title) <= AE_LENGTH and title.isascii() and title.isprintable() and "\\" not in title
    if not fits or title != title.strip():
        raise ValueError(
            f"{name} must be 1 to {AE_LENGTH} ASCII characters, without backslash or outer blanks, "
            f"got {title!r}"
        )


def _check_port(name: str, port: int, *, least: int) -> None:
    if not least <= port <= 65535:
        raise ValueError(f"{name} must be {least} to 65535, got {port}")


@dataclass(frozen=True)
class ArchiveSettings:
    """AE title, host name or address, and DICOM port of the archive that receives the results."""

    ae_title: str
    host: str
    port: int

    def __post_init__(self) -> None:
        check_ae_title("archive.ae_title", self.ae_title)
        if not self.host.strip():
            raise ValueError("archive.host must not be empty")
        _check_port("archive.port", self.port, least=1)


@dataclass(frozen=True)
class ServeSettings:
    """All settings of a node.

    Attributes:
        spool: folder of the queue, on a disk that honours fsync.
        archive: destination of the results.
        senders: calling AE titles that may connect; all others are rejected.
        model: folder of a finished run; the bundled model by default.
        triage: file of thresholds from `ich-mil triage`; None decides by the 95 % interval.
        contrast_words: a CSV of the site with columns phrase,meaning; it takes precedence over the built-in
            table.
        ae_title: AE title of this node, which callers must use.
        host: address to listen on; 0.0.0.0 listens on all interfaces.
        port: DICOM port; 0 selects a free port.
        http_port: port of health and metrics, always on 127.0.0.1; 0 selects a free port.
        silence_seconds: a study is complete after this time without a new object.
        workers: number of studies processed in parallel, each in a separate process.
        attempts: maximum number of attempts for a study whose process crashes or exceeds a limit.
        study_seconds: time limit for one study.
        memory_mb: maximum resident memory of the node with its judging processes, MB (`judge_mb`).
        retry_seconds: pause after a failed send; doubled after each further failure.
        longest_retry_seconds: maximum pause.
        associations: maximum number of simultaneous connections.
        instance_mb: maximum size of a received DICOM object, MB.
        spool_gb: maximum size of the spool, GB; above it C-STORE returns 'out of resources'.
        free_gb: minimum free disk space, GB; below it C-STORE returns 'out of resources'.
        keep_hours: time that a study stays in the spool after its results were sent or it failed.
    """

    spool: Path
    archive: ArchiveSettings
    senders: list[str]
    model: Path = Path("headct-base")
    triage: Path | None = None
    contrast_words: Path | None = None
    ae_title: str = "ICH_MIL"
    host: str = "127.0.0.1"
    port: int = 11112
    http_port: int = 11180
    silence_seconds: float = 30.0
    workers: int = 1
    attempts: int = 2
    study_seconds: float = 600.0
    memory_mb: float = 8192.0
    retry_seconds: float = 10.0
    longest_retry_seconds: float = 3600.0
    associations: int = 8
    instance_mb: float = 1024.0
    spool_gb: float = 50.0
    free_gb: float = 2.0
    keep_hours: float = 168.0

    @property
    def judge_mb(self) -> float:
        """Share of each judging process in `memory_mb`, MB; a process above it is replaced."""
        return (self.memory_mb - NODE_MB - ASSOCIATION_MB * self.associations) / self.workers

    def __post_init__(self) -> None:
        check_ae_title("ae_title", self.ae_title)
        if not self.senders:
            raise ValueError("senders must name the AE titles that may send, at least one")
        for title in self.senders:
            check_ae_title("senders", title)
        _check_port("port", self.port, least=0)
        _check_port("http_port", self.http_port, least=0)
        check_least(self, workers=1, attempts=1, associations=1, free_gb=0, keep_hours=0)
        for name in (
            "silence_seconds",
            "study_seconds",
            "memory_mb",
            "retry_seconds",
            "instance_mb",
            "spool_gb",
        ):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0 and finite, got {getattr(self, name)}")
        if self.judge_mb <= 0:
            raise ValueError(
                f"memory_mb must be above {NODE_MB:g} and {ASSOCIATION_MB:g} for each of the associations "
                f"({self.associations}), got {self.memory_mb}"
            )
        if not self.retry_seconds <= self.longest_retry_seconds < float("inf"):
            raise ValueError(
                f"longest_retry_seconds must be at least retry_seconds ({self.retry_seconds}) "
                f"and finite, got {self.longest_retry_seconds}"
            )
