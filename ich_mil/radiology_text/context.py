"""Sentence classifier: the statement of a report sentence about intracranial blood, with its evidence.

In: one sentence. Out: a `Verdict` with one of five labels:

* `present`: intracranial blood of any age is stated, neither hedged nor resolved.
* `absent`: blood is negated, or stated to have resolved.
* `uncertain`: blood is hedged, or only implied ("no new hemorrhage", a size at an earlier examination).
* `other`: blood outside the skull or in the past, or a density of unnamed nature.
* `none`: no statement of these kinds.

Each finding is labelled by the cues of `rules.csv` in its clause that apply to it. The sentence takes the
strongest label of its findings: `present`, `uncertain`, `absent`, `other`, in this order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from ich_mil.radiology_text.rules import Finding, Match, Rules, default_rules, word_spans

Label = Literal["present", "absent", "uncertain", "other", "none"]
LABELS: tuple[Label, ...] = get_args(Label)
Denied = Literal["", "any", "acute", "gone", "part"]
_STRENGTH: tuple[Label, ...] = ("present", "uncertain", "absent", "other")
_FINDINGS = get_args(Finding)
_CUES = ("absent", "uncertain", "implied", "rest", "present", "past", "history")
_OWN: dict[str, Label] = {"absent": "absent", "implied": "uncertain", "history": "other"}
_AGES = frozenset({"acute", "recent", "posttraumatic", "traumatic"})
_NEAR = 14
"""Largest number of words between a finding and the name of its compartment."""


@dataclass(frozen=True)
class Verdict:
    """Classification of one sentence.

    Attributes:
        label: one of the five labels.
        kinds: compartments of present or uncertain blood, sorted.
        evidence: the deciding words, as written in the sentence.
        hedged: whether an uncertain sentence hedges; False for implied blood ("no new hemorrhage").
        denied: scope of the negation of an absent sentence: `any` blood; `acute` blood or several
            compartments; blood that is `gone`; or `part`, a single compartment. '' for other labels.
        normal: whether the examination as a whole is called normal.
    """

    label: Label
    kinds: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    hedged: bool = False
    denied: Denied = ""
    normal: bool = False


@dataclass(frozen=True)
class _Mention:
    """One finding with its label and the deciding cue."""

    label: Label
    match: Match
    cue: Match | None = None
    hedged: bool = False


@lru_cache(maxsize=1 << 16)
def classify(sentence: str, rules: Rules | None = None) -> Verdict:
    """Classify one sentence.

    Args:
        sentence: text of the sentence; a section heading in it ends with a colon.
        rules: rule table; None: the table of the package.
    """
    spans = word_spans(sentence)
    words = [word for word, _, _ in spans]
    matches = (rules or default_rules()).find(words)
    mentions = [
        (one, _kinds(one, clause)) for clause in _clauses(words, matches) for one in _judge(clause, words)
    ]
    normal = [match for match in matches if match.of("normal")]

    def text(match: Match) -> str:
        return " ".join(sentence[spans[match.start][1] : spans[match.end - 1][2]].split())

    for label in _STRENGTH:
        found = [row for row in mentions if row[0].label == label]
        if found:
            told = [text(part) for one, _ in found for part in (one.cue, one.match) if part]
            kinds = tuple(sorted({kind for _, kinds in found for kind in kinds}))
            return Verdict(
                label,
                kinds if label in ("present", "uncertain") else (),
                tuple(dict.fromkeys(told)),
                hedged=any(one.hedged for one, _ in found),
                denied=_denied(found, words) if label == "absent" else "",
                normal=bool(normal),
            )
    return Verdict("none", evidence=tuple(text(match) for match in normal), normal=bool(normal))


def _clauses(words: Sequence[str], matches: Sequence[Match]) -> list[list[Match]]:
    """Matches grouped by clause; a full stop, question or exclamation mark, colon or semicolon ends a clause.

    A point between digits is a decimal point. A colon after a finding does not end the clause, since it
    starts an entry, as in "hemorrhage: none".
    """
    entries = {match.end for match in matches if match.of(*_FINDINGS)} | {match.start for match in matches}
    ends = []
    for place, word in enumerate(words):
        decimal = 0 < place < len(words) - 1 and words[place - 1].isdigit() and words[place + 1].isdigit()
        if word in "?!;" or (word == ":" and place not in entries) or (word == "." and not decimal):
            ends.append(place)
    ends.append(len(words))
    clauses, start = [], 0
    for end in ends:
        clauses.append([match for match in matches if start <= match.start < end])
        start = end
    return [clause for clause in clauses if clause]


def _judge(clause: Sequence[Match], words: Sequence[str]) -> list[_Mention]:
    """Label the findings of a clause."""
    return [_judge_one(one, clause, words) for one in clause if one.of(*_FINDINGS) or _own(one)]


def _own(match: Match) -> Label | None:
    """Label of a phrase that is complete by itself, such as "hematoma evacuation": its rule has no side."""
    return next((_OWN[rule.role] for rule in match.of(*_OWN) if not rule.side), None)


def _judge_one(match: Match, clause: Sequence[Match], words: Sequence[str]) -> _Mention:
    if label := _own(match):
        return _Mention(label, match)
    reaching = {role: _cue(role, match, clause) for role in _CUES}
    if words[match.end : match.end + 1] == [":"]:  # "hemorrhage: no acute bleed"
        entry = [one for one in clause if one.start == match.end + 1]
        for role in ("absent", "implied"):
            reaching[role] = reaching[role] or next((one for one in entry if one.of(role)), None)
    absent, uncertain, implied = reaching["absent"], reaching["uncertain"], reaching["implied"]
    dense = not match.of("blood", "suspect")
    if outside := _outside(match, clause):
        return _Mention("other", match, outside)
    if (cue := reaching["history"]) and not absent:
        return _Mention("other", match, cue)
    if dense:
        return _Mention("other", match, absent)
    if cue := reaching["present"]:
        return _Mention("present", match, cue)
    if implied or (absent and reaching["rest"]):
        return _Mention("uncertain", match, implied or absent)
    if absent:
        return _Mention("absent", match, absent)
    if uncertain:
        return _Mention("uncertain", match, uncertain, hedged=True)
    if (cue := reaching["past"]) and not any(one.of("now") for one in clause):
        return _Mention("uncertain", match, cue)
    if (cue := _placed(match, clause, "unsure")) and not _inside(match, clause):
        return _Mention("uncertain", match, cue, hedged=True)
    if match.of("suspect"):
        return _Mention("uncertain", match, hedged=True)
    return _Mention("present", match)


def _cue(role: str, match: Match, clause: Sequence[Match]) -> Match | None:
    """The nearest cue with the given role that applies to a finding."""
    best: Match | None = None
    for one in clause:
        for rule in one.of(role):
            if one is match or not _reaches(one, rule.side, rule.scope, match, clause):
                continue
            if best is None or _gap(match, one) < _gap(match, best):
                best = one
    return best


def _reaches(cue: Match, side: str, scope: int | None, match: Match, clause: Sequence[Match]) -> bool:
    if scope is not None and _gap(match, cue) > scope:
        return False
    if cue.end <= match.start:
        ends = any(
            rule.side in ("before", "both")
            for one in clause
            if cue.end <= one.start and one.end <= match.start
            for rule in one.of("ends")
        )
        return side in ("before", "both") and not ends
    ends = any(
        rule.side == "both"
        for one in clause
        if match.end <= one.start and one.end <= cue.start
        for rule in one.of("ends")
    )
    return side in ("after", "both") and not ends


def _gap(match: Match, other: Match) -> int:
    """Number of words between two matches."""
    return max(other.start - match.end, match.start - other.end)


def _placed(match: Match, clause: Sequence[Match], role: str) -> Match | None:
    """The nearest location match with the given role, within its scope and not separated from the finding."""
    near = [
        one
        for one in clause
        if any(_gap(match, one) <= (rule.scope or 0) for rule in one.of(role))
        and not _parted(one, match, clause)
    ]
    return min(near, key=lambda one: _gap(match, one), default=None)


def _outside(match: Match, clause: Sequence[Match]) -> Match | None:
    """An extracranial location nearer to the finding than any intracranial one.

    None for a finding with a named compartment, which is intracranial.
    """
    place = _placed(match, clause, "outside")
    if place is None or any(rule.kinds for rule in match.rules if rule.role != "place"):
        return None
    inside = _inside(match, clause)
    return place if inside is None or _gap(match, place) < _gap(match, inside) else None


def _parted(place: Match, match: Match, clause: Sequence[Match]) -> bool:
    """Whether a negation or another finding stands between a location and a finding."""
    low, high = min(place.end, match.end), max(place.start, match.start)
    between = [one for one in clause if low <= one.start and one.end <= high]
    return any(one.of("absent", "implied", *_FINDINGS) for one in between)


def _inside(match: Match, clause: Sequence[Match]) -> Match | None:
    """The nearest intracranial location."""
    places = [one for one in clause if one is not match and one.of("site", "kind", "place")]
    return min(places, key=lambda one: _gap(match, one), default=None)


def _kinds(mention: _Mention, clause: Sequence[Match]) -> tuple[str, ...]:
    """Compartments of a finding.

    Taken from the finding itself, else from compartment names in the clause that are nearer to it than to
    another finding, else from its location.
    """
    own = [kind for rule in mention.match.rules if rule.role in _FINDINGS for kind in rule.kinds]
    findings = [one for one in clause if one.of(*_FINDINGS) or one is mention.match]
    for role in ("kind", "place"):
        if own:
            break
        for one in clause:
            nearest = min(findings, key=lambda found: _gap(found, one))
            if nearest is mention.match and _gap(nearest, one) <= _NEAR:
                own += [kind for rule in one.of(role) for kind in rule.kinds]
    return tuple(own)


def _denied(mentions: Sequence[tuple[_Mention, tuple[str, ...]]], words: Sequence[str]) -> Denied:
    """The widest negation among the absent findings."""
    before = [
        (one, kinds)
        for one, kinds in mentions
        if one.cue and (one.cue.end <= one.match.start or ":" in words[one.match.end : one.cue.end])
    ]
    wide = [one for one, kinds in before if not kinds]
    if any(one.cue and not _AGES & set(words[one.cue.end : one.match.start]) for one in wide):
        return "any"
    if wide or len({kind for _, kinds in before for kind in kinds}) > 1:
        return "acute"
    gone = any(one.cue and one.cue.start >= one.match.end for one, _ in mentions)
    return "gone" if gone and not before else "part"
