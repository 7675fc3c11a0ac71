"""HTTP server for health and metrics, on the loopback interface only.

In: callables that return the current values. Out: `/health` as JSON, with status 200 if all is well and 503
otherwise; `/metrics` in the text format of Prometheus.
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ich_mil.errors import ConfigError

ADDRESS = "127.0.0.1"
TIMEOUT_SECONDS = 10.0


class StatusServer:
    """HTTP server that runs from `start` to `stop`.

    Attributes:
        port: listening port.
    """

    def __init__(
        self, port: int, *, health: Callable[[], dict[str, Any]], metrics: Callable[[], str]
    ) -> None:
        """Set up the server; it is not started.

        Args:
            port: port to listen on; 0 selects a free port.
            health: returns the values of `/health`; `status` is `ok` if all is well.
            metrics: returns the text of `/metrics`.
        """
        self.port, self._health, self._metrics = port, health, metrics
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        """Start the server. `ConfigError` if the port is taken."""
        try:
            self._server = ThreadingHTTPServer((ADDRESS, self.port), _handler(self._health, self._metrics))
        except OSError as error:
            raise ConfigError(
                f"http_port {self.port} is taken ({error.strerror or error}); choose another"
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
    """Request handler class for the two pages."""

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
                self._answer(404, "text/plain; charset=utf-8", "there are /health and /metrics\n")

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
