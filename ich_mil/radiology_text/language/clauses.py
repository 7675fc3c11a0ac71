"""Clauses of a sentence, the reach of every cue.

In: the words of a sentence and the matches of the rule table in them. Out: `Clause`s.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from ich_mil.radiology_text.rules import Finding, Match

FINDINGS = get_args(Finding)
_CONTRASTS = frozenset({"although", "though", "however", "but", "whereas"})


@dataclass(frozen=True)
class Clause:
    """Words `start` to `end` (exclusive) of a sentence, with the matches in them."""

    words: Sequence[str]
    start: int
    end: int
    matches: tuple[Match, ...]

    def of(self, *roles: str, low: int = 0, high: int | None = None) -> list[Match]:
        """Matches with one of these roles within words `low` to `high`."""
        high = len(self.words) if high is None else high
        return [span for span in self.matches if low <= span.start and span.end <= high and span.of(*roles)]


def clauses(words: Sequence[str], matches: Sequence[Match]) -> Iterator[Clause]:
    """Clauses of a sentence; a full stop, question or exclamation mark, colon or semicolon ends a clause.

    A point between digits is a decimal point. A colon after a finding starts the value of an entry
    ("hemorrhage: none"), which is of all findings before it, and a colon after a negation starts its list.
    """
    entries = {match.end for match in matches if match.of(*FINDINGS, "absent")}
    entries |= {i for m in matches for i in range(m.start, m.end if m.of("uncertain") else m.start + 1)}
    value = max(
        (match.start for match in matches if words[match.start] == ":" and match.of("absent")), default=0
    )
    start = 0
    for i, word in enumerate([*words, "."]):
        decimal = 0 < i < len(words) - 1 and words[i - 1].isdigit() and words[i + 1].isdigit()
        listed = word == ";" and i < value and not any(w[0].isdigit() for w in words[start:i])
        listed = listed and not any(match.of("absent") for match in matches if match.start < i)
        goes_on = decimal or listed or word not in ".?!;:" or (word == ":" and i in entries)
        if i < len(words) and goes_on and word not in _CONTRASTS:
            continue
        within = tuple(match for match in matches if start <= match.start < i)
        if within:
            yield Clause(words, start, i, within)
        start = i
