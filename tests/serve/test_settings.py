"""Settings of the node: the YAML loads, and what cannot be is refused in one line."""

from pathlib import Path

import pytest

from ich_mil.errors import ConfigError
from ich_mil.serve.settings import ArchiveSettings, ServeSettings
from ich_mil.settings import read_settings

FILE = Path(__file__).parents[2] / "configs" / "serve.yaml"


def read(*words):
    return read_settings(ServeSettings, ["--config", str(FILE), *words])


def test_the_yaml_loads():
    settings = read()
    assert settings.archive == ArchiveSettings("ORTHANC", "127.0.0.1", 4242)
    assert (settings.senders, settings.port, settings.http_port) == (["ORTHANC"], 11112, 11180)
    assert (settings.host, settings.silence_seconds, settings.triage) == ("127.0.0.1", 30.0, None)


def test_the_command_line_goes_first():
    settings = read("--port", "104", "--archive.host", "pacs", "--senders", "[A, B]", "--triage", "t.json")
    assert (settings.port, settings.archive.host, settings.senders) == (104, "pacs", ["A", "B"])
    assert settings.triage == Path("t.json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ae_title", "SEVENTEENLETTERS1"], "ae_title must be 1 to 16 ASCII"),
        (["--ae_title", "A\\B"], "ae_title must be"),
        (["--ae_title", " A"], "ae_title must be"),
        (["--senders", "[]"], "senders must name"),
        (["--senders", "['']"], "senders must be"),
        (["--archive.ae_title", "Ü"], "archive.ae_title must be"),
        (["--archive.port", "0"], "archive.port must be 1 to 65535, got 0"),
        (["--port", "65536"], "port must be 0"),
        (["--http_port", "-1"], "http_port must be"),
        (["--workers", "0"], "workers must be at least 1, got 0"),
        (["--attempts", "0"], "attempts must be at least 1"),
        (["--silence_seconds", "0"], "silence_seconds must be above 0"),
        (["--silence_seconds", ".nan"], "silence_seconds must be above 0"),
        (["--silence_seconds", ".inf"], "silence_seconds must be above 0 and finite, got inf"),
        (["--memory_mb", "-1"], "memory_mb must be above 0"),
        (["--memory_mb", "287"], "memory_mb must be above 256 and 4 for each of the associations"),
        (["--free_gb", "-1"], "free_gb must be at least 0"),
        (["--free_gb", ".inf"], "free_gb must be at least 0 and finite, got inf"),
        (
            ["--retry_seconds", "60", "--longest_retry_seconds", "10"],
            "longest_retry_seconds must be at least",
        ),
        (["--longest_retry_seconds", ".inf"], "at least retry_seconds .* and finite, got inf"),
        (["--colour", "red"], "colour"),
    ],
)
def test_what_cannot_be_is_refused(words, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read(*words)
    assert "\n" not in str(caught.value)
