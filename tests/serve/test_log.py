"""The node's log where nothing can be printed."""

import os
from pathlib import Path

import pytest

from ich_mil.serve.log import say
from tests.test_imports import FILES


def full():
    """A file on a full disk."""
    return Path("/dev/full").open("w", encoding="utf-8")


def broken():
    """A pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", encoding="utf-8")


def closed():
    """A stream that was closed."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", encoding="utf-8")
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [full, broken, closed])
def test_a_line_that_cannot_be_written_is_dropped(monkeypatch, stream):
    out = stream()
    monkeypatch.setattr("sys.stdout", out)
    say("one")
    out.close()  # fails where something is left in it


@pytest.mark.parametrize(
    ("encoding", "line"), [("utf-8", "größer: \\udcff\n"), ("ascii", "gr\\xf6\\xdfer: \\udcff\n")]
)
def test_a_line_is_written_at_once_in_any_encoding(monkeypatch, tmp_path, encoding, line):
    with (tmp_path / "log").open("w", encoding=encoding) as out:
        monkeypatch.setattr("sys.stdout", out)
        say("größer: \udcff")
        assert (tmp_path / "log").read_text(encoding=encoding) == line


def test_the_node_says_nothing_elsewhere():
    assert [name for name in FILES if name.startswith("serve.") and "progress" in FILES[name]] == []
