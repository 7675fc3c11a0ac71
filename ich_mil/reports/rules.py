"""The rule table of report language: phrases with what they mean, and where a sentence holds them.

In: `rules.csv` (columns phrase, role, side, scope, kinds, comment) and the words of a sentence. Out: the
`Match`es, each a span of words with its rules.

Phrases are matched word by word, in lower case; hyphens and slashes count as spaces. In a phrase `(a|b c)`
means either, `word*` any word that begins so, `~` up to three words that neither name blood nor join, `^` and
`$` the beginning and the end of a sentence. The longest of overlapping phrases counts. Idea of such tables:
NegEx (Chapman et al. 2001) and ConText (Harkema et al. 2009).
"""

import csv
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, cast, get_args

from ich_mil.errors import DataError

TABLE = Path(__file__).with_name("rules.csv")
COLUMNS = ["phrase", "role", "side", "scope", "kinds", "comment"]
KINDS = ("edh", "iph", "ivh", "sah", "sdh")
"""Epidural, intraparenchymal, intraventricular, subarachnoid, subdural."""

Finding = Literal["blood", "suspect", "density"]
"""Words that name blood, that imply it, and that name a density alone."""
Role = Literal[
    "blood", "suspect", "density", "absent", "uncertain", "implied", "rest", "present", "past", "now",
    "history", "outside", "unsure", "site", "kind", "place", "ends", "ignore", "normal", "heading",
]  # fmt: skip
SIDES = ("", "before", "after", "both")
"""Where a cue stands, as seen from the finding it changes."""
WIDEST = 3
"""Words that `~` may stand for."""

_WORD = re.compile(r"\d+(?:\.\d+)+|[^\W_]+(?:'[^\W_]+)*|[^\w\s]")
_JOINS = frozenset({"and", "or", "nor", "of", "but", "with", "from", "the", "is", "are"})
_BLOOD = re.compile(r"ha?em[oa]|blood|bleed|contusion")
_ORDER = {role: rank for rank, role in enumerate(get_args(Role))} | {"ignore": -1}


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    phrase: str
    role: Role
    side: str
    scope: int | None
    kinds: tuple[str, ...]
    comment: str = ""


@dataclass(frozen=True)
class Match:
    """A phrase found in a sentence: words `start` to `end` (exclusive) and the rules of that phrase."""

    start: int
    end: int
    rules: tuple[Rule, ...]

    def of(self, *roles: str) -> tuple[Rule, ...]:
        """The rules of these roles."""
        return tuple(rule for rule in self.rules if rule.role in roles)


class _Node:
    """A word of the tree of phrases: what may follow it, and the rules whose phrase ends here."""

    __slots__ = ("any_words", "beginnings", "ends", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.beginnings: dict[int, dict[str, _Node]] = {}
        self.any_words: _Node | None = None
        self.ends: list[Rule] = []

    def below(self, part: str) -> "_Node":
        """The node of one more part of a phrase."""
        if part == "~":
            self.any_words = self.any_words or _Node()
            return self.any_words
        if part.endswith("*"):
            nodes = self.beginnings.setdefault(len(part) - 1, {})
            return nodes.setdefault(part[:-1], _Node())
        return self.words.setdefault(part, _Node())

    def after(self, word: str) -> Iterator["_Node"]:
        """The nodes that one more word of a sentence leads to."""
        if word in self.words:
            yield self.words[word]
        for length, nodes in self.beginnings.items():
            if word[:length] in nodes:
                yield nodes[word[:length]]


class Rules:
    """A rule table, ready to find its phrases."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._tree = _Node()
        for rule in self.rules:
            for pattern in _spelled_out(rule.phrase):
                node = self._tree
                for part in pattern:
                    node = node.below(part)
                node.ends.append(rule)

    def find(self, words: Sequence[str]) -> list[Match]:
        """The phrases in `words`, in their order; of overlapping ones the longest."""
        spans: dict[tuple[int, int], list[Rule]] = defaultdict(list)
        closed = [*words, "$"]
        for start in range(len(words)):
            nearest: dict[int, tuple[int, _Node]] = {}
            _walk(self._tree, closed, start, nearest)
            if start == 0 and (first := self._tree.words.get("^")):
                _walk(first, closed, start, nearest)
            for end, node in nearest.values():
                spans[start, min(end, len(words))] += node.ends
        taken: set[int] = set()
        found = []
        for (start, end), rules in sorted(spans.items(), key=_longest_first):
            if taken.isdisjoint(range(start, end)):
                taken.update(range(start, end))
                void = [rule for rule in rules if rule.role == "ignore"]
                found.append(Match(start, end, tuple(dict.fromkeys(void or rules))))
        return sorted(found, key=lambda match: match.start)

    def with_terms(self, terms: Iterable[str]) -> "Rules":
        """The same rules, and those of `terms` that no rule knows as words that name blood."""
        new = [
            Rule(" ".join(words), "blood", "", None, (), "a seed of this run")
            for term in terms
            if (words := split_words(term)) and not self.find(words)
        ]
        return Rules([*self.rules, *new]) if new else self


def split_words(text: str) -> list[str]:
    """`text` as words and marks in lower case; hyphens and slashes part words."""
    return [word for word, _, _ in word_spans(text)]


def word_spans(text: str) -> list[tuple[str, int, int]]:
    """Each word of `text` with its place there."""
    lower = text.lower()
    if len(lower) != len(text):  # a letter whose lower case is longer
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    plain = re.sub(r"[-/_\u2010-\u2015]", " ", lower.replace("\u2019", "'"))
    return [(found[0], found.start(), found.end()) for found in _WORD.finditer(plain)]


def read_rules(path: Path = TABLE) -> Rules:
    """A rule table.

    Raises:
        DataError: a column is missing, a role, side or kind is unknown, or a scope is no number.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a rule table ({error}); put it there") from error
    if header != COLUMNS:
        raise DataError(f"{path}: its columns must be {', '.join(COLUMNS)}")
    rules = []
    for line, row in enumerate(rows, start=2):
        if len(row) != len(COLUMNS):
            raise DataError(f"{path}: line {line}: {len(row)} fields, not {len(COLUMNS)}")
        phrase, role, side, scope, kinds, comment = row
        if role not in _ORDER or side not in SIDES or not set(kinds.split()) <= set(KINDS):
            raise DataError(
                f"{path}: line {line}: role, side, kinds must be among {', '.join(_ORDER)}; before, after, "
                f"both; {', '.join(KINDS)}"
            )
        if (scope and not scope.isdecimal()) or not phrase.strip():
            raise DataError(f"{path}: line {line}: needs a phrase, and as scope a number of words or nothing")
        words = int(scope) if scope else None
        rules.append(Rule(phrase, cast(Role, role), side, words, tuple(kinds.split()), comment))
    return Rules(rules)


@cache
def default_rules() -> Rules:
    """The table of the package, read once."""
    return read_rules()


def _spelled_out(phrase: str) -> list[tuple[str, ...]]:
    """The word patterns of a phrase with alternatives."""
    parts = re.findall(r"\([^)]*\)|[^\s()]+", phrase)
    choices = [part[1:-1].split("|") if part.startswith("(") else [part] for part in parts]
    spelled = (" ".join(chosen).split() for chosen in itertools.product(*choices))
    return list(dict.fromkeys(tuple(words) for words in spelled if words))


def _longest_first(item: tuple[tuple[int, int], list[Rule]]) -> tuple[int, int, int]:
    (start, end), rules = item
    return start - end, min((_ORDER[rule.role] for rule in rules), default=0), start


def _walk(node: _Node, words: Sequence[str], at: int, nearest: dict[int, tuple[int, _Node]]) -> None:
    """Note where the phrases below `node`, laid at word `at`, end; of a phrase with `~` the nearest end."""
    if node.ends and (id(node) not in nearest or nearest[id(node)][0] > at):
        nearest[id(node)] = at, node
    if at == len(words):
        return
    for one in node.after(words[at]):
        _walk(one, words, at + 1, nearest)
    if node.any_words:
        for width in range(WIDEST + 1):
            if width and not _may_skip(words[at + width - 1]):
                break
            _walk(node.any_words, words, at + width, nearest)
            if at + width == len(words):
                break


def _may_skip(word: str) -> bool:
    return word[0].isalnum() and word not in _JOINS and not _BLOOD.match(word)
