"""Metrics and log of the command; the command itself runs in `test_services.py`."""

import io
import logging
import urllib.request

import pytest

from ich_mil.errors import ConfigError
from ich_mil.serve.start import start_log, start_metrics
from tests.serve.fakes import ct_slice, free_port, uid, write


def test_metrics(tmp_path, in_folder, calls):
    write(ct_slice(uid(1), 0), tmp_path / "in" / "0.dcm")
    write(ct_slice(uid(2), 0, StudyDescription="refuse"), tmp_path / "in" / "1.dcm")
    worker, port = in_folder(), free_port()
    start_metrics(worker, port)
    worker.poll()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#")
    assert {name: float(value) for name, value in lines.items()} == {
        "ich_mil_last_success_seconds": worker.counts["last_success_seconds"],
        "ich_mil_studies_judged": 1,
        "ich_mil_studies_failed": 1,
        "ich_mil_studies_waiting": 2,
    }
    with pytest.raises(ConfigError, match=f"--metrics-port {port}"):
        start_metrics(worker, port)


def test_log_is_a_line_for_each_record():
    log, text = logging.getLogger("ich_mil.serve"), io.StringIO()
    handler = logging.StreamHandler(text)
    try:
        start_log(handler)
        log.info("a\nforged \x1b[31m line")
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    assert text.getvalue().count("\n") == 1
    assert text.getvalue().endswith(r"INFO a\nforged \x1b[31m line" + "\n")
