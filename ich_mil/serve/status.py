"""Counters of the node, and the HTTP server of `/health` and `/metrics` on the loopback interface.

`/health` answers JSON, with status 200 if all is well and 503 otherwise; `/metrics` answers the text format
of Prometheus.
"""

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

from ich_mil.errors import ConfigError

disable_created_metrics()

ADDRESS = "127.0.0.1"
TIMEOUT_SECONDS = 10.0
_PREFIX = "ich_mil_"
_COUNTERS = {
    "objects_received_total": "DICOM objects stored",
    "objects_repeated_total": "DICOM objects already present, or results of this node sent back",
    "objects_refused_total": "DICOM objects answered with a failure: no study UID, or no room",
    "associations_rejected_total": "connections rejected: AE title, or too many at once",
    "associations_broken_total": "connections that ended without a release",
    "studies_judged_total": "studies judged",
    "studies_failed_total": "studies that ended in failed/",
    "studies_tried_again_total": "studies whose judging process was lost",
    "judge_seconds_total": "seconds spent judging",
    "results_sent_total": "result files accepted by the archive",
    "sends_failed_total": "failed sends, to be repeated",
}


class Metrics:
    """Counters of a node by name (`_COUNTERS`), which start at 0; thread-safe."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters = {
            name: Counter(_PREFIX + name, what, registry=self._registry) for name, what in _COUNTERS.items()
        }

    def add(self, name: str, amount: float = 1.0) -> None:
        """Increment a counter."""
        self._counters[name].inc(amount)

    def value(self, name: str) -> float:
        """Current value of a counter."""
        return self._registry.get_sample_value(_PREFIX + name) or 0.0

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Prometheus text of all counters and of `gauges`: name -> (description, value)."""
        now = CollectorRegistry()
        for name, (what, value) in gauges.items():
            Gauge(_PREFIX + name, what, registry=now).set(value)
        return (generate_latest(self._registry) + generate_latest(now)).decode()


class StatusServer:
    """HTTP server that runs from `start` to `stop`; its `port` 0 selects a free one.

    `health` returns the values of `/health`, whose `status` is `ok` if all is well, and `metrics` the text of
    `/metrics`.
    """

    def __init__(
        self, port: int, *, health: Callable[[], dict[str, Any]], metrics: Callable[[], str]
    ) -> None:
        self.port, self._health, self._metrics = port, health, metrics
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        """Start the server. `ConfigError` if the port is taken."""
        try:
            self._server = ThreadingHTTPServer((ADDRESS, self.port), _handler(self._health, self._metrics))
        except OSError as error:
            raise ConfigError(
                f"http_port {self.port} cannot be used ({error.strerror or error}); choose another"
            ) from error
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="status", daemon=True).start()

    def stop(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def _handler(
    health: Callable[[], dict[str, Any]], metrics: Callable[[], str]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT_SECONDS

        def do_GET(self) -> None:
            if self.path == "/health":
                values = health()
                status = 200 if values["status"] == "ok" else 503
                self._answer(status, "application/json", json.dumps(values, indent=2) + "\n")
            elif self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", metrics())
            else:
                self._answer(404, "text/plain; charset=utf-8", "the pages are /health and /metrics\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *_: Any) -> None:
            """Suppress the access log."""

    return Handler
