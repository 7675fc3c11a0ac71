"""DICOM listener: C-ECHO, and C-STORE into the spool, from associations of allowed AE titles.

An object is written to disk while it is received, and success is returned only after it is synced to disk.
Number of connections, sizes of messages and objects, and waiting times are limited. A failed association
leaves one log line with the caller's AE title and address, and the reason; a connection that closes without
any data, such as a port check, leaves none.

Source: DICOM PS3.4 B.2 (C-STORE), table B.2-1 (its statuses); PS3.8 9.3 (PDUs), table 9-21 (reasons of a
rejection).
"""

import logging
import socket
import tempfile
import threading
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from pydicom.uid import UncompressedTransferSyntaxes
from pynetdicom import AE, AllStoragePresentationContexts, _config, evt, timer
from pynetdicom.association import Association
from pynetdicom.dimse_primitives import C_STORE
from pynetdicom.pdu import A_ASSOCIATE_RQ
from pynetdicom.pdu_primitives import A_ABORT, A_P_ABORT
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]
from pynetdicom.transport import ThreadedAssociationServer

from ich_mil.dicom.files.codec import PLUGINS
from ich_mil.errors import ConfigError, DataError
from ich_mil.serve.settings import ServeSettings
from ich_mil.serve.spool import LEAST_FREE, Spool, SpoolFullError
from ich_mil.serve.status import Metrics
from ich_mil.serve.studies import RefusedError

_LOG = logging.getLogger(__name__)
# pynetdicom takes its timeouts from the wall clock: after a jump back, silent associations would stay
timer.time = SimpleNamespace(time=time.monotonic)  # type: ignore[assignment]
SUCCESS, OUT_OF_RESOURCES, CANNOT_UNDERSTAND = 0x0000, 0xA700, 0xC000
SYNTAXES = [*UncompressedTransferSyntaxes, *PLUGINS]
"""Transfer syntaxes that `ich_mil.dicom` can decode, by preference. Others are rejected in the negotiation of
the association, so that the sender knows."""
IDLE_SECONDS = 60.0
"""A connection without data for this time is closed."""
REQUEST_SECONDS = 10.0
"""A connection without an association request within this time is closed: its caller is unidentified."""
HALF_OPEN, HALF_OPEN_OF_ADDRESS = 64, 8
"""Largest number of connections without an association request, in total and of one address; beyond it, the
oldest is closed. They do not count as `ServeSettings.associations`, so they cannot keep senders out."""
PDU_BYTES = 1 << 17
"""Maximum length of a data PDU, announced to the caller; up to eight times as much is tolerated."""
_QUICK_ACK = getattr(socket, "TCP_QUICKACK", socket.TCP_NODELAY)
"""Socket option for immediate TCP acknowledgements: most senders wait for them between packets, 40 ms each
time without this option."""
_REQUEST = 0x01
"""PDU type of an A-ASSOCIATE-RQ."""
_HEADER = 6
"""Length of a PDU header, bytes: type, reserved, length."""
_TITLES, _TITLE = (4, 20), 16
"""Offsets of the called and the calling AE title after the header, and their length, bytes."""


class _Node(AE):
    """Application entity whose limit of associations counts only callers that have asked for one."""

    @property
    def active_associations(self) -> list[Association]:
        return [one for one in super().active_associations if one.requestor.primitive is not None]


class Listener:
    """Listens from `start` to `stop`.

    Attributes:
        port: listening port.
    """

    def __init__(self, settings: ServeSettings, spool: Spool, metrics: Metrics) -> None:
        self._settings, self._spool, self._metrics = settings, spool, metrics
        self._server: ThreadedAssociationServer | None = None
        self._lock = threading.Lock()
        self._half_open: list[_Connection] = []  # the oldest first
        self._ae = _Node(ae_title=settings.ae_title)
        self._ae.require_called_aet = True
        self._ae.require_calling_aet = list(settings.senders)
        self._ae.maximum_associations = settings.associations
        self._ae.maximum_pdu_size = PDU_BYTES
        self._ae.acse_timeout = self._ae.dimse_timeout = self._ae.network_timeout = IDLE_SECONDS
        self._ae.add_supported_context(Verification)
        for context in AllStoragePresentationContexts:
            assert context.abstract_syntax is not None, "a storage class"
            self._ae.add_supported_context(context.abstract_syntax, SYNTAXES)
        self.port = settings.port

    def start(self) -> None:
        """Start listening. `ConfigError` if the port is taken or the address is not local."""
        # both settings are process-wide: objects are received into files in the spool, so that the last step
        # is a rename
        _config.STORE_RECV_CHUNKED_DATASET = True
        tempfile.tempdir = str(self._spool.incoming)
        handlers = [(evt.EVT_CONN_OPEN, self._opened), (evt.EVT_C_STORE, self._store)]
        host, port = self._settings.host, self._settings.port
        try:
            self._server = self._ae.start_server((host, port), block=False, evt_handlers=handlers)  # type: ignore[arg-type]
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} ({error.strerror or error}); choose another host or port"
            ) from error
        assert self._server is not None, "not blocking"
        self.port = self._server.server_address[1]

    def stop(self, *, grace: float) -> None:
        """Refuse new connections, wait up to `grace` seconds for open ones, then close them."""
        if self._server is not None:
            self._server.shutdown()
            self._server = None
        until = time.monotonic() + grace
        while self._ae.active_associations and time.monotonic() < until:
            time.sleep(0.05)
        with self._lock:
            for connection in self._half_open:
                connection.cut("the node stops")
        self._ae.shutdown()
        tempfile.tempdir = None

    def half_open(self) -> int:
        """Number of connections without an association request."""
        with self._lock:
            return len(self._half_open)

    def _store(self, event: evt.Event) -> int:
        """Handle one C-STORE request."""
        sender = event.assoc.requestor.ae_title
        try:
            request = cast(C_STORE, event.request)
            is_new = self._spool.store(event.dataset_path, sop_uid=str(request.AffectedSOPInstanceUID or ""))
        except (SpoolFullError, OSError, DataError) as error:
            self._metrics.add("objects_refused_total")
            _LOG.error("%s: an object is refused: %s", sender, error)
            return OUT_OF_RESOURCES
        except RefusedError as error:
            self._metrics.add("objects_refused_total")
            _LOG.warning("%s: an object is refused: %s", sender, error)
            return CANNOT_UNDERSTAND
        self._metrics.add("objects_received_total" if is_new else "objects_repeated_total")
        return SUCCESS

    def _opened(self, event: evt.Event) -> None:
        """Limit a new connection, and the number of connections without a request."""
        connection = _Connection(event.assoc, self._settings.instance_mb * 1e6, self._spool, self._metrics)
        for known in (evt.EVT_REQUESTED, evt.EVT_CONN_CLOSE):
            event.assoc.bind(known, lambda _: self._forget(connection))
        with self._lock:
            self._half_open.append(connection)
            same = [one for one in self._half_open if one.address == connection.address]
            for found, most in ((same, HALF_OPEN_OF_ADDRESS), (self._half_open, HALF_OPEN)):
                for oldest in found[: len(found) - most if len(found) > most else 0]:
                    oldest.cut("too many connections without a request for an association")
                    self._half_open.remove(oldest)

    def _forget(self, connection: "_Connection") -> None:
        with self._lock, suppress(ValueError):  # cut before
            self._half_open.remove(connection)


class _Connection:
    """Limits of the bytes and the time of one connection, and at most one log line about its failure.

    pynetdicom accepts any length that a caller claims, and its timeouts restart with each byte.
    """

    def __init__(self, association: Association, most_bytes: float, spool: Spool, metrics: Metrics) -> None:
        self._peer: Any = association.requestor
        self.address = self._peer.address
        self._most_bytes, self._spool, self._metrics = most_bytes, spool, metrics
        self._wire = cast(Any, association.dul.socket)  # pynetdicom has no public access to its socket
        self._receive = self._wire.recv
        self._kind = self._n_bytes = self._of_message = 0
        self._caller = self._why = ""
        self._requested = self._logged = False
        self._wire.recv = self.receive
        self._wire.socket.settimeout(IDLE_SECONDS)
        late = f"no request for an association within {REQUEST_SECONDS:g} s"
        self._late = threading.Timer(REQUEST_SECONDS, self.cut, args=(late,))
        self._late.daemon = True
        for event, handler in (
            (evt.EVT_REQUESTED, lambda _: self._late.cancel()),
            (evt.EVT_PDU_RECV, self._received),
            (evt.EVT_DIMSE_RECV, self._begin_again),
            (evt.EVT_ACSE_SENT, self._answered),
            (evt.EVT_ACSE_RECV, self._ended),
            (evt.EVT_REJECTED, self._rejected),
            (evt.EVT_ABORTED, self._aborted),
            (evt.EVT_CONN_CLOSE, self._closed),
        ):
            association.bind(event, handler)
        self._late.start()

    def receive(self, n_bytes: int) -> bytearray:
        """Receive up to `n_bytes` bytes; an `OSError` makes pynetdicom close the connection."""
        self._of_message += n_bytes
        if n_bytes > 8 * PDU_BYTES or self._of_message > self._most_bytes:
            self._why = "it sends more than is allowed"
            raise OSError("too long")
        if self._spool.free_bytes() < LEAST_FREE:
            self._why = self._spool.problem()
            raise OSError("no room")
        self._wire.socket.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)  # not persistent
        content: bytearray = self._receive(n_bytes)
        if not self._n_bytes and len(content) == _HEADER:
            self._kind = content[0]
        elif not self._requested and self._kind == _REQUEST and len(content) >= _TITLES[1] + _TITLE:
            for at in _TITLES:  # some callers pad AE titles with NUL, which pynetdicom does not accept
                title = bytes(content[at : at + _TITLE]).split(b"\0")[0]
                content[at : at + _TITLE] = title.ljust(_TITLE)
                self._caller = title.decode("ascii", "replace").strip()
        self._n_bytes += len(content)
        return content

    def cut(self, why: str) -> None:
        """Shut down a connection without a request, which wakes the thread that waits for its data."""
        self._why = why
        with suppress(OSError):  # already closed
            self._wire.socket.shutdown(socket.SHUT_RDWR)

    def _received(self, event: evt.Event) -> None:
        self._requested = self._requested or isinstance(event.pdu, A_ASSOCIATE_RQ)

    def _begin_again(self, _: evt.Event) -> None:
        self._of_message = 0

    def _answered(self, event: evt.Event) -> None:
        answer = cast(Any, event).primitive
        if getattr(answer, "result", 0) in (1, 2):
            self._why = answer.reason_str

    def _ended(self, event: evt.Event) -> None:
        end = cast(Any, event).primitive
        if isinstance(end, (A_ABORT, A_P_ABORT)) and not self._why:
            by_caller = isinstance(end, A_ABORT)
            self._why = "by the caller" if by_caller else "the connection was lost or fell silent"

    def _rejected(self, _: evt.Event) -> None:
        self._metrics.add("associations_rejected_total")
        self._log("rejected", self._why)

    def _aborted(self, _: evt.Event) -> None:
        self._metrics.add("associations_broken_total")
        self._log("aborted", self._why or "no more data, or the node stops")

    def _closed(self, event: evt.Event) -> None:
        self._late.cancel()
        if not self._requested and (self._n_bytes or self._why):
            self._log("refused", self._why or "it sent no valid request for an association")
        if event.assoc.requestor.primitive is None:
            # wake the thread that waits for the request, as after `acse_timeout`
            event.assoc.dul.to_user_queue.put(None)

    def _log(self, what: str, why: str) -> None:
        if not self._logged:
            self._logged = True
            caller = self._caller or self._peer.ae_title
            _LOG.warning("%s: %r from %s:%s: %s", what, caller, self.address, self._peer.port, why)
