"""Detection of contrast agent administration in free-text descriptions.

In: a text in any language, and additional phrases of a site. Out: `Told`: with contrast, without contrast or
unknown, and the unknown words that prevented a decision.

Phrases come from a table (`ich_mil.dicom.contrast_words`), and the longest matching phrase wins. A word that
is not in the table is split into parts that are ('Kontrastmittelgabe'). Words that remain unknown are
ignored. An agent next to an unknown word is ignored too, because the word may be a negation.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from ich_mil.dicom.contrast_words import ALONE, Meaning, SitePhrases, Token, phrase_meanings, tokens_of

LEAST_PART = 3
"""Minimum number of letters of a part of a compound word."""
MOST_CODE = 3
"""Maximum number of letters next to a digit that are a code rather than a word, as in H30s or FC68."""

_MILLIMETRES = frozenset({"mm", "cm", "thk"})
_NOTHING = {Meaning.WITHOUT, Meaning.LACKING, Meaning.PLAIN}
_NO = frozenset({"n", "na"})
"""Values of ContrastBolusAgent that mean no agent and are not in the table."""


class Told(NamedTuple):
    """Contrast information in a text.

    Attributes:
        contrast: True with contrast, False without, None if the text does not say.
        unknown: unknown words that prevented a decision.
    """

    contrast: bool | None
    unknown: tuple[str, ...]


class _Item(NamedTuple):
    meaning: Meaning
    text: str


@dataclass(frozen=True)
class ContrastWords:
    """Contrast phrases of the table and of a site.

    Attributes:
        phrases: tokens of a phrase -> its meaning.
        longest: number of tokens of the longest phrase.
    """

    phrases: Mapping[tuple[str, ...], Meaning]
    longest: int

    def read(self, text: str) -> Told:
        """Contrast information in `text`. Statements about the agent outrank what a phase implies."""
        items = self._items(text)
        agent, implied, unknown = _said(items)
        contrast = agent if agent is not None else implied
        if contrast is None:
            unknown += [one.text for one in items if one.meaning == Meaning.UNKNOWN]
        return Told(contrast, tuple(dict.fromkeys(unknown)))

    def means_none(self, text: str) -> bool:
        """Whether `text`, the value of an agent or route element, states that no agent was given."""
        if all(one.text in _NO or set(one.text) <= set("0.,") for one in tokens_of(text)):
            return True
        meanings = {one.meaning for one in self._items(text)}
        neutral = _NOTHING | {Meaning.BETWEEN, Meaning.OTHER, Meaning.AND}
        return bool(meanings & _NOTHING) and (meanings <= neutral or self.read(text).contrast is False)

    def _items(self, text: str) -> list[_Item]:
        """Phrases of a text, from left to right, longest match first."""
        tokens = tokens_of(text)
        items: list[_Item] = []
        at = 0
        while at < len(tokens):
            for size in range(min(self.longest, len(tokens) - at), 0, -1):
                words = tuple(one.text for one in tokens[at : at + size])
                any_number = tuple("#" if one[0].isdigit() else one for one in words)
                meaning = self.phrases.get(words) or self.phrases.get(any_number)
                if meaning is not None:
                    items.append(_Item(meaning, " ".join(words)))
                    at += size
                    break
            else:
                items += self._unmatched(tokens[at])
                at += 1
        return items

    def _unmatched(self, token: Token) -> list[_Item]:
        """Items for a token that begins no phrase."""
        text = token.text
        if text[0].isdigit():
            return [_Item(Meaning.NUMBER, text)]
        if not text[0].isalpha():
            return [_Item(Meaning.AND, text)] if text in "/&" else []
        if parts := self._parts(text):
            return [_Item(self.phrases[part,], part) for part in parts]
        is_code = len(text) <= MOST_CODE and token.beside_digit
        return [_Item(Meaning.OTHER if is_code or _is_letter(text) else Meaning.UNKNOWN, text)]

    def _parts(self, word: str) -> list[str]:
        """Split a compound word into words of the table; empty if a remainder is not in the table."""
        if (word,) in self.phrases:
            return [word]
        for end in range(len(word) - LEAST_PART, LEAST_PART - 1, -1):
            if (word[:end],) in self.phrases and (rest := self._parts(word[end:])):
                return [word[:end], *rest]
        return []


def _is_letter(text: str) -> bool:
    """Whether a text is a single letter of an alphabetic script."""
    return len(text) == 1 and not re.match(f"[{ALONE}]", text)


def _said(items: list[_Item]) -> tuple[bool | None, bool | None, list[str]]:
    """Contrast by statements about the agent, contrast implied by phases or angiography, unknown words."""
    agent: set[bool] = set()
    implied: set[bool] = set()
    unknown: list[str] = []
    at = 0
    while at < len(items):
        meaning, start = items[at].meaning, at
        at += 1
        after = _skip(items, at, Meaning.AND)
        following = items[after].meaning if after < len(items) else None
        if meaning == Meaning.PLAIN:
            agent.add(False)
        elif meaning == Meaning.CONTRAST:
            implied.add(True)
        elif meaning == Meaning.AFTER:
            to = _skip(items, at, Meaning.NUMBER, Meaning.OTHER, Meaning.AND)
            if to == len(items) or items[to].meaning not in (Meaning.EVENT, Meaning.UNKNOWN):
                implied.add(True)
        elif meaning == Meaning.WITH and (following == Meaning.WITHOUT or _is_end(items, at)):
            agent.add(True)
            at = after + 1 if following == Meaning.WITHOUT else at
        elif meaning == Meaning.WITHOUT:
            chain = _skip(items, at, Meaning.BETWEEN, Meaning.AND)
            if following == Meaning.WITH and after > at:  # 'without and with'
                agent.add(True)
            elif chain < len(items) and items[chain].meaning == Meaning.AGENT:
                agent.add(False)
                at = _end_of_agents(items, chain)
            elif following == Meaning.CONTRAST and after == at:  # 'no perfusion' does not exclude an agent
                at += 1
            elif _is_end(items, at):
                agent.add(False)
        elif meaning == Meaning.AGENT:
            at = _end_of_agents(items, start)
            then = items[at].meaning if at < len(items) else None
            explicit = start > 0 and items[start - 1].meaning in (Meaning.WITH, Meaning.AFTER)
            beside = items[max(start - 1, 0) : start] + items[at : at + 1]
            doubtful = [one.text for one in beside if one.meaning == Meaning.UNKNOWN]
            negation = {Meaning.LACKING} | ({Meaning.WITHOUT} if at + 1 == len(items) else set())
            if then in negation:
                agent.add(False)
                at += 1
            elif doubtful and not explicit:
                unknown += doubtful
            else:
                agent.add(True)
    # Both values together mean scans before and after contrast: True.
    return max(agent, default=None), max(implied, default=None), unknown


def _skip(items: list[_Item], at: int, *meanings: Meaning) -> int:
    while at < len(items) and items[at].meaning in meanings:
        at += 1
    return at


def _end_of_agents(items: list[_Item], at: int) -> int:
    """Index after a chain of agents that starts at `at`, such as 'oral or iv contrast'."""
    while at < len(items) and items[at].meaning == Meaning.AGENT:
        at += 1
        to = _skip(items, at, Meaning.BETWEEN, Meaning.AND)
        if to < len(items) and items[to].meaning == Meaning.AGENT:
            at = to
    return at


def _is_end(items: list[_Item], at: int) -> bool:
    """Whether only numbers and units (slice thickness, repeat number) follow."""
    return all(one.meaning == Meaning.NUMBER or one.text in _MILLIMETRES for one in items[at:])


@cache
def contrast_words(site: SitePhrases = ()) -> ContrastWords:
    """Contrast phrases of the table, overridden by the phrases of a site."""
    phrases = phrase_meanings(site)
    return ContrastWords(phrases, max(map(len, phrases)))
