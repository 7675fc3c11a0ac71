"""Sender of results to the archive by C-STORE, with retries.

Source: DICOM PS3.4 B.2 (C-STORE), table B.2-1 (its statuses).
"""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pydicom import dcmread
from pydicom.uid import UID, ImplicitVRLittleEndian
from pynetdicom import AE
from pynetdicom.association import Association

from ich_mil.errors import IchMilError
from ich_mil.serve.outbox import Delivery, Outbox
from ich_mil.serve.settings import ServeSettings
from ich_mil.serve.status import Metrics

_LOG = logging.getLogger(__name__)
LOOK_SECONDS = 0.1
TIMEOUT_SECONDS = 30.0
"""Time limit for each response of the archive."""
_WARNINGS = range(0xB000, 0xC000)
"""Status codes for stored with a warning."""
_SILENT = "the archive does not answer"


class Sender(threading.Thread):
    """Thread that empties the outbox.

    `lost` is called with a delivery of which a file is missing, and must remove it from the outbox.

    Attributes:
        problem: why the last delivery could not be recorded, '' if it could. The reason of a failed send is
            in the waiting delivery.
    """

    def __init__(
        self,
        outbox: Outbox,
        settings: ServeSettings,
        metrics: Metrics,
        *,
        lost: Callable[[Delivery], None],
        stop: threading.Event,
    ) -> None:
        super().__init__(name="sender", daemon=True)
        self._outbox, self._archive, self._metrics = outbox, settings.archive, metrics
        self._ae_title, self._lost, self._stop_asked = settings.ae_title, lost, stop
        self.problem = ""

    def run(self) -> None:
        """Send due deliveries until the node stops."""
        while not self._stop_asked.wait(LOOK_SECONDS):
            delivery = self._outbox.due()
            if delivery is None:
                continue
            try:
                self._deliver(delivery)
                self.problem = ""
            except (IchMilError, OSError) as error:  # record not written: it will be sent again
                self.problem = str(error)
                _LOG.error("%s: %s", delivery.name, error)
                self._stop_asked.wait(TIMEOUT_SECONDS)

    def _deliver(self, delivery: Delivery) -> None:
        files = [self._outbox.root / name for name in delivery.files]
        gone = [name for name, path in zip(delivery.files, files, strict=True) if not path.exists()]
        if gone:
            self._lost(delivery)
            _LOG.warning("%s: %s is missing, the study is judged again", delivery.name, gone[0])
            return
        try:
            left, error = self._send(files)
        except Exception as fault:  # a damaged file must not block other deliveries
            left, error = files, f"{type(fault).__name__}: {fault}"
        self._metrics.add("results_sent_total", len(delivery.files) - len(left))
        if not left:
            self._outbox.took(delivery)
            _LOG.info("%s: sent to %s", delivery.name, self._archive.ae_title)
            return
        if self._stop_asked.is_set():  # the archive is not at fault; due again at the next start
            return
        names = [str(path.relative_to(self._outbox.root)) for path in left]
        pause = self._outbox.postpone(delivery, names, error)
        self._metrics.add("sends_failed_total")
        _LOG.warning("%s: not sent (%s), next try in %.0f s", delivery.name, error, pause)

    def _send(self, files: Sequence[Path]) -> tuple[list[Path], str]:
        """Send files over one association. Returns the files that were not accepted, and the last error."""
        left = list(files)
        ae = AE(ae_title=self._ae_title)
        ae.acse_timeout = ae.dimse_timeout = ae.network_timeout = ae.connection_timeout = TIMEOUT_SECONDS
        for sop_class, syntaxes in _contexts(files).items():
            ae.add_requested_context(sop_class, syntaxes)
        archive = self._archive
        association = ae.associate(archive.host, archive.port, ae_title=archive.ae_title)
        if not association.is_established:
            return left, _why_not(association)
        error = ""
        try:
            for path in files:
                if self._stop_asked.is_set():
                    break
                failure = _store(association, path) if association.is_established else _SILENT
                if failure:
                    error = failure
                else:
                    left.remove(path)
        finally:
            if association.is_established:
                association.release()
        return left, error


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


def _store(association: Association, path: Path) -> str:
    """Send one file. Returns the reason for a failure, '' for success."""
    try:
        status = association.send_c_store(path)
    except ValueError:  # raised by pynetdicom without an accepted context
        return f"the archive does not accept {dcmread(path, specific_tags=['SOPClassUID']).SOPClassUID.name}"
    if "Status" not in status:
        return _SILENT
    if status.Status == 0 or status.Status in _WARNINGS:
        return ""
    return f"the archive answers with status 0x{status.Status:04X}"


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
