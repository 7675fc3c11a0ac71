"""Sentence splitter for radiology reports; each sentence has the heading of its section.

In: the text of a report, as exported by a report system or an archive, or as one lower-case line with
spaces around punctuation marks. Out: `Sentence`s. A line ends a sentence, unless it ends in a word that
needs another ("acute", "of", a comma), or the next line starts in lower case or with a conjunction.

Headings of the rule table: role `heading` for sections that state no findings (history, request, technique),
role `section` for sections that do (findings, impression).
"""

import re
from dataclasses import dataclass

from ich_mil.radiology_text.language.markup import plain_text
from ich_mil.radiology_text.rules import Rules, default_rules

_HEADING = re.compile(r"([A-Za-z][A-Za-z0-9 /&()\-]{0,40}?)\s?:(?=\s|$)")
"""Words before a colon at the start of a line or sentence."""
_DASHED = re.compile(r"([A-Za-z][A-Za-z ]{1,40}?)\s*(?: [-\u2013=]|;)\s")
_CAPITALS = re.compile(r"([A-Z][A-Z ]+?)\s*[-;]?\s+(?=[A-Z?][a-z]|\?)")
_BREAK = re.compile(
    r"""
    (?:(?<=[.!])|(?<=[^\s(]\?))[)"'\u201d]*\s+  # after a sentence, not after the mark of "? bleed"
    | \s*[*\u2022\u00b7\u25aa\u25cf]\s+         # at a bullet
    | \s+(?=(?:\d{1,2}|[a-h])[)]\s)             # before an item: 2) or b)
    | \s+(?=\d{1,2}\.\s+[A-Z])                  # before an item: 2. Blood
    | \s+[-\u2013]\s+(?=[A-Z][a-z])             # at a dash before a capital
    | (?<![A-Z/&])\s+(?=[A-Z][A-Z /&]{3,40}:(?:\s|$))  # before a heading in capitals
    """,
    re.X,
)
_ABBREVIATED = re.compile(
    r"\b(?:dr|mr|mrs|ms|prof|vs|approx|st|fig|cf|e\.g|i\.e|ca|incl|resp|max|min)\.$|\bno\.$(?<=no\.)", re.I
)
_NUMBERED = re.compile(r"^(?:[^:]{2,40}:)?\W*\d{0,2}[.)]?$")
_ITEM = re.compile(r"^\s*(?:[-*\u2022\u00b7\u25aa\u25cf]|(?:\d{1,2}|[a-h])[.)]|\d{1,2}\s+(?=[A-Z]))\s*")
_JOINS = re.compile(r"\s*(?:or|and|nor|with|of|in|to|from|along|but|as|is|are)\b", re.I)
_OPEN = re.compile(
    r"(?:,|\b(?:(?<!: )no|not|any|an?|the|this|of|for|to|in|on|at|with|and|or|nor|is|are|was|were|by|from"
    r"|along|acute|chronic|recent|large|small|significant|intracranial|evidence|new|definite|subdural"
    r"|subarachnoid|epidural|midline|intra-?axial|extra-?axial"
    r"|measuring|negative for|(?<!the )(?:left|right)))\s*$",
    re.I,
)
_VALUE = re.compile(
    r"(?:no|none|yes|nil|negative|positive|absent|present|not seen|none seen|not present)\W*", re.I
)
_DENIES = re.compile(
    r"\b(?:(?:no|without)(?: [a-z]+){,2} (?:evidence|signs?) of|no|without|absence of|neg(?:ative)? for"
    r"|free of|none of the following):$",
    re.I,
)
"""End of a line that denies the items on the lines after it."""
_STATES = re.compile(r"\b(?:is|are|was|were|has|have|there|no|seen|noted|measur\w+)\b", re.I)
"""Words of a statement, which no item of such a list has."""
_CONCLUSION = re.compile(r"\W*(?:impression|conclusion|opinion|summary|comment|assessment|addend)", re.I)
"""Headings of conclusions, which follow findings."""
_LONGEST = 7
"""Largest number of words of a heading."""
_WIDE = 50
"""Minimum length of a line that may have been wrapped."""


@dataclass(frozen=True)
class Sentence:
    """One sentence of a report.

    Attributes:
        text: its text, including a heading at its start.
        section: heading of its section, '' if there is none.
        finding: False for a question or request, and in a section without findings, such as the history.
    """

    text: str
    section: str = ""
    finding: bool = True


def split_report(text: str, rules: Rules | None = None) -> list[Sentence]:
    """Split a report into sentences.

    A section starts at a heading with a colon, or alone on its line. Sentences after a heading with the role
    `heading` are not findings until the next heading, until the end of its line if no section of findings
    follows, or until a blank line if conclusions alone follow. A report of headings or of a form without an
    answer is one sentence that is no finding.
    """
    rules = rules or default_rules()
    lines = _lines(plain_text(text), rules)
    headed = [_heading(line, rules) for line, _ in lines]
    sections = [i for i, (role, _) in enumerate(headed) if role == "section"]
    last = max(sections, default=-1)
    last_findings = max((i for i in sections if not _CONCLUSION.match(lines[i][0])), default=-1)
    section, finding, asks = "", True, True
    sentences: list[Sentence] = []
    for i, (line, blank) in enumerate(lines):
        role, rest = headed[i]
        told = bool(sentences) and sentences[-1].section == section
        if told and not finding and not role and i > (last_findings if blank else last):
            section, finding = "", True
        for piece in _pieces(line):
            role, rest = _heading(piece, rules)
            if role or rest is not None:
                section, finding = piece[: len(piece) - len(rest or "")].strip(" :.-;"), role != "heading"
                if not (rest or "").strip(" .:-;"):
                    continue
            asked = "?" in piece.rstrip(")\"' ")
            asks = asks and (role != "section" or asked) and len(sentences) < 3
            sentences.append(Sentence(piece, section, finding and not (asked and (asks or i < last))))
    whole = " ".join(text.split())
    return sentences or [Sentence(whole, finding=False)] * bool(whole)


def _heading(piece: str, rules: Rules) -> tuple[str, str | None]:
    """Role of the heading at the start of `piece` ('' if it has none), and the text after the heading.

    The text is None if there is no heading. A term for blood before a colon is an entry and no heading.
    """
    piece = _ITEM.sub("", piece, count=1)
    for pattern in (_HEADING, _DASHED, _CAPITALS):
        if match := pattern.match(piece):
            roles = rules.of_heading(match[1])
            if pattern is _HEADING and roles & {"blood", "absent"}:
                return "", None
            role = next((role for role in ("heading", "section") if role in roles), "")
            if role or pattern is _HEADING:
                return role, piece[match.end() :]
    roles = rules.of_heading(piece.strip(" .-")) if piece.count(" ") < _LONGEST else set()
    role = next((role for role in ("heading", "section") if role in roles), "")
    return (role, "") if role else ("", None)


def _lines(text: str, rules: Rules) -> list[tuple[str, bool]]:
    """Lines of a text, wrapped ones joined, broken before a known heading; whether a blank line precedes."""
    lines: list[str] = []
    blanks: list[bool] = []
    blank = denies = False
    cased = any(line[:1].isupper() for line in map(str.strip, text.split("\n")))
    for raw in text.split("\n"):
        line = " ".join(raw.split())
        if not line:
            blank = True
            continue
        previous = lines[-1] if lines else ""
        if (
            _VALUE.fullmatch(line)
            and previous.count(" ") < _LONGEST
            and "blood" in rules.of_heading(previous)
        ):
            lines[-1] = f"{previous.rstrip(' :')}: {line}"  # a table with its values on lines of their own
        elif denies and (item := _ITEM.match(line)) and not _STATES.search(line):
            lines[-1] += f"{' ' if previous[-1] == ':' else ', or '}{line[item.end() :].rstrip(' .,;')}"
        elif previous and _runs_on(previous, line, cased=cased, blank=blank, rules=rules):
            lines[-1] = f"{previous} {line}"
        else:
            lines.append(line)
            blanks.append(blank)
            denies = bool(_DENIES.search(line))
        blank = False
    return [
        (part, blank and not j)
        for line, blank in zip(lines, blanks, strict=True)
        for j, part in enumerate(_before_headings(line, rules))
    ]


def _runs_on(previous: str, line: str, *, cased: bool, blank: bool, rules: Rules) -> bool:
    """Whether `line` continues the sentence of the previous line."""
    role, rest = _heading(previous, rules)
    if previous.endswith(":"):
        # "hemorrhage:", with its value on the next line, and no further entry without one
        return not role and rest is None and not line.endswith(":")
    if _ITEM.match(line) and not line[0].isalpha() and not re.match(r"\d+ ?(?:\.\d|mm|cm|x\b)", line):
        return False
    if re.search(r"[.?!;]$", previous) or (role and not rest) or _heading(line, rules)[1] is not None:
        return False
    if _OPEN.search(previous):
        return True
    if blank:
        return False
    if _JOINS.match(line):
        return True
    return line[0].islower() and (cased or len(previous) >= _WIDE)


def _before_headings(line: str, rules: Rules) -> list[str]:
    """Parts of a line, each starting with a known heading in capitals or with a capital."""
    cuts = [0]
    for colon in re.finditer(r"\s?:(?=\s|$)", line):
        words = list(re.finditer(r"[^\s]+", line[cuts[-1] : colon.start()]))[-4:]
        for word in words:
            start = cuts[-1] + word.start()
            heading = line[start : colon.start()]
            if heading[0].isupper() and rules.of_heading(heading) & {"heading", "section"}:
                cuts += [start] if start > cuts[-1] else []
                break
    return [line[a:b].strip(" ;") for a, b in zip(cuts, [*cuts[1:], len(line)], strict=True)]


def _pieces(line: str) -> list[str]:
    """Sentences of a line, with single spaces between words."""
    pieces: list[str] = []
    open_piece = ""
    for part, following in _parts(line):
        open_piece = f"{open_piece} {part}".strip()
        number = following[:1].isdigit() and re.search(r"(?:\d |\bno)\.$", open_piece, re.I)
        if not (number or _NUMBERED.match(open_piece) or _ABBREVIATED.search(open_piece)):
            pieces.append(open_piece)
            open_piece = ""
    return [piece for piece in [*pieces, open_piece] if piece]


def _parts(text: str) -> list[tuple[str, str]]:
    """Text between breaks, each with the text after it."""
    segments, start = [], 0
    for match in _BREAK.finditer(text):
        segments.append((text[start : match.end()].strip(" *\u2022\u00b7\u25aa\u25cf"), text[match.end() :]))
        start = match.end()
    return [*segments, (text[start:].strip(), "")]
