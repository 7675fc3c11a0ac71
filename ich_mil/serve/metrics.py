"""Counters and gauges of a node in the text format of Prometheus (prometheus_client).

In: counts from all threads, and current values of gauges. Out: the text of `/metrics`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

disable_created_metrics()

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
"""Description of each counter by name; counters start at 0 with the node."""


class Metrics:
    """Counters of a node; thread-safe."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters = {
            name: Counter(PREFIX + name, what, registry=self._registry) for name, what in COUNTERS.items()
        }

    def add(self, name: str, amount: float = 1.0) -> None:
        """Increment a counter. `KeyError` for a name not in `COUNTERS`."""
        self._counters[name].inc(amount)

    def value(self, name: str) -> float:
        """Current value of a counter."""
        return self._registry.get_sample_value(PREFIX + name) or 0.0

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Prometheus text of all counters and of `gauges`: name -> (description, value)."""
        now = CollectorRegistry()
        for name, (what, value) in gauges.items():
            Gauge(PREFIX + name, what, registry=now).set(value)
        return (generate_latest(self._registry) + generate_latest(now)).decode()
