"""What descriptions of many languages say of contrast, and the phrases of a site."""

import csv
from pathlib import Path

import pytest

import ich_mil.study
from ich_mil.errors import ConfigError
from ich_mil.study.contrast import contrast_of, read_site_phrases

PHRASES = Path(__file__).with_name("contrast_phrases.csv").read_text("utf-8").splitlines()[1:]
"""Some were written after the list, or reported as wrong; not all of their words are in it."""


@pytest.mark.parametrize("row", PHRASES)
def test_contrast_of_a_description(row):
    description, said = next(csv.reader([row]))
    contrast = {"yes": True, "no": False, "not said": None}[said]
    assert contrast_of(description) is contrast
    assert contrast_of(description.upper()) is contrast
    assert contrast_of(description.replace(" ", "_")) is contrast


def test_a_site_adds_phrases_and_outranks_the_list(tmp_path):
    path = tmp_path / "words.csv"
    path.write_text("phrase,meaning\nqwert,plain\nPROTO 7,contrast\nnativ,other\nC+ (x),plain\n", "utf-8")
    site = read_site_phrases(path)
    assert contrast_of("Head qwert", site) is False
    assert contrast_of("proto_7", site) is True
    assert contrast_of("Kopf nativ", site) is None
    assert contrast_of("Kopf nativ") is False
    assert contrast_of("HEAD C+ (X)", site) is False
    assert read_site_phrases(None) == ()


@pytest.mark.parametrize(
    "content",
    [b"phrase\nqwert\n", b"phrase,meaning\nqwert,without\n", b"phrase,meaning\n!,plain\n", b"\xff,\n"],
)
def test_phrases_that_cannot_be_used(tmp_path, content):
    path = tmp_path / "words.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"words\.csv"):
        read_site_phrases(path)


def test_the_list_has_at_most_150_patterns():
    with (Path(ich_mil.study.__path__[0]) / "contrast_words.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({row["pattern"] for row in rows}) == len(rows) <= 150
    assert {row["meaning"] for row in rows} == {
        *("other", "plain", "contrast", "phase", "agent", "no", "absent", "with")
    }
