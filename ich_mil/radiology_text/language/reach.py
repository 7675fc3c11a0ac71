"""Reach of cues: which negations, hedges and places of a clause apply to a finding.

In: the `Clause`s of a sentence. Out: for a finding and a role, the nearest cue that applies and how
(`Reach`). A negation reaches a finding along a noun phrase or a list of them:

    no ~ A, B, or hemorrhage        applies: the list has a conjunction
    no ~ source of the hemorrhage   `held`: the bleed is presupposed by what is negated, and so stated
    no ~ A, small hematoma along B  `no`: a new statement, with a size and a place of its own
    no ~ A hemorrhage is seen       `unread`: two nouns without a separator
"""

from collections.abc import Sequence
from typing import Literal

from ich_mil.radiology_text.language.clauses import FINDINGS, Clause
from ich_mil.radiology_text.language.vocabulary import is_known
from ich_mil.radiology_text.rules import Match, Rule

Reach = Literal["yes", "held", "unread", "no"]
_SEPARATORS = frozenset({",", "/", "&", "or", "nor", "and"})
_DEFINITE = frozenset(
    ["the", "this", "that", "these", "those", "his", "her", "known", "left", "right", "existing"]
)
_AUXILIARIES = frozenset(
    ["is", "are", "was", "were", "be", "been", "being", "has", "have", "had", "also", "now", "since"]
)
_STATES = frozenset(["a", "an", "the", "there", "this"])
_MODIFIERS = ("modifier", "strong", "kind", "site", "place", "outside", "now", *FINDINGS)
_ADJECTIVE = ("al", "ic", "ous", "ive", "ent", "ant", "able", "ible", "ed", "ar", "ary", "less", "ly")
_DENYING = frozenset(["no", "not", "without", "nor", "rather", "never"])
_EXTENDING = frozenset(["extension", "component", "spread", "breakthrough", "rupture"])
_NEAR = 14
"""Largest number of words between a finding and the name of its compartment."""


def cue(match: Match, clause: Clause, *roles: str) -> tuple[Match | None, Reach]:
    """The nearest cue with one of `roles` that applies to a finding, and how it applies.

    A phrase with the role `shown` too ("not previously seen") is no cue.
    """
    best: Match | None = None
    how: Reach = "no"
    for cue_ in clause.of(*roles):
        for rule in cue_.of(*roles):
            if (
                cue_ is match
                or cue_.of("shown")
                or (best is not None and _gap(match, cue_) >= _gap(match, best))
            ):
                continue
            if (reach := _reach(cue_, rule, match, clause)) != "no":
                best, how = cue_, reach
    return best, how


def _reach(cue_: Match, rule: Rule, match: Match, clause: Clause) -> Reach:
    if rule.scope is not None and _gap(match, cue_) > rule.scope:
        return "no"
    before = cue_.end <= match.start
    if rule.side not in ("before" if before else "after", "both"):
        return "no"
    low, high = (cue_.end, match.start) if before else (match.end, cue_.start)
    for end in clause.of("ends", low=low, high=high):
        if any(other.side == "both" or before for other in end.of("ends")):
            return "no"
    if rule.role in ("absent", "gone", "implied"):
        return _along(cue_, match, clause) if before else _back(cue_, match, clause)
    return (
        "no"
        if before and any(m.of("relation")[0].side for m in clause.of("relation", low=low, high=high))
        else "yes"
    )


def _along(cue_: Match, match: Match, clause: Clause) -> Reach:
    """Reach of a negation to a finding after it."""
    words, low, high = clause.words, cue_.end, match.start
    marks = [i for i in range(low, high) if words[i] in _SEPARATORS]
    verbs = clause.of("verb", low=low, high=high)
    if verbs:
        again = any(i >= verbs[-1].end for i in marks) or "there" in words[verbs[0].start : high]
        return "no" if again else "unread"
    start = marks[-1] + 1 if marks else low
    related = [
        m for m in clause.of("relation", low=start, high=high) if m.start > start or not m.of("modifier")
    ]
    if related:
        last = related[-1]
        again = (
            last.start == start and bool(marks) and words[start] == words[low - 1]
        )  # "of mass, or of hemorrhage"
        if not again and not _takes(last, clause):
            return "held" if words[last.end] in _DEFINITE else "unread"
        start = last.end
    elif marks and words[marks[-1] - 1] != "," and _bound(clause, low, marks):
        return "unread"
    first = words[start] if start < high else ""
    if marks and first in _STATES:
        return "yes" if words[marks[-1]] in ("or", "nor") and first in ("a", "an") else "no"
    if not _modifies(clause, start, high):
        return "unread"
    if not marks or words[marks[-1]] in ("or", "nor", "/") or words[cue_.start] == "neither":
        return "yes"
    sized, detailed = bool(clause.of("strong", low=start, high=high)), _is_detailed(match, clause)
    if words[marks[-1]] in ("and", "&"):
        return "unread" if sized or detailed else "yes"
    goes_on = any(word in ("or", "nor") for word in words[match.end : clause.end])
    if goes_on or not (sized or detailed):
        return "yes"
    return "no" if sized and detailed else "unread"


def _takes(relation: Match, clause: Clause) -> bool:
    """Whether a preposition makes one phrase of two nouns, as in "evidence of hemorrhage"."""
    of = clause.words[relation.start] in ("of", "for")
    return of and any(sign.end == relation.start for sign in clause.of("sign"))


def _bound(clause: Clause, low: int, marks: Sequence[int]) -> bool:
    """Whether the item before the last separator is bound to a definite noun ("edema around the mass or")."""
    related = clause.of("relation", low=marks[-2] + 1 if len(marks) > 1 else low, high=marks[-1])
    return any(clause.words[m.end] in _DEFINITE for m in related)


def _back(cue_: Match, match: Match, clause: Clause) -> Reach:
    """Reach of a negation to a finding before it."""
    words, low, high = clause.words, match.end, cue_.start
    if words[high] == ":":
        return "no" if ":" in words[low:high] else "yes"
    marks = [i for i in range(low, high) if words[i] in _SEPARATORS]
    verbs = [m for m in clause.of("verb", low=low, high=high) if not _participle(m, words)]
    while verbs and all(
        words[i].endswith("ly") or words[i] in _AUXILIARIES for i in range(verbs[-1].start, high)
    ):
        verbs.pop()
    if verbs:
        return "no" if any(i >= verbs[0].end for i in marks) else "unread"
    if any(words[i] == "," for i in marks) and not any(words[i] in ("or", "nor", "and") for i in marks):
        return "unread"
    return presupposed(match, clause) or "yes"


def _participle(verb: Match, words: Sequence[str]) -> bool:
    """Whether a verb is a participle, as in "hemorrhage seen on the prior study"."""
    return words[verb.start] not in _AUXILIARIES | {"there"}


def _phrase_start(match: Match, clause: Clause) -> tuple[int, dict[int, Match]]:
    """Index of the first word of the noun phrase of a finding, and the match at each word of the clause."""
    at, covered = match.start, {i: m for m in clause.matches for i in range(m.start, m.end)}
    while at > clause.start and (
        clause.words[at - 1] in _DEFINITE | _STATES or (at - 1 in covered and covered[at - 1].of(*_MODIFIERS))
    ):
        at -= 1
    return at, covered


def alternative(match: Match, clause: Clause) -> Match | None:
    """The "or" between another noun and a finding ("effusion or chronic hematoma"), else None.

    A compartment, place or modifier before "or" belongs to the finding ("subdural or epidural hematoma").
    """
    at, covered = _phrase_start(match, clause)
    if at - 2 < clause.start or clause.words[at - 1] != "or":
        return None
    other = covered.get(at - 2)
    return None if other and other.of(*_MODIFIERS) else Match(at - 1, at, ())


def presupposed(match: Match, clause: Clause) -> Reach | None:
    """`held` where a finding belongs to another noun ("source of the hemorrhage"), else None."""
    words = clause.words
    at, covered = _phrase_start(match, clause)
    before = covered.get(at - 1) if at > clause.start else None
    if before is None or not before.of("relation") or before.start <= clause.start:
        return None
    if _takes(before, clause):
        return None
    return "held" if words[before.end] in _DEFINITE else "unread"


def _is_detailed(match: Match, clause: Clause) -> bool:
    """Whether a finding is followed by a location, a size or a verb of its own, before a conjunction."""
    high = next(
        (i for i in range(match.end, clause.end) if clause.words[i] in ("or", "nor", "and")), clause.end
    )
    after = clause.of("relation", "strong", "verb", "place", "shown", low=match.end, high=high)
    return bool(after) or any(word[0].isdigit() for word in clause.words[match.end : high])


def measured(match: Match, clause: Clause) -> bool:
    """Whether the finding has a size ("no hemorrhage measuring 3 cm": "now" misheard for "no")."""
    rest = list(clause.words[match.end : clause.end])
    verb = next((i for i, word in enumerate(rest) if word in ("measuring", "measures")), None)
    if verb is None or not any(word[0].isdigit() for word in rest[verb + 1 : verb + 4]):
        return False
    between = rest[: max(verb - 2, 0)] + [word for word in rest[max(verb - 2, 0) : verb] if word != ","]
    return not any(word in _SEPARATORS - {"/"} or word[0].isdigit() for word in between)


def _modifies(clause: Clause, low: int, high: int) -> bool:
    """Whether words `low` to `high` are modifiers of a noun."""
    covered = {i for modifier in clause.of(*_MODIFIERS) for i in range(modifier.start, modifier.end)}
    for i in range(low, high):
        word = clause.words[i]
        adjective = not is_known(word) and word.isascii() and word.endswith(_ADJECTIVE)
        if (
            i not in covered
            and word not in ("any", "a", "an", "the", ":")
            and not adjective
            and not word[0].isdigit()
        ):
            return False
    return True


def placed(match: Match, clause: Clause, role: str) -> Match | None:
    """The nearest location match with the given role, within its scope and not separated from the finding."""
    near = [
        location
        for location in clause.of(role)
        if any(_gap(match, location) <= (rule.scope or 0) for rule in location.of(role))
        and not _parted(location, match, clause)
    ]
    return min(near, key=lambda location: _gap(match, location), default=None)


def outside(match: Match, clause: Clause) -> Match | None:
    """An extracranial location nearer to the finding than any intracranial one.

    None for a finding with a named compartment, which is intracranial.
    """
    location = placed(match, clause, "outside")
    if location is None or any(rule.kinds for rule in match.rules if rule.role != "place"):
        return None
    within = inside(match, clause)
    if within is None or (
        _gap(match, location) < _gap(match, within) and not _elsewhere(within, match, clause)
    ):
        return location
    return None


def inside(match: Match, clause: Clause) -> Match | None:
    """The nearest intracranial location."""
    locations = [location for location in clause.of("site", "kind", "place") if location is not match]
    return min(locations, key=lambda location: _gap(match, location), default=None)


def kinds_of(match: Match, clause: Clause, *, absent: bool = False) -> tuple[str, ...]:
    """Compartments of a finding.

    Taken from the finding itself, else from compartment names in the clause that are nearer to it than to
    another finding, else from its location. A comma or conjunction cuts a location off an absent finding, a
    negation off a present one ("hematoma without subarachnoid extension"). Where a compartment is that of an
    extension, the location counts too.
    """
    kinds = [kind for rule in match.rules if rule.role in FINDINGS for kind in rule.kinds]
    findings = [other for other in clause.matches if other.of(*FINDINGS) or other is match]
    settled = bool(kinds)
    for role in ("kind", "place"):
        if settled:
            break
        for location in clause.of(role):
            nearest = min(findings, key=lambda other: _gap(other, location))
            between = clause.words[min(nearest.end, location.end) : max(nearest.start, location.start)]
            listed = role == "kind" and location.end <= match.start  # "subdural or subarachnoid hemorrhage"
            if absent:
                apart = not listed and not _SEPARATORS.isdisjoint(between)
            else:
                apart = _denied(location, match, clause)
            if nearest is match and _gap(nearest, location) <= _NEAR and not apart:
                kinds += [kind for rule in location.of(role) for kind in rule.kinds]
                settled |= _EXTENDING.isdisjoint(clause.words[location.end - 1 : location.end + 1])
    return tuple(kinds)


def _denied(location: Match, match: Match, clause: Clause) -> bool:
    """Whether a location is denied of a finding that is there ("hematoma, not subarachnoid")."""
    words = clause.words
    if location.start >= match.end:
        return not _DENYING.isdisjoint(words[match.end : location.start])
    denying = [i for i in range(clause.start, location.start) if words[i] in _DENYING]
    return bool(denying) and _modifies(clause, denying[-1] + 1, location.start)


def _gap(match: Match, other: Match) -> int:
    """Number of words between two matches."""
    return max(other.start - match.end, match.start - other.end)


def _parted(location: Match, match: Match, clause: Clause) -> bool:
    """Whether a negation or another bleed stands between a location and a finding."""
    low, high = min(location.end, match.end), max(location.start, match.start)
    return bool(clause.of("absent", "implied", "blood", "suspect", low=low, high=high))


def _elsewhere(within: Match, match: Match, clause: Clause) -> bool:
    """Whether a finding is a new item with a place of its own ("scalp swelling, hematoma in the pons")."""
    after = clause.words[match.end : within.start]
    opens = match.start > clause.start and clause.words[match.start - 1] in _SEPARATORS
    return opens and after[:1] in (["in"], ["within"]) and _SEPARATORS.isdisjoint(after)
