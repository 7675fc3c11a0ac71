"""Contrast agent in free text: a series description, a folder name or the name of an agent.

In: a text, and phrases of a site. Out: with contrast, without contrast or unknown. `contrast_words.csv` lists
regular expressions with their meaning, for texts in lower case without accents:

    other     looks like one of the others and is not ('post op')
    plain     no agent was given
    contrast  an agent was given
    phase     implies an agent unless the text denies one: a phase, an angiography, an iodine map
    agent     an agent or its injection: contrast, unless negated
    no        negation before an agent
    absent    negation after an agent
    with      precedes an agent; at the end of a text it means contrast

The developers collected the list; radiologists who speak the languages have not reviewed it.
"""

import csv
import re
import unicodedata
from collections import defaultdict
from functools import cache, lru_cache
from pathlib import Path

from ich_mil.errors import ConfigError

SitePhrases = tuple[tuple[str, str], ...]
"""Pairs (phrase, meaning) of a site, which outrank the list."""
SITE_MEANINGS = ("contrast", "plain", "other")

_LIST = Path(__file__).with_name("contrast_words.csv")
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212\u30fb"), "-") | {ord("_"): " "}
# letters of scripts with blanks between words, whose patterns match whole words
_LETTER = "[^\\W\\d_\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]"
_NO_AGENT = re.compile(r"n|na|n/a|[0.,]+")


@lru_cache(maxsize=4096)
def contrast_of(text: str, site: SitePhrases = ()) -> bool | None:
    """Whether `text` says that a contrast agent was given; None if it does not say."""
    text, meanings = normalized(text), set[str]()
    for pattern, meaning in (*_site_patterns(site), *_patterns()):
        text, n = pattern.subn(" ; ", text)
        meanings |= {meaning} if n else set()
    if "contrast" in meanings:
        return True
    return False if "plain" in meanings else True if "phase" in meanings else None


def means_no_agent(text: str) -> bool:
    """Whether `text`, the name of an agent or of a route, states that no agent was given."""
    name = normalized(text).strip()
    absent = re.fullmatch(_words(patterns_of(_LIST)["no"] + patterns_of(_LIST)["absent"]), name)
    return bool(absent or _NO_AGENT.fullmatch(name)) or contrast_of(text) is False


def read_site_phrases(path: Path | None) -> SitePhrases:
    """Read the phrases of a site from a CSV file with the columns phrase and meaning; () without a path.

    Raises:
        ConfigError: the file cannot be read, lacks a column, or has an empty phrase or another meaning than
            `SITE_MEANINGS`.
    """
    if path is None:
        return ()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = tuple(
                (row["phrase"] or "", (row["meaning"] or "").strip()) for row in csv.DictReader(file)
            )
        for phrase, meaning in rows:
            if meaning not in SITE_MEANINGS or not re.search(r"\w", phrase):
                raise ValueError(f"phrase {phrase!r}, meaning {meaning!r}")
    except (OSError, KeyError, ValueError, csv.Error) as error:
        needed = f"columns phrase,meaning in UTF-8, meaning one of {', '.join(SITE_MEANINGS)}"
        raise ConfigError(f"{path}: cannot be used ({error}); it needs {needed}") from error
    return rows


@lru_cache(maxsize=4096)
def normalized(text: str) -> str:
    """Text in lower case without accents, full width and the dots of abbreviations."""
    text = unicodedata.normalize("NFKC", text).translate(_DASHES).casefold().replace("ı", "i")
    text = re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", text))
    return re.sub(r"\b([^\W\d])\.(?=[^\W\d]\b)", r"\1", unicodedata.normalize("NFC", text))


@cache
def patterns_of(path: Path) -> dict[str, list[str]]:
    """Patterns of a CSV file with columns pattern and meaning, by meaning."""
    listed: dict[str, list[str]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            listed[row["meaning"]].append(row["pattern"])
    return listed


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """Patterns of the list with their meaning, in order of application."""
    listed = patterns_of(_LIST)
    agent, no, absent, with_ = (_words(listed[meaning]) for meaning in ("agent", "no", "absent", "with"))
    joint = r"\W*(?:[&+/]|and|or|och|og|und|et|y|e|i|и|та|en)\W*"
    chain = rf"{agent}(?:(?:{joint}|\W*d[ei]?\W+|\W*){agent})*"
    words = rf"(?:\W+(?!{with_})[^\W\d]+){{0,3}}?"
    end = r"(?=[\W\d]*(?:mm|cm|thk)?[\W\d]*$)"
    patterns = [
        *((_words(listed["other"]), "other"), (rf"{with_}{joint}{no}|{no}{joint}{with_}", "contrast")),
        *((_words(listed["contrast"]), "contrast"), (_words(listed["plain"]), "plain")),
        *((rf"{no}{words}\W*{chain}", "plain"), (rf"{chain}\W*{absent}", "plain"), (agent, "contrast")),
        *((rf"{no}\W*{_words(listed['phase'])}", "other"), (_words(listed["phase"]), "phase")),
        *((rf"{no}{end}", "plain"), (rf"{with_}{end}", "contrast")),
    ]
    return [(re.compile(pattern), meaning) for pattern, meaning in patterns]


@cache
def _site_patterns(site: SitePhrases) -> list[tuple[re.Pattern[str], str]]:
    phrases = [(re.escape(normalized(phrase)).replace(r"\ ", r"\W+"), meaning) for phrase, meaning in site]
    return [
        (re.compile(_words([phrase])), meaning)
        for phrase, meaning in sorted(phrases, key=lambda p: -len(p[0]))
    ]


def _words(patterns: list[str]) -> str:
    """Pattern for any of the patterns as whole words."""
    edge = f"(?:(?<!{_LETTER})|(?!{_LETTER}))"
    return f"{edge}(?:{'|'.join(patterns)}){edge}"
