"""What a node counts, in the text format of Prometheus.

In: counts from all its threads, and values of the moment somebody looks. Out: text.

Source: Prometheus text exposition format 0.0.4.
"""

import threading
from collections.abc import Mapping
from types import MappingProxyType

PREFIX = "ich_mil_"
COUNTERS: Mapping[str, str] = MappingProxyType(
    {
        "objects_received_total": "DICOM objects stored",
        "objects_repeated_total": "DICOM objects that were here already, or were results of ours",
        "objects_refused_total": "DICOM objects answered with a failure: no study UID, or no room",
        "associations_rejected_total": "connections rejected: AE title, or too many at once",
        "associations_broken_total": "connections that ended without a release",
        "studies_judged_total": "studies judged",
        "studies_failed_total": "studies that ended in failed/",
        "studies_tried_again_total": "studies whose judging process was lost",
        "judge_seconds_total": "seconds spent judging",
        "results_sent_total": "result files the archive took",
        "sends_failed_total": "sends that failed and wait for the next try",
    }
)
"""Since the start of the node."""


class Metrics:
    """Counters; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTERS, 0.0)

    def add(self, name: str, amount: float = 1.0) -> None:
        """Count. `KeyError` for a name not in `COUNTERS`."""
        with self._lock:
            self._counts[name] += amount

    def value(self, name: str) -> float:
        """What a counter says."""
        with self._lock:
            return self._counts[name]

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """All counters, and `gauges`: name -> what it is, and its value now."""
        lines = []
        for name, what in COUNTERS.items():
            lines += _lines(name, "counter", what, self.value(name))
        for name, (what, value) in gauges.items():
            lines += _lines(name, "gauge", what, value)
        return "\n".join(lines) + "\n"


def _lines(name: str, kind: str, what: str, value: float) -> list[str]:
    return [f"# HELP {PREFIX}{name} {what}", f"# TYPE {PREFIX}{name} {kind}", f"{PREFIX}{name} {value:.10g}"]
