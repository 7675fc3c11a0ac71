"""Settings of a DICOM node: network addresses, allowed senders, resource limits.

Source: DICOM PS3.5 table 6.2-1 (AE titles).
"""

import os
import ssl
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from ich_mil.settings import check_least

AE_LENGTH = 16
"""Maximum length of an AE title, characters."""
SECRET_VARIABLE = "ICH_MIL_ARCHIVE_SECRET"
"""Environment variable of the password or token, where no `secret_file` is named."""


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
    """Archive that receives the results: a peer of C-STORE, or the URL of a DICOMweb service (STOW-RS).

    The password or token is in `secret_file` or in the environment variable `SECRET_VARIABLE`.

    Attributes:
        ae_title: AE title of the peer.
        host: its host name or address.
        port: its DICOM port.
        url: base URL of the service, such as https://pacs.example/dicom-web; http on this machine only.
        user: user name of HTTP basic authentication; without it the secret is a bearer token.
        secret_file: file with the password or token; read for each delivery.
        ca_bundle: PEM file of the certificate authorities of the service; the system's by default.
    """

    ae_title: str = ""
    host: str = ""
    port: int = 0
    url: str = ""
    user: str = ""
    secret_file: Path | None = None
    ca_bundle: Path | None = None

    def __post_init__(self) -> None:
        peer, service = (self.ae_title, self.host, self.port), (self.user, self.secret_file, self.ca_bundle)
        if any(peer if self.url else service) or not any((*peer, self.url)):
            raise ValueError(
                "archive needs either ae_title, host and port, or url (with user, secret_file, ca_bundle)"
            )
        if self.url:
            self._check_service()
            return
        check_ae_title("archive.ae_title", self.ae_title)
        if not self.host.strip():
            raise ValueError("archive.host must not be empty")
        _check_port("archive.port", self.port, least=1)

    @property
    def name(self) -> str:
        """AE title of the peer, or host and port of the URL."""
        return self.ae_title or urlsplit(self.url).netloc

    def secret(self) -> str:
        """Password or token; '' if there is none. `ValueError` if it cannot be used."""
        source = str(self.secret_file or SECRET_VARIABLE)
        try:
            secret = self.secret_file.read_text() if self.secret_file else os.environ.get(SECRET_VARIABLE, "")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"archive.secret_file {source}: cannot be read as text") from error
        secret = secret.strip()
        if not secret and (self.user or self.secret_file):
            raise ValueError(f"{source}: holds no password or token for {self.name}")
        if not (self.user or (secret.isascii() and secret.isprintable())):  # its value must not be shown
            raise ValueError(f"{source}: holds no token, which is one line of ASCII characters")
        return secret

    def _check_service(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_here = parts.hostname in ("localhost", "127.0.0.1", "::1")
            fits = parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and is_here))
            fits = fits and parts.port != 0 and not ({"@", "?", "#"} & set(self.url))
        except ValueError:  # the port is no number
            fits = False
        if not fits:  # the URL is not shown: it may hold a password
            raise ValueError(
                "archive.url must be https://HOST[:PORT]/PATH (http only on this machine), without a user, "
                "which stands in archive.user, and without '?' and '#'"
            )
        if find_spec("dicomweb_client") is None:
            raise ValueError("archive.url needs the package dicomweb-client: pip install 'ich-mil[dicomweb]'")
        try:
            ssl.create_default_context(cafile=self.ca_bundle)
        except OSError as error:
            raise ValueError(
                f"archive.ca_bundle {self.ca_bundle}: is not a file of certificates in PEM format"
            ) from error
        self.secret()


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
