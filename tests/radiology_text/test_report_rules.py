"""The rule table: its syntax, its checks, and the table of the package."""

import pytest

from ich_mil.errors import DataError
from ich_mil.radiology_text.rules import Rule, Rules, default_rules, read_rules, split_words, word_spans


def found(phrases, text):
    """Phrases found in a text, each with the words it covers."""
    words = split_words(text)
    rules = Rules([Rule(phrase, "blood", "", None, ()) for phrase in phrases])
    return [(" ".join(words[one.start : one.end]), one.rules[0].phrase) for one in rules.find(words)]


def test_words_marks_hyphens_and_decimals():
    assert split_words("Extra-axial, 3.5 cm; today's") == ["extra", "axial", ",", "3.5", "cm", ";", "today's"]
    assert split_words("R/O bleed\u2019s") == ["r", "o", "bleed's"]


@pytest.mark.parametrize("text", ["Left SDH", "\u0130stanbul: SDH, 3\u2013mm", "\u1e9e SDH"])
def test_places_are_those_in_the_text(text):
    for word, start, end in word_spans(text):
        assert len(word) == end - start
        if text[start:end].isascii():
            assert text[start:end].lower() == word


@pytest.mark.parametrize(
    ("phrases", "text", "expected"),
    [
        (["(a|b c) d"], "b c d and a d", [("b c d", "(a|b c) d"), ("a d", "(a|b c) d")]),
        (["hemorrhag*"], "hemorrhagic hemo", [("hemorrhagic", "hemorrhag*")]),
        (["no ~ change"], "no very big real change", [("no very big real change", "no ~ change")]),
        (["no ~ x"], "no x x", [("no x", "no ~ x")]),  # the nearest
        *((["no ~ change"], f"no {words} change", []) for words in ("one two three four", "clot or", ",")),
        (["no ~ change"], "no hematoma change", []),
        (["^ a", "b $"], "a a b b", [("a", "^ a"), ("b", "b $")]),
        (["no", "no change", "change of size"], "no change of size", [("no", "no"), ("change of size",) * 2]),
    ],
)
def test_phrases(phrases, text, expected):
    """Alternatives, beginnings of words, up to three words between, ends, and the longest of overlaps."""
    assert found(phrases, text) == expected


def test_what_is_to_be_ignored_wins_a_tie():
    rules = Rules([Rule("a b", "blood", "", None, ()), Rule("b c", "ignore", "", None, ())])
    assert [one.rules[0].role for one in rules.find(["a", "b", "c"])] == ["ignore"]


def test_the_table_of_the_package():
    rules = default_rules().rules
    assert len(rules) > 100
    assert all(rule.comment for rule in rules)
    roles = {"side": ("uncertain", "past", "present", "rest", "ends"), "scope": ("outside", "unsure")}
    for name, some in (roles | {"kinds": ("kind", "place")}).items():
        assert all(getattr(rule, name) for rule in rules if rule.role in some)


@pytest.mark.parametrize(
    "row",
    [
        "clot,bleeds,,,,no such role",
        "clot,blood,above,,,no such side",
        "clot,blood,,near,,no such scope",
        "clot,blood,,,abc,no such kind",
        ",blood,,,,no phrase",
    ],
)
def test_a_wrong_row_is_named(tmp_path, row):
    path = tmp_path / "rules.csv"
    path.write_text(f"phrase,role,side,scope,kinds,comment\nblood,blood,,,,right\n{row}\n")
    with pytest.raises(DataError, match=r"rules\.csv: line 3"):
        read_rules(path)
    path.write_text("phrase,role\n")
    with pytest.raises(DataError, match="columns"):
        read_rules(path)
