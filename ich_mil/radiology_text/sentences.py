"""Sentence splitter for radiology reports; each sentence has the heading of its section.

In: the text of a report, either as exported by a report system, or as one lower-case line with spaces around
punctuation marks. Out: `Sentence`s; a sentence that continues over several lines is joined.
"""

import re
from dataclasses import dataclass

from ich_mil.radiology_text.rules import Rules, default_rules, split_words

_HEADING = re.compile(r"([A-Za-z][A-Za-z /&()\-]{1,40}?)\s?:(?=\s|$)")
"""Words before a colon at the start of a line or sentence."""
_BREAK = re.compile(
    r"""
    (?<=[.?!])[)"'\u201d]?\s+           # after a sentence
    | \s*\n\s*\n\s*                     # at an empty line
    | \s*\n\s*(?=[*\u2022\u00b7-]|\d+[.)]\s|[A-Z][A-Za-z /&()-]{1,40}:)  # before an item or a heading
    | (?<![A-Z/&])\s+(?=[A-Z][A-Z /&]{3,40}:(?:\s|$))  # before a heading in capitals
    """,
    re.X,
)
_ABBREVIATED = re.compile(r"\b(?:dr|mr|mrs|ms|prof|vs|approx|st|fig|cf|e\.g|i\.e|ca|incl|resp)\.$", re.I)
_NUMBERED = re.compile(r"^(?:[^:]{2,40}:)?\W*\d{0,2}[.)]?$")


@dataclass(frozen=True)
class Sentence:
    """One sentence of a report.

    Attributes:
        text: its text, including a heading at its start.
        section: heading of its section, '' if there is none.
        finding: False in a section that states no findings, such as the history.
    """

    text: str
    section: str = ""
    finding: bool = True


def split_report(text: str, rules: Rules | None = None) -> list[Sentence]:
    """Split a report into sentences.

    A section starts at a heading with a colon at the start of a line or sentence. Sentences after a heading
    with the role `heading` in the rule table are not findings, until the next heading.
    """
    rules = rules or default_rules()
    section, finding = "", True
    sentences = []
    for piece in _pieces(text):
        if found := _HEADING.match(piece):
            section = found[1].strip()
            finding = not _is_aside(section, rules)
            if not piece[found.end() :].strip(" .:"):
                continue
        sentences.append(Sentence(piece, section, finding))
    return sentences


def _is_aside(section: str, rules: Rules) -> bool:
    words = split_words(section)
    return any(match.of("heading") and match.end - match.start == len(words) for match in rules.find(words))


def _pieces(text: str) -> list[str]:
    """Sentences of a text, with single spaces between words."""
    pieces: list[str] = []
    open_piece = ""
    for part, gap in _parts(text):
        open_piece = f"{open_piece} {part}".strip()
        following = gap.lstrip()
        blank_line = gap.count("\n") > 1
        number = following[:1].isdigit() and re.search(r"(?:\d |\bno)\.$", open_piece, re.I)
        runs_on = number or _NUMBERED.match(open_piece) or _ABBREVIATED.search(open_piece)
        if blank_line or not runs_on:
            pieces.append(" ".join(open_piece.split()))
            open_piece = ""
    if open_piece:
        pieces.append(" ".join(open_piece.split()))
    return [piece for piece in pieces if piece]


def _parts(text: str) -> list[tuple[str, str]]:
    """Text between breaks, each with the following break and the first character after it."""
    parts, start = [], 0
    for found in _BREAK.finditer(text):
        parts.append((text[start : found.end()].strip(), found[0] + text[found.end() : found.end() + 1]))
        start = found.end()
    parts.append((text[start:].strip(), ""))
    return parts
