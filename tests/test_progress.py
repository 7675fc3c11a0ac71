"""Texts from outside on terminals and in logs."""

import logging
import sys
import warnings

import pytest

from ich_mil import guard
from ich_mil.cli import main
from ich_mil.errors import DataError
from ich_mil.progress import printable, progress, say

HOSTILE = "\x1b]0;title\x07 \x9b31m \u202e\u2066 \r\x00\u2028 \udce9"


def lines_without_control(text: str) -> int:
    """Number of lines; fails for a character that a terminal could obey."""
    lines = text.removesuffix("\n").split("\n")
    assert all(map(str.isprintable, lines)), ascii(text)
    return len(lines)


def test_control_characters_are_escaped_and_others_kept():
    assert printable("\x1b[31m\x9b\u202e\n") == r"\x1b[31m\x9b\u202e\n"
    assert printable("Müller ± 髙橋 \\x1b") == "Müller ± 髙橋 \\x1b"


def test_lines_progress_and_the_bar_are_printable(capsys, monkeypatch):
    say(f"a\n{HOSTILE}", "b")
    assert lines_without_control(capsys.readouterr().out) == 2
    monkeypatch.setattr("ich_mil.progress.PLAIN_SECONDS", 0.0)
    list(progress(range(2), total=2, what=HOSTILE))
    assert lines_without_control(capsys.readouterr().out) == 1


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("kind", ["error", "system", "warning", "log"])
def test_errors_warnings_and_records_are_one_printable_line(capsys, monkeypatch, kind):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def work():
        if kind == "error":
            raise DataError(f"{HOSTILE}\nnext")
        if kind == "system":
            raise PermissionError(13, "denied", HOSTILE)
        if kind == "warning":
            warnings.warn_explicit(f"{HOSTILE}\nnext", UserWarning, guard.__file__, 1)
        else:
            record = logging.LogRecord("pydicom", logging.WARNING, "", 1, "%s\n", (HOSTILE,), None)
            logging.lastResort.handle(record)

    guard.guarded(work)
    assert lines_without_control(capsys.readouterr().err) == 1


def test_error_of_the_program_is_printable(capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def work():
        raise ValueError(HOSTILE)

    with pytest.raises(ValueError, match="title") as caught:
        guard.guarded(work)
    sys.excepthook(caught.type, caught.value, caught.tb)
    assert lines_without_control(capsys.readouterr().err) > 2


def test_arguments_that_are_unknown_are_printable(capsys):
    assert main(["drift", "a", "--model", "b", HOSTILE]) == 2
    assert lines_without_control(capsys.readouterr().err) == 1
