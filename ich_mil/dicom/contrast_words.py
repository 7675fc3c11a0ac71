"""The table of contrast words, and how a text is cut into the tokens that it is looked up by.

In: `contrast_words.csv` beside this file and the file of a site, both with columns phrase and meaning, the
table with language and source too. Out: the meaning of each phrase by its tokens. Meanings:

    agent     a contrast agent or its injection: contrast, unless it is negated
    contrast  what is made with an agent only: a phase, an angiography, a map of iodine
    plain     no agent was given
    with      before an agent; alone at the end of a description it says contrast ('HEAD W 5mm')
    without   before an agent, alone at the end, or after an agent at the end ('Kontrast: nein')
    lacking   after an agent ('contrast none', '造影なし')
    and       joins the two: 'with and without contrast' is contrast
    between   may stand between a negation and its agent ('sans produit de contraste')
    after     'post', 'delayed': contrast, unless an event follows ('post stroke')
    event     what a scan may be taken after
    other     says nothing of contrast

`#` in a phrase is any number. Case, accents and width of letters do not count, nor do blanks and hyphens.
The developers collected the phrases; radiologists who speak the languages have not reviewed them.
"""

import csv
import re
import unicodedata
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from ich_mil.errors import ConfigError

SitePhrases = tuple[tuple[str, str], ...]
"""Phrase and meaning, as a site adds them; they outrank the table."""
ALONE = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Characters that are a token each: their scripts write no blanks between words."""

_TABLE = Path(__file__).parent / "contrast_words.csv"
_TOKEN = re.compile(rf"\(\+\)|\(-\)|\d+(?:[.,]\d+)?|[{ALONE}]|(?:(?![{ALONE}])[^\W\d_])+|[/&]")
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212\u30fb"), "-") | {ord("_"): " "}
# A sign in brackets, at the end of a word or of all belongs to what stands before it, at the beginning of a
# word to that; a plus within a word joins.
_SIGNS = (
    (re.compile(r"[(\[]\s*([+-])\s*[)\]]"), r" (\1) "),
    (re.compile(r"(?<![\w(])([+-])(?=[^\W\d_])|(\+)(?=c\b)"), r" (\1\2) "),
    (re.compile(r"(?<=\w)([+-])(?=\s|[),;]|$)|(?<=\s)([+-])\s*$"), r" (\1\2) "),
    (re.compile(r"(?<=\w)\s*\+\s*(?=\w)"), " & "),
)


class Meaning(StrEnum):
    """What a phrase of the table says."""

    AGENT = "agent"
    CONTRAST = "contrast"
    PLAIN = "plain"
    WITH = "with"
    WITHOUT = "without"
    LACKING = "lacking"
    AND = "and"
    BETWEEN = "between"
    AFTER = "after"
    EVENT = "event"
    OTHER = "other"
    NUMBER = ""
    """Of no phrase: a number."""
    UNKNOWN = "?"
    """Of no phrase: a word without one."""


class Token(NamedTuple):
    """A word, a number, a sign or a character, and whether a digit stands right beside it."""

    text: str
    beside_digit: bool


def _plain_letters(text: str) -> str:
    """Lower case without accents; wide and half-width forms, dashes and underscores as the usual ones."""
    text = unicodedata.normalize("NFKC", text).translate(_DASHES).casefold()
    apart = unicodedata.normalize("NFD", text.replace("ı", "i"))
    return unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", apart))


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text, from left to right."""
    text = _plain_letters(text)
    for sign, token in _SIGNS:
        text = sign.sub(token, text)
    return [
        Token(one[0], any(map(str.isdigit, text[max(one.start() - 1, 0) : one.end() + 1])))
        for one in _TOKEN.finditer(text)
    ]


def phrase_meanings(site: SitePhrases = ()) -> dict[tuple[str, ...], Meaning]:
    """The meaning of each phrase of the table and of a site, by its tokens."""
    return {_key(phrase): Meaning(meaning) for phrase, meaning in (*_rows(_TABLE), *site)}


def read_site_phrases(path: Path | None) -> SitePhrases:
    """The phrases of a site.

    Raises:
        ConfigError: the file cannot be read, lacks a column, or has a meaning that does not exist.
    """
    if path is None:
        return ()
    allowed = {str(one) for one in Meaning} - {Meaning.NUMBER, Meaning.UNKNOWN}
    try:
        rows = _rows(path)
        for phrase, meaning in rows:
            if meaning not in allowed or not _key(phrase):
                raise ValueError(f"phrase {phrase!r}, meaning {meaning!r}")
    except (OSError, KeyError, ValueError, csv.Error) as error:
        needed = f"columns phrase,meaning in UTF-8, meaning one of {', '.join(sorted(allowed))}"
        raise ConfigError(f"{path}: cannot be used ({error}); it needs {needed}") from error
    return rows


def _rows(path: Path) -> SitePhrases:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return tuple((row["phrase"] or "", (row["meaning"] or "").strip()) for row in csv.DictReader(file))


def _key(phrase: str) -> tuple[str, ...]:
    """The tokens of a phrase; `#`, any number, is one."""
    first, *others = ([one.text for one in tokens_of(part)] for part in phrase.split("#"))
    return (*first, *(token for part in others for token in ("#", *part)))
