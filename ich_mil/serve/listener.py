"""DICOM listener: C-ECHO, and C-STORE into the spool.

In: associations of allowed AE titles. Out: objects in the spool. An object is written to disk while it is
received, and success is returned only after it is synced to disk. Number of connections, sizes of messages
and objects, and waiting times are limited.

Source: DICOM PS3.4 B.2 (C-STORE), table B.2-1 (its statuses); PS3.8 9.3 (PDUs).
"""

import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from shutil import disk_usage
from typing import Any, cast

from pydicom.uid import UncompressedTransferSyntaxes
from pynetdicom import AE, AllStoragePresentationContexts, _config, evt
from pynetdicom.dimse_primitives import C_STORE
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]
from pynetdicom.transport import ThreadedAssociationServer

from ich_mil.dicom.files.codec import PLUGINS
from ich_mil.errors import ConfigError, DataError
from ich_mil.serve.connection import Watch
from ich_mil.serve.log import say
from ich_mil.serve.metrics import Metrics
from ich_mil.serve.settings import ServeSettings
from ich_mil.serve.spool import RefusedError, Spool, SpoolFullError

SUCCESS, OUT_OF_RESOURCES, CANNOT_UNDERSTAND = 0x0000, 0xA700, 0xC000
SYNTAXES = [*UncompressedTransferSyntaxes, *PLUGINS]
"""Transfer syntaxes that `ich_mil.dicom` can decode, by preference. Others are rejected in the negotiation of
the association, so that the sender knows."""
IDLE_SECONDS = 60.0
"""A connection without data for this time is closed."""
REQUEST_SECONDS = 10.0
"""A connection without an association request within this time is closed: its caller is unidentified."""
PDU_BYTES = 1 << 17
"""Maximum length of a data PDU, announced to the caller; up to eight times as much is tolerated."""
_QUICK_ACK = getattr(socket, "TCP_QUICKACK", socket.TCP_NODELAY)
"""Socket option for immediate TCP acknowledgements: most senders wait for them between packets, 40 ms each
time without this option."""
_ROOM = 1 << 26
"""Free bytes on the disk below which reception is cut, far below `free_gb`."""


class Listener:
    """Listens from `start` to `stop`.

    Attributes:
        port: listening port.
    """

    def __init__(self, settings: ServeSettings, spool: Spool, metrics: Metrics) -> None:
        self._settings, self._spool, self._metrics = settings, spool, metrics
        self._server: ThreadedAssociationServer | None = None
        self._ae = AE(ae_title=settings.ae_title)
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
        handlers = [
            (evt.EVT_CONN_OPEN, self._bound),
            (evt.EVT_CONN_CLOSE, _woken),
            (evt.EVT_C_STORE, self._store),
        ]
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
        self._ae.shutdown()
        tempfile.tempdir = None

    def _store(self, event: evt.Event) -> int:
        """Handle one C-STORE request."""
        sender = event.assoc.requestor.ae_title
        try:
            request = cast(C_STORE, event.request)
            is_new = self._spool.store(event.dataset_path, sop_uid=str(request.AffectedSOPInstanceUID or ""))
        except (SpoolFullError, OSError, DataError) as error:
            self._metrics.add("objects_refused_total")
            say(f"{sender}: an object is refused, no room: {error}")
            return OUT_OF_RESOURCES
        except RefusedError as error:
            self._metrics.add("objects_refused_total")
            say(f"{sender}: an object is refused: {error}")
            return CANNOT_UNDERSTAND
        self._metrics.add("objects_received_total" if is_new else "objects_repeated_total")
        return SUCCESS

    def _bound(self, event: evt.Event) -> None:
        """Limit the bytes and the time of a connection.

        pynetdicom accepts any length that a caller claims.
        """
        watch = Watch(event.assoc, self._metrics)
        wire = cast(Any, event.assoc.dul.socket)  # pynetdicom has no public access to its socket
        receive: Callable[[int], bytearray] = wire.recv
        most_bytes = self._settings.instance_mb * 1e6
        taken = 0

        def bounded(n_bytes: int) -> bytearray:
            nonlocal taken
            taken += n_bytes
            if n_bytes > 8 * PDU_BYTES or taken > most_bytes:
                watch.why = "it sends more than it may"
                raise OSError("too long")  # makes pynetdicom close the connection
            if disk_usage(self._spool.incoming).free < _ROOM:
                watch.why = "no room on the disk of the spool"
                raise OSError("no room")
            wire.socket.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)  # not persistent
            return watch.hear(receive(n_bytes))

        def begin_again(_: evt.Event) -> None:
            nonlocal taken
            taken = 0

        wire.recv = bounded
        event.assoc.bind(evt.EVT_DIMSE_RECV, begin_again)
        wire.socket.settimeout(IDLE_SECONDS)
        # the timeouts of pynetdicom restart with each byte
        late = threading.Timer(REQUEST_SECONDS, _cut, args=(wire.socket, watch))
        late.daemon = True
        late.start()
        for done in (evt.EVT_REQUESTED, evt.EVT_CONN_CLOSE):
            event.assoc.bind(done, lambda _: late.cancel())


def _cut(wire: socket.socket, watch: Watch) -> None:
    """Shut down a connection without a request, which wakes the thread that waits for its data."""
    watch.why = f"no request for an association within {REQUEST_SECONDS:g} s"
    with suppress(OSError):  # already closed
        wire.shutdown(socket.SHUT_RDWR)


def _woken(event: evt.Event) -> None:
    """Wake the thread that waits for the request of a caller that has disconnected, such as a port check.

    pynetdicom would otherwise wait for `acse_timeout` and count the connection as open.
    """
    if event.assoc.requestor.primitive is None:
        event.assoc.dul.to_user_queue.put(None)  # as after the timeout
