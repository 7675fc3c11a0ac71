"""Vocabulary of report English: known words, spelling, and the share of English in a text.

In: words in lower case. `words.txt` holds words of neutral meaning; words of the rule table are known too. A
word that could turn a statement ("unless", "protocol") belongs into the rule table and not into `words.txt`.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path

import snowballstemmer

TABLE = Path(__file__).with_name("words.txt")
SHORTEST = 6
"""Minimum length of a word whose spelling is corrected."""
ENGLISH = 0.6
"""Minimum share of known words in an English text."""
CLOSE = 0.84
"""Minimum similarity (difflib) of a misspelt word to its correction."""
UNITS = frozenset({"mm", "cm", "ml", "cc", "hu", "mg", "kv", "ma", "th", "st", "nd", "rd"})
_STEMMER = snowballstemmer.stemmer("english")
_SPELLED = """
hemorrhage haemorrhage hemorrhages haemorrhages hemorrhagic haemorrhagic hematoma haematoma hematomas
haematomas subdural subarachnoid epidural extradural intracranial intraventricular parenchymal
intraparenchymal evidence identified midline fracture visualized demonstrated unremarkable abnormality
bleeding
""".split()  # noqa: SIM905


@cache
def _stems() -> frozenset[str]:
    return frozenset(_STEMMER.stemWords(TABLE.read_text(encoding="utf-8").split()))


@lru_cache(maxsize=1 << 16)
def is_known(word: str) -> bool:
    """Whether a word is in `words.txt` in some inflected form, or is a number, a unit or a single letter."""
    if len(word) == 1 or not word[0].isalpha() or word in UNITS or any(mark.isdigit() for mark in word):
        return word.isascii()
    return _STEMMER.stemWord(word.removesuffix("'s")) in _stems()


def is_unit(word: str) -> bool:
    """Whether a word is a unit of length or volume, or of another measure."""
    return word in UNITS or word.startswith(("millimet", "centimet", "millilit"))


@lru_cache(maxsize=1 << 16)
def spelled(word: str) -> str:
    """The word in American spelling of blood, or the term for which it is probably misspelt."""
    word = word.replace("haem", "hem")
    if len(word) < SHORTEST or not word.isascii() or is_known(word):
        return word
    close = get_close_matches(word, _SPELLED, n=1, cutoff=CLOSE)
    same_ends = bool(close) and close[0][0] == word[0] and close[0][-1] == word[-1]
    return close[0] if same_ends and abs(len(close[0]) - len(word)) < 2 else word


def is_english(words: Sequence[str], terms: frozenset[str]) -> bool:
    """Whether most words of a text are known or among `terms`."""
    words = [word for word in words if len(word) > 1 and word[0].isalpha()]
    return sum(word in terms or is_known(word) for word in words) >= ENGLISH * len(words)
