import json

import pytest

from ich_mil.pages.page import embedded, percent, relative_link, study_file_name
from tests.html_page import HOSTILE


def test_percent():
    texts = [percent(p).replace("\N{NO-BREAK SPACE}", " ") for p in (0, 0.009, 0.01, 0.873, 0.99, 0.9996, 1)]
    assert texts == ["< 1 %", "< 1 %", "1 %", "87 %", "99 %", "> 99 %", "> 99 %"]


def test_a_value_below_the_threshold_reads_below():
    texts = [percent(p).replace("\N{NO-BREAK SPACE}", " ") for p in (0.4949, 0.4951, 0.499999, 0.5, 0.504)]
    assert texts == ["49 %", "49.5 %", "49.9 %", "50 %", "50 %"]


def test_relative_link():
    assert relative_link("studies/a b.html") == "studies/a%20b.html"
    assert relative_link("../report.html") == "../report.html"
    assert relative_link("javascript:alert(1)") == "javascript%3Aalert%281%29"
    for address in ("/etc/passwd", "//evil.example", r"\\evil"):
        with pytest.raises(ValueError, match="must be relative"):
            relative_link(address)


def test_study_file_names_are_safe_short_and_distinct():
    assert study_file_name("CQ500CT12") == "scan-CQ500CT12.html"
    names = [study_file_name(scan) for scan in [*HOSTILE, "a/b", "a-b", "a\\b", "..", "", "CON", "x" * 301]]
    assert len({name.lower() for name in names}) == len(names)
    for name in names:
        assert set(name.removesuffix(".html")) <= set(map(chr, range(48, 123))) | {"-"}
        assert not set(name) & set('/\\:*?"<>|')
        assert len(name) < 100


@pytest.mark.parametrize("text", [*HOSTILE, "<!--<script>", "a\u2028b"])
def test_embedded_data_come_back_and_end_no_script(text):
    shown = embedded({"text": text})
    assert json.loads(shown) == {"text": text}
    assert not set("<>&\u2028\u202e\x00") & set(shown)
