"""Log of failed DICOM associations: rejected, aborted, refused or lost.

In: an incoming association and its received bytes. Out: at most one log line, with the time, the caller's AE
title and address, and the reason. AE titles padded with NUL, as some callers send them, are padded with
blanks before pynetdicom parses them. A connection that closes without any data, such as a port check, is not
logged.

Source: DICOM PS3.8 9.3.2 (A-ASSOCIATE-RQ), table 9-21 (reasons of a rejection).
"""

from datetime import datetime
from typing import Any, cast

from pynetdicom import evt
from pynetdicom.association import Association
from pynetdicom.pdu import A_ASSOCIATE_RQ
from pynetdicom.pdu_primitives import A_ABORT, A_P_ABORT

from ich_mil.serve.log import say
from ich_mil.serve.metrics import Metrics

_REQUEST = 0x01
"""PDU type of an A-ASSOCIATE-RQ."""
_HEADER = 6
"""Length of a PDU header, bytes: type, reserved, length."""
_TITLES, _TITLE = (4, 20), 16
"""Offsets of the called and the calling AE title after the header, and their length, bytes."""


class Watch:
    """Event handlers for one connection, from its opening to its end.

    Attributes:
        why: reason why this node ends the connection, '' if there is none.
    """

    def __init__(self, association: Association, metrics: Metrics) -> None:
        self.why = ""
        self._caller, self._peer = "", association.requestor
        self._metrics = metrics
        self._kind = self._n_bytes = 0
        self._requested = self._told = False
        for event, handler in (
            (evt.EVT_PDU_RECV, self._received),
            (evt.EVT_ACSE_SENT, self._answered),
            (evt.EVT_ACSE_RECV, self._ended),
            (evt.EVT_REJECTED, self._rejected),
            (evt.EVT_ABORTED, self._aborted),
            (evt.EVT_CONN_CLOSE, self._closed),
        ):
            association.bind(event, handler)

    def hear(self, content: bytearray) -> bytearray:
        """Inspect received bytes; returns them with NUL padding of AE titles replaced by blanks."""
        if not self._n_bytes and len(content) == _HEADER:
            self._kind = content[0]
        elif not self._requested and self._kind == _REQUEST and len(content) >= _TITLES[1] + _TITLE:
            for at in _TITLES:
                title = bytes(content[at : at + _TITLE]).split(b"\0")[0]
                content[at : at + _TITLE] = title.ljust(_TITLE)
                self._caller = title.decode("ascii", "replace").strip()
        self._n_bytes += len(content)
        return content

    def _received(self, event: evt.Event) -> None:
        self._requested = self._requested or isinstance(event.pdu, A_ASSOCIATE_RQ)

    def _answered(self, event: evt.Event) -> None:
        answer = cast(Any, event).primitive
        if getattr(answer, "result", 0) in (1, 2):
            self.why = answer.reason_str

    def _ended(self, event: evt.Event) -> None:
        end = cast(Any, event).primitive
        if isinstance(end, (A_ABORT, A_P_ABORT)) and not self.why:
            by_caller = isinstance(end, A_ABORT)
            self.why = "by the caller" if by_caller else "the connection was lost or fell silent"

    def _rejected(self, _: evt.Event) -> None:
        self._metrics.add("associations_rejected_total")
        self._tell("rejected", self.why)

    def _aborted(self, _: evt.Event) -> None:
        self._metrics.add("associations_broken_total")
        self._tell("aborted", self.why or "nothing more came, or the node stops")

    def _closed(self, _: evt.Event) -> None:
        if not self._requested and (self._n_bytes or self.why):
            self._tell("refused", self.why or "what it sent is no valid request for an association")

    def _tell(self, what: str, why: str) -> None:
        if self._told:
            return
        self._told = True
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        peer: Any = self._peer
        say(f"{now} {what}: {self._caller or peer.ae_title!r} from {peer.address}:{peer.port}: {why}")
