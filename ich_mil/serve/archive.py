"""Connection to the archive that receives the results: C-STORE over an association, or STOW-RS over HTTP.

Source: DICOM PS3.4 B.2 (C-STORE), table B.2-1 (its statuses); PS3.18 10.5 (Store Transaction), table
10.5.3-1 (its statuses), I.2 (Store Instances Response).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pydicom import dcmread
from pydicom.uid import UID, ImplicitVRLittleEndian
from pynetdicom import AE
from pynetdicom.association import Association

from ich_mil.serve.settings import ArchiveSettings, ServeSettings

TIMEOUT_SECONDS = 30.0
"""Time limit for each response of the archive."""
_WARNINGS = range(0xB000, 0xC000)
"""Status codes of C-STORE for stored with a warning."""
_CONFLICT = 409
"""HTTP status of a request of which no instance was stored; the answer gives the reason."""
_MAY_HEAL = (404, 408, _CONFLICT, 425, 429)
"""HTTP statuses below 500 that time or a restart of the archive can change."""
_SILENT = "the archive does not answer"

Store = Callable[[Path], None]
"""Sends one file. Raises `NotTakenError` or `UnreachableError`."""


class UnreachableError(Exception):
    """Nothing can be sent at the moment."""


class NotTakenError(Exception):
    """A file that the archive did not store. `may_heal`: another try may succeed."""

    def __init__(self, reason: str, *, may_heal: bool = True) -> None:
        super().__init__(reason)
        self.may_heal = may_heal


def connect(settings: ServeSettings, files: Sequence[Path]) -> AbstractContextManager[Store]:
    """Context of a connection over which `files` can be sent. Raises `UnreachableError`."""
    return _http(settings.archive) if settings.archive.url else _association(settings, files)


@contextmanager
def _association(settings: ServeSettings, files: Sequence[Path]) -> Iterator[Store]:
    ae, archive = AE(ae_title=settings.ae_title), settings.archive
    ae.acse_timeout = ae.dimse_timeout = ae.network_timeout = ae.connection_timeout = TIMEOUT_SECONDS
    for sop_class, syntaxes in _contexts(files).items():
        ae.add_requested_context(sop_class, syntaxes)
    association = ae.associate(archive.host, archive.port, ae_title=archive.ae_title)
    if not association.is_established:
        raise UnreachableError(_why_not(association))
    try:
        yield partial(_c_store, association)
    finally:
        if association.is_established:
            association.release()


def _contexts(files: Sequence[Path]) -> dict[str, list[str]]:
    """Transfer syntaxes by SOP class.

    Uncompressed files also offer Implicit VR Little Endian, which every archive supports.
    """
    contexts: dict[str, list[str]] = {}
    for path in files:
        meta = dcmread(path, specific_tags=["SOPClassUID"]).file_meta
        own = UID(meta.TransferSyntaxUID)
        syntaxes = [own] if own.is_encapsulated else [own, ImplicitVRLittleEndian]
        contexts.setdefault(meta.MediaStorageSOPClassUID, []).extend(syntaxes)
    return contexts


def _c_store(association: Association, path: Path) -> None:
    if not association.is_established:
        raise UnreachableError(_SILENT)
    try:
        status = association.send_c_store(path)
    except ValueError as error:  # raised by pynetdicom without an accepted context
        name = dcmread(path, specific_tags=["SOPClassUID"]).SOPClassUID.name
        raise NotTakenError(f"the archive does not accept {name}") from error
    if "Status" not in status:
        raise UnreachableError(_SILENT)
    if status.Status != 0 and status.Status not in _WARNINGS:
        raise NotTakenError(f"the archive answers with status 0x{status.Status:04X}")


def _why_not(association: Association) -> str:
    """Reason why an association was not established."""
    if association.is_rejected:
        return "the archive rejects the association"
    if association.rejected_contexts:
        names = dict.fromkeys(
            UID(context.abstract_syntax or "").name for context in association.rejected_contexts
        )
        return f"the archive does not accept {', '.join(names)}"
    return "the archive cannot be reached" if association.is_aborted else "no association with the archive"


@contextmanager
def _http(archive: ArchiveSettings) -> Iterator[Store]:
    import requests
    from dicomweb_client.api import DICOMwebClient
    from requests.auth import HTTPBasicAuth

    secret = archive.secret()  # read again for each delivery: tokens expire
    headers = {"Accept": "application/dicom+json"}
    with requests.Session() as session:
        if archive.user:
            session.auth = HTTPBasicAuth(archive.user.encode(), secret.encode())
        elif secret:
            headers["Authorization"] = f"Bearer {secret}"
        session.trust_env = False  # else .netrc and REQUESTS_CA_BUNDLE override the settings
        session.max_redirects = 0  # results go to no other address
        session.verify = True if archive.ca_bundle is None else str(archive.ca_bundle)
        client = DICOMwebClient(
            archive.url.rstrip("/"),
            session=session,
            proxies=requests.utils.get_environ_proxies(archive.url),
            headers=headers,
            callback=_readable,
            timeout=TIMEOUT_SECONDS,
        )
        client.set_http_retry_params(retry=False)  # the outbox tries again
        client.host = archive.name  # Host header: with the port
        yield partial(_stow, client)


def _readable(response: Any, **_: Any) -> None:
    """Let dicomweb-client read an answer.

    The client compares the media type including parameters such as the charset, and does not read the reasons
    in an answer of status 409.
    """
    response.headers["Content-Type"] = response.headers.get("Content-Type", "").partition(";")[0].strip()
    if response.status_code == _CONFLICT and response.content:
        response.status_code = 202


def _stow(client: Any, path: Path) -> None:
    """Send one file. Messages of requests are not passed on: they may contain UIDs and headers."""
    import requests

    image = dcmread(path)
    uid = image.SOPInstanceUID
    try:
        answer = client.store_instances([image])
        stored = {item.ReferencedSOPInstanceUID for item in answer.get("ReferencedSOPSequence") or ()}
        failed = {
            item.ReferencedSOPInstanceUID: int(item.FailureReason)
            for item in answer.get("FailedSOPSequence") or ()
        }
    except requests.HTTPError as error:
        status = error.response.status_code
        reason = f"the archive answers with HTTP status {status}"
        if status in (401, 403):
            raise UnreachableError(f"{reason}: it does not accept the user or the token") from error
        raise NotTakenError(reason, may_heal=status >= 500 or status in _MAY_HEAL) from error
    except requests.exceptions.SSLError as error:
        reason = "has no TLS, or a certificate that is not accepted; see archive.ca_bundle"
        raise UnreachableError(f"the archive {reason}") from error
    except requests.Timeout as error:
        raise UnreachableError(_SILENT) from error
    except requests.TooManyRedirects as error:
        raise UnreachableError("the archive redirects to another address") from error
    except requests.ConnectionError as error:
        # perhaps of this file only, such as one too large
        raise NotTakenError("the archive cannot be reached, or closes the connection") from error
    except Exception as error:
        raise NotTakenError(f"the archive's answer cannot be read ({type(error).__name__})") from error
    if uid in failed:
        raise NotTakenError(f"the archive answers with failure reason 0x{failed[uid]:04X}")
    if uid not in stored:
        raise NotTakenError("the archive does not name the file as stored")
