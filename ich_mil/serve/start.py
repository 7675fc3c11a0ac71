"""Command `ich-mil serve`: a worker with log and metrics, until SIGTERM or Ctrl-C."""

import logging
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from ich_mil.errors import ConfigError, check_installed
from ich_mil.progress import PrintableFormatter
from ich_mil.serve.folder import FolderSource
from ich_mil.serve.judging import judge, run_in_child
from ich_mil.serve.orthanc import Orthanc, read_login
from ich_mil.serve.worker import LOG, Source, Worker

POLL_SECONDS = 1.0  # between two looks at the source


def serve(
    *,
    folder: Path | None,
    orthanc: str | None,
    out: Path,
    model: Path,
    triage: Path | None,
    contrast_words: Path | None,
    silence: float,
    seconds: float,
    login: Path | None,
    send: str | None,
    stow: str | None,
    metrics_port: int | None,
) -> None:
    """Judge the studies of a folder or of Orthanc. `IchMilError`: an option or the model cannot be used."""
    source: Source = FolderSource(folder or Path(), out, silence)
    if orthanc is not None:
        source = Orthanc(orthanc, out, login=read_login(login), send=send, stow=stow)
        with suppress(OSError):  # Orthanc may start later: `Orthanc.waiting` checks them too
            source.check_targets()
    judge_study = partial(judge, model=model, triage=triage, contrast_words=contrast_words)
    worker = Worker(source, out, judge_study, seconds=seconds)
    if metrics_port is not None:
        start_metrics(worker, metrics_port)
    start_log(logging.StreamHandler())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    run_in_child(partial(judge_study, None, out, ()), seconds=seconds)  # errors of the model end the command
    LOG.info("ready")
    while True:
        worker.poll()
        time.sleep(POLL_SECONDS)


def start_log(handler: logging.Handler) -> None:
    """Log of the worker to a handler, a line with time stamp for each record."""
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
    LOG.setLevel(logging.INFO)
    LOG.addHandler(handler)


def start_metrics(worker: Worker, port: int) -> None:
    """Counts of the worker in Prometheus' format, on 127.0.0.1. `ConfigError`: they cannot be served."""
    check_installed("prometheus_client", "serve", "--metrics-port")
    from prometheus_client import CollectorRegistry, Gauge, start_http_server

    registry = CollectorRegistry()
    for name in ("studies_judged", "studies_failed", "studies_waiting", "last_success_seconds"):
        gauge = Gauge(f"ich_mil_{name}", name.replace("_", " "), registry=registry)
        gauge.set_function(partial(worker.counts.__getitem__, name))
    try:
        start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise ConfigError(f"--metrics-port {port}: {error.strerror}; choose another port") from error
