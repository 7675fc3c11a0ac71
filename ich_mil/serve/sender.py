"""Sender of results to the archive, with retries."""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ich_mil.errors import IchMilError
from ich_mil.serve.archive import NotTakenError, UnreachableError, connect
from ich_mil.serve.outbox import Delivery, Outbox
from ich_mil.serve.settings import ServeSettings
from ich_mil.serve.status import Metrics

_LOG = logging.getLogger(__name__)
LOOK_SECONDS = 0.1
PAUSE_SECONDS = 30.0
"""Pause after a record that cannot be written."""


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
        self._outbox, self._settings, self._metrics = outbox, settings, metrics
        self._lost, self._stop_asked = lost, stop
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
                self._stop_asked.wait(PAUSE_SECONDS)

    def _deliver(self, delivery: Delivery) -> None:
        files = [self._outbox.root / name for name in delivery.files]
        gone = [name for name, path in zip(delivery.files, files, strict=True) if not path.exists()]
        if gone:
            self._lost(delivery)
            _LOG.warning("%s: %s is missing, the study is judged again", delivery.name, gone[0])
            return
        try:
            left, error, may_heal = self._send(files)
        except Exception as fault:  # a damaged file must not block other deliveries
            left, error, may_heal = files, f"{type(fault).__name__}: {fault}", True
        self._metrics.add("results_sent_total", len(delivery.files) - len(left))
        if not left:
            self._outbox.took(delivery)
            _LOG.info("%s: sent to %s", delivery.name, self._settings.archive.name)
            return
        if self._stop_asked.is_set():  # the archive is not at fault; due again at the next start
            return
        names = [str(path.relative_to(self._outbox.root)) for path in left]
        pause = self._outbox.postpone(delivery, names, error, may_heal=may_heal)
        self._metrics.add("sends_failed_total")
        then = f"in {pause:.0f} s" if pause < math.inf else "when the node is started again"
        _LOG.warning("%s: not sent (%s), next try %s", delivery.name, error, then)

    def _send(self, files: Sequence[Path]) -> tuple[list[Path], str, bool]:
        """Send files over one connection.

        Returns the files that were not accepted, the last error, and whether another try may succeed.
        """
        left, faults = list(files), list[UnreachableError | NotTakenError]()
        try:
            with connect(self._settings, files) as store:
                for path in files:
                    if self._stop_asked.is_set():
                        break
                    try:
                        store(path)
                        left.remove(path)
                    except NotTakenError as fault:
                        faults.append(fault)
        except UnreachableError as fault:
            faults.append(fault)
        may_heal = any(isinstance(fault, UnreachableError) or fault.may_heal for fault in faults)
        return left, str(faults[-1]) if faults else "", may_heal
