"""Rule table of report language: phrases with their roles, and a matcher for sentences.

In: `rules.csv` (columns phrase, role, side, scope, kinds, comment) and the words of a sentence. Out: the
`Match`es, each a span of words with the rules of its phrase.

Phrases are matched word by word in lower case; hyphens and slashes count as spaces. In a phrase, `(a|b c)` is
an alternative, `word*` matches any word with this prefix, `~` matches up to three words other than blood
terms and connectives, and `^` and `$` match the start and the end of a sentence. Of overlapping phrases the
longest is kept. Such tables follow NegEx (Chapman et al. 2001) and ConText (Harkema et al. 2009).
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
"""Compartments: epidural, intraparenchymal, intraventricular, subarachnoid, subdural."""

Finding = Literal["blood", "suspect", "density"]
"""Roles of findings: words for blood, words that suggest blood, and words for a density only."""
Role = Literal[
    "blood", "suspect", "density", "absent", "uncertain", "implied", "rest", "present", "past", "now",
    "history", "outside", "unsure", "site", "kind", "place", "ends", "ignore", "normal", "heading", "section",
    "part", "space", "gone", "doubt", "verb", "relation", "sign", "modifier", "strong", "shown",
]  # fmt: skip
HEADINGS = frozenset({"heading", "section", "part", "space"})
"""Roles of headings: a section without findings, one of findings, the brain, a compartment."""
SIDES = ("", "before", "after", "both")
"""Position of a cue relative to the finding that it modifies."""
WIDEST = 3
"""Maximum number of words matched by `~`."""

_WORD = re.compile(r"\d+(?:\.\d+)+|[^\W_]+(?:'[^\W_]+)*|[^\w\s]")
_JOINS = frozenset({"and", "or", "nor", "of", "but", "with", "from", "the", "is", "are"})
_BLOOD = re.compile(r"ha?em[oa]|blood|bleed|contusion")
_ORDER = {role: rank for rank, role in enumerate(get_args(Role))} | {"ignore": -1}


@dataclass(frozen=True)
class Rule:
    """One row of the rule table."""

    phrase: str
    role: Role
    side: str
    scope: int | None
    kinds: tuple[str, ...]
    comment: str = ""


@dataclass(frozen=True)
class Match:
    """A phrase found in a sentence: word indices `start` to `end` (exclusive) and the rules of the phrase."""

    start: int
    end: int
    rules: tuple[Rule, ...]

    def of(self, *roles: str) -> tuple[Rule, ...]:
        """The rules with one of these roles."""
        return tuple(rule for rule in self.rules if rule.role in roles)


class _Node:
    """Node of the prefix tree of phrases: its child nodes, and the rules whose phrase ends here."""

    __slots__ = ("any_words", "beginnings", "ends", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.beginnings: dict[int, dict[str, _Node]] = {}
        self.any_words: _Node | None = None
        self.ends: list[Rule] = []

    def below(self, token: str) -> "_Node":
        """Child node for the next token of a phrase; created if absent."""
        if token == "~":
            self.any_words = self.any_words or _Node()
            return self.any_words
        if token.endswith("*"):
            nodes = self.beginnings.setdefault(len(token) - 1, {})
            return nodes.setdefault(token[:-1], _Node())
        return self.words.setdefault(token, _Node())

    def after(self, word: str) -> Iterator["_Node"]:
        """Child nodes that match the next word of a sentence."""
        if word in self.words:
            yield self.words[word]
        for length, nodes in self.beginnings.items():
            if word[:length] in nodes:
                yield nodes[word[:length]]


class Rules:
    """A rule table compiled into prefix trees.

    Attributes:
        rules: the rows of the table.
        words: all whole words in their phrases.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.words = frozenset(
            word for rule in self.rules for word in re.findall(r"[a-z]+(?!\*)\b", rule.phrase)
        )
        self._tree, self._headings = _Node(), _Node()
        for rule in self.rules:
            for pattern in _spelled_out(rule.phrase):
                node = self._headings if rule.role in HEADINGS else self._tree
                for token in pattern:
                    node = node.below(token)
                node.ends.append(rule)

    def of_heading(self, heading: str) -> set[str]:
        """Roles of a heading without its parentheses.

        Those of `HEADINGS` if the phrase is all of it, others if it is in it.
        """
        words = split_words(re.sub(r"\([^)]*\)", "", heading))
        whole = {
            rule.role
            for match in self._find(self._headings, words)
            for rule in match.rules
            if match.end - match.start == len(words)
        }
        return whole | {rule.role for match in self.find(words) for rule in match.rules}

    def find(self, words: Sequence[str]) -> list[Match]:
        """Find the phrases in `words`, in sentence order; of overlapping phrases the longest is kept.

        Phrases of headings (`HEADINGS`) are not among them.
        """
        return self._find(self._tree, words)

    def _find(self, tree: _Node, words: Sequence[str]) -> list[Match]:
        spans: dict[tuple[int, int], list[Rule]] = defaultdict(list)
        closed = [*words, "$"]
        for start in range(len(words)):
            nearest: dict[int, tuple[int, _Node]] = {}
            _walk(tree, closed, start, nearest)
            if start == 0 and (first := tree.words.get("^")):
                _walk(first, closed, start, nearest)
            for end, node in nearest.values():
                spans[start, min(end, len(words))] += node.ends
        taken: set[int] = set()
        matches = []
        for (start, end), rules in sorted(spans.items(), key=_longest_first):
            if taken.isdisjoint(range(start, end)):
                taken.update(range(start, end))
                void = [rule for rule in rules if rule.role == "ignore"]
                matches.append(Match(start, end, tuple(dict.fromkeys(void or rules))))
        return sorted(matches, key=lambda match: match.start)

    def with_terms(self, terms: Iterable[str]) -> "Rules":
        """Add a rule for blood for each of `terms` that matches no rule; returns self if there is none."""
        new = [
            Rule(" ".join(words), "blood", "", None, (), "a seed of this run")
            for term in terms
            if (words := split_words(term)) and not self.find(words)
        ]
        return Rules([*self.rules, *new]) if new else self


def split_words(text: str) -> list[str]:
    """Split `text` into lower-case words and punctuation marks; hyphens and slashes separate words."""
    return [word for word, _, _ in word_spans(text)]


def word_spans(text: str) -> list[tuple[str, int, int]]:
    """Words of `text` in lower case, each with its start and end offset."""
    lower = text.lower()
    if len(lower) != len(text):  # some letters have a longer lower case, which would shift the offsets
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    plain = re.sub(r"[-_\u2010-\u2015]|(?<![a-z]{3})/|/(?![a-z]{3})", " ", lower.replace("\u2019", "'"))
    return [(match[0], match.start(), match.end()) for match in _WORD.finditer(plain)]


def read_rules(path: Path = TABLE) -> Rules:
    """Read a rule table.

    Raises:
        DataError: the columns are wrong, a role, side or kind is unknown, a scope is not a number, or a
            phrase is empty.
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
    """The rule table of the package, read once."""
    return read_rules()


def _spelled_out(phrase: str) -> list[tuple[str, ...]]:
    """All word patterns of a phrase with alternatives."""
    tokens = re.findall(r"\([^)]*\)|[^\s()]+", phrase)
    choices = [token[1:-1].split("|") if token.startswith("(") else [token] for token in tokens]
    spelled = (" ".join(chosen).split() for chosen in itertools.product(*choices))
    return list(dict.fromkeys(tuple(words) for words in spelled if words))


def _longest_first(item: tuple[tuple[int, int], list[Rule]]) -> tuple[int, int, int]:
    (start, end), rules = item
    return start - end, min((_ORDER[rule.role] for rule in rules), default=0), start


def _walk(node: _Node, words: Sequence[str], at: int, nearest: dict[int, tuple[int, _Node]]) -> None:
    """Record in `nearest` the end of each phrase below `node` that matches from word `at`.

    A phrase with `~` is recorded at its nearest end.
    """
    if node.ends and (id(node) not in nearest or nearest[id(node)][0] > at):
        nearest[id(node)] = at, node
    if at == len(words):
        return
    for child in node.after(words[at]):
        _walk(child, words, at + 1, nearest)
    if node.any_words:
        for width in range(WIDEST + 1):
            if width and not _may_skip(words[at + width - 1]):
                break
            _walk(node.any_words, words, at + width, nearest)
            if at + width == len(words):
                break


def _may_skip(word: str) -> bool:
    return word[0].isalnum() and word not in _JOINS and not _BLOOD.match(word)
