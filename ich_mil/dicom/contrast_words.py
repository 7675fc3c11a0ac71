"""Table of contrast phrases, and the tokenizer for looking them up in a text.

In: `contrast_words.csv` next to this file and an optional file of a site. Both have the columns phrase and
meaning; the table also has language and source. Out: a mapping from the tokens of a phrase to its meaning.

    agent     a contrast agent or its injection: contrast, unless negated
    contrast  something that requires an agent, such as a phase, an angiography or an iodine map
    plain     no agent was given
    with      precedes an agent; at the end of a description it means contrast ('HEAD W 5mm')
    without   precedes an agent, stands at the end, or follows an agent at the end ('Kontrast: nein')
    lacking   negation after an agent ('contrast none', '造影なし')
    and       joins 'with' and 'without': 'with and without contrast' is contrast
    between   filler between a negation and its agent ('sans produit de contraste')
    after     'post', 'delayed': contrast, unless an event follows ('post stroke')
    event     a medical event that a scan may follow
    other     unrelated to contrast

`#` in a phrase matches any number. Case, accents, letter width, blanks and hyphens are ignored.
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
"""Pairs (phrase, meaning) of a site, which override the table."""
ALONE = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Character ranges in which each character is a token: scripts without blanks between words."""

_TABLE = Path(__file__).parent / "contrast_words.csv"
_TOKEN = re.compile(rf"\(\+\)|\(-\)|\d+(?:[.,]\d+)?|[{ALONE}]|(?:(?![{ALONE}])[^\W\d_])+|[/&]")
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212\u30fb"), "-") | {ord("_"): " "}
# A sign in brackets, at the end of a word or at the end of the text belongs to the word before it. A sign at
# the beginning of a word belongs to that word. A plus between two words joins them.
_SIGNS = (
    (re.compile(r"[(\[]\s*([+-])\s*[)\]]"), r" (\1) "),
    (re.compile(r"(?<![\w(])([+-])(?=[^\W\d_])|(\+)(?=c\b)"), r" (\1\2) "),
    (re.compile(r"(?<=\w)([+-])(?=\s|[),;]|$)|(?<=\s)([+-])\s*$"), r" (\1\2) "),
    (re.compile(r"(?<=\w)\s*\+\s*(?=\w)"), " & "),
)


class Meaning(StrEnum):
    """Meaning of a phrase; the module docstring explains each."""

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
    """A number that is not part of a phrase."""
    UNKNOWN = "?"
    """A word that is not in the table."""


class Token(NamedTuple):
    """A word, number, sign or single character, and whether a digit is directly adjacent."""

    text: str
    beside_digit: bool


def _plain_letters(text: str) -> str:
    """Normalize case, accents, letter width and hyphens of a text; underscores become blanks."""
    text = unicodedata.normalize("NFKC", text).translate(_DASHES).casefold()
    apart = unicodedata.normalize("NFD", text.replace("ı", "i"))
    return unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", apart))


def tokens_of(text: str) -> list[Token]:
    """Tokens of a text, from left to right."""
    text = _plain_letters(text)
    for sign, token in _SIGNS:
        text = sign.sub(token, text)
    return [
        Token(one[0], any(map(str.isdigit, text[max(one.start() - 1, 0) : one.end() + 1])))
        for one in _TOKEN.finditer(text)
    ]


def phrase_meanings(site: SitePhrases = ()) -> dict[tuple[str, ...], Meaning]:
    """Mapping from tokens to meaning for all phrases of the table and of a site."""
    return {_key(phrase): Meaning(meaning) for phrase, meaning in (*_rows(_TABLE), *site)}


def read_site_phrases(path: Path | None) -> SitePhrases:
    """Read the phrases of a site from a CSV file with the columns phrase and meaning; () without a path.

    Raises:
        ConfigError: the file cannot be read, lacks a column, or has an empty phrase or an unknown meaning.
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
    """Tokens of a phrase; `#` (any number) is a token."""
    first, *others = ([one.text for one in tokens_of(part)] for part in phrase.split("#"))
    return (*first, *(token for part in others for token in ("#", *part)))
