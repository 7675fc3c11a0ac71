"""Sentence classifier: the statement of a report sentence about intracranial blood, with its evidence.

In: one sentence. Out: a `Verdict` with one of five labels:

* `present`: intracranial blood of any age is stated, neither hedged nor resolved.
* `absent`: blood is negated, or stated to have resolved.
* `uncertain`: blood is hedged, only implied ("no new hemorrhage"), or the sentence is not understood.
* `other`: blood outside the skull or in the past, a request or advice, or a density of unnamed nature.
* `none`: no statement of these kinds.

Each finding is labelled by the cues of `rules.csv` in its clause that apply to it (`language.reach`).
`present` and `absent` need a clause that is understood whole: its words are known, none of them is a
`doubt`, the path from a negation to the finding is a noun phrase or a list of them, and a bleed that is
stated has a place, size, age or verb, or stands alone. The sentence takes the strongest label of its
findings: `present`, `uncertain`, `absent`, `other`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

from ich_mil.radiology_text.language.clauses import FINDINGS, Clause, clauses
from ich_mil.radiology_text.language.reach import (
    alternative,
    cue,
    inside,
    kinds_of,
    measured,
    outside,
    placed,
    presupposed,
)
from ich_mil.radiology_text.language.vocabulary import is_known, is_unit, spelled
from ich_mil.radiology_text.rules import Match, Rules, default_rules, split_words, word_spans

Label = Literal["present", "absent", "uncertain", "other", "none"]
LABELS: tuple[Label, ...] = get_args(Label)
Denied = Literal["", "any", "acute", "most", "gone", "part"]
Reason = Literal["", "hedged", "implied", "unread"]
_STRENGTH: tuple[Label, ...] = ("present", "uncertain", "absent", "other")
_OWN: dict[str, Label] = {"absent": "absent", "implied": "uncertain", "history": "other"}
_AGES = frozenset({"acute", "hyperacute", "recent", "posttraumatic", "traumatic"})
_OTHER_STUDY = frozenset({"mri", "mr", "prior", "previous", "earlier", "outside", "initial", "yesterday"})
_HEAD = frozenset({"head", "brain", "cranial", "intracranial", "cerebral"})
_BODY = frozenset({"spine", "neck", "chest", "thorax", "abdomen", "pelvis"})
_SHOWN = ("strong", "shown", "place")


@dataclass(frozen=True)
class Verdict:
    """Classification of one sentence.

    Attributes:
        label: one of the five labels.
        kinds: compartments of present or uncertain blood, sorted.
        evidence: the deciding words, as written in the sentence.
        reason: why a sentence is uncertain: `hedged`, `implied` ("no new hemorrhage") or `unread` (not
            understood).
        denied: scope of the negation of an absent sentence: `any` blood; `acute` blood; `most`, several
            compartments; blood that is `gone`; or `part`, a single compartment. '' for other labels.
        normal: whether the examination as a whole is called normal.
        bare: whether a present sentence only names a bleed, without place, size, age or verb.
    """

    label: Label
    kinds: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    reason: Reason = ""
    denied: Denied = ""
    normal: bool = False
    bare: bool = False


@dataclass(frozen=True)
class _Mention:
    """One finding with its label and the deciding cue."""

    label: Label
    match: Match
    cue: Match | None = None
    reason: Reason = ""
    bare: bool = False


@lru_cache(maxsize=1 << 16)
def classify(sentence: str, rules: Rules | None = None) -> Verdict:
    """Classify one sentence.

    Args:
        sentence: text of the sentence; a section heading in it ends with a colon.
        rules: rule table; None: the table of the package.
    """
    spans = word_spans(sentence)
    words = [spelled(word) for word, _, _ in spans]
    matches = (rules or default_rules()).find(words)
    names = (
        set()
        if sentence.isupper()
        else {i for i, (_, at, _) in enumerate(spans) if i and sentence[at].isupper()}
    )
    all_clauses = list(clauses(words, matches))
    mentions = [
        (mention, kinds_of(mention.match, clause, absent=mention.label == "absent"))
        for clause in all_clauses
        for mention in _judge(clause, names)
    ]
    normal = [match for clause in all_clauses for match in clause.of("normal") if _is_of_head(clause, names)]

    def text(match: Match) -> str:
        return " ".join(sentence[spans[match.start][1] : spans[match.end - 1][2]].split())

    for label in _STRENGTH:
        chosen = [row for row in mentions if row[0].label == label]
        if chosen:
            texts = [text(match) for mention, _ in chosen for match in (mention.cue, mention.match) if match]
            kinds = tuple(sorted({kind for _, kinds in chosen for kind in kinds}))
            reasons = {mention.reason for mention, _ in chosen}
            return Verdict(
                label,
                kinds if label in ("present", "uncertain") else (),
                tuple(dict.fromkeys(texts)),
                reason=next((why for why in ("unread", "hedged", "implied") if why in reasons), ""),
                denied=_denied(chosen, words) if label == "absent" else "",
                normal=bool(normal),
                bare=label == "present" and all(mention.bare for mention, _ in chosen),
            )
    return Verdict("none", evidence=tuple(text(match) for match in normal), normal=bool(normal))


def _judge(clause: Clause, names: set[int]) -> list[_Mention]:
    """Label the findings of a clause."""
    findings = [match for match in clause.matches if match.of(*FINDINGS) or _own_label(match)]
    mentions = [_judge_finding(match, clause, names) for match in findings]
    hedged = next((mention for mention in reversed(mentions) if mention.reason == "hedged"), None)
    for i, mention in enumerate(mentions):
        collection = clause.words[mention.match.end - 1].startswith(("collection", "fluid"))
        if hedged and collection and mention.label == "present" and mention.match.end <= hedged.match.start:
            mentions[i] = replace(hedged, match=mention.match)  # its nature is the hedged blood after it
    return mentions


def _own_label(match: Match) -> Label | None:
    """Label of a phrase that is complete by itself, such as "hematoma evacuation": its rule has no side."""
    return next((_OWN[rule.role] for rule in match.of(*_OWN) if not rule.side), None)


def _judge_finding(match: Match, clause: Clause, names: set[int]) -> _Mention:
    if label := _own_label(match):
        if label == "absent" and (doubt := next(iter(clause.of("doubt", "uncertain")), None)):
            return _Mention("uncertain", match, doubt, "unread")  # "non-hemorrhagic infarct is not excluded"
        return _Mention(label, match, reason="implied" if label == "uncertain" else "")
    absent, how = cue(match, clause, "absent", "gone")
    implied, implies = cue(match, clause, "implied")
    if clause.words[match.end : match.end + 1] == [":"]:  # "hemorrhage: no acute bleed"
        entry = [cue_ for cue_ in clause.matches if cue_.start == match.end + 1]
        absent, how = next(((cue_, "yes") for cue_ in entry if cue_.of("absent")), (absent, how))
        implied, implies = next(((cue_, "yes") for cue_ in entry if cue_.of("implied")), (implied, implies))
    if location := outside(match, clause):
        return _Mention("other", match, location)
    if (past := cue(match, clause, "history")[0]) and not absent:
        return _Mention("other", match, past)
    if not match.of("blood", "suspect"):
        return _Mention("other", match, absent)
    if doubts := clause.of("doubt"):
        return _Mention("uncertain", match, doubts[0], "unread")
    if clause.words[match.end : clause.end] == [":"] and clause.end == len(
        clause.words
    ):  # an entry without a value
        return _Mention("uncertain", match, reason="unread")
    denied_before = absent and how == "yes" and absent.end <= match.start  # "absence of blood is confirmed"
    if not denied_before and (affirmed := cue(match, clause, "present")[0]):
        return _Mention("present", match, affirmed)
    if "unread" in (how, implies):
        return _Mention("uncertain", match, absent or implied, "unread")
    if (implied and implies == "yes") or (absent and how == "yes" and cue(match, clause, "rest")[0]):
        return _Mention("uncertain", match, implied or absent, "implied")
    if absent and how == "yes":
        clear = _is_clear(clause, names) and not measured(match, clause)
        return _Mention("absent", match, absent) if clear else _Mention("uncertain", match, absent, "unread")
    if hedge := cue(match, clause, "uncertain")[0] or _hedged(match, clause) or alternative(match, clause):
        return _Mention("uncertain", match, hedge, "hedged")
    if (past := cue(match, clause, "past")[0]) and not clause.of("now"):
        return _Mention("uncertain", match, past, "implied")
    if (location := placed(match, clause, "unsure")) and not inside(match, clause):
        return _Mention("uncertain", match, location, "hedged")
    if match.of("suspect"):
        return _Mention("uncertain", match, reason="hedged")
    shown = _shown(match, clause)
    if not _is_clear(clause, names, unknown=0) or shown == "unread":
        return _Mention("uncertain", match, reason="unread")
    return _Mention("present", match, bare=shown == "bare")


def _hedged(match: Match, clause: Clause) -> Match | None:
    """A hedge before a finding with nothing between that ends it, whatever its side and scope.

    Commas end no hedge in a list of alternatives ("could be thickening, artifact or a thin hematoma").
    """
    for hedge in reversed(clause.of("uncertain", high=match.start)):
        between = set(clause.words[hedge.end : match.start])
        if not ({"and", "with"} if "or" in between else {",", "and", "with"}) & between and not clause.of(
            "ends", "relation", low=hedge.end, high=match.start
        ):
            return hedge
    return None


def _is_clear(clause: Clause, names: set[int], *, unknown: int = 1) -> bool:
    """Whether the words of a clause are known, up to `unknown` words and one in ten, and none is a doubt."""
    covered = {i for match in clause.matches for i in range(match.start, match.end)}
    others = [
        i for i in range(clause.start, clause.end) if i not in covered and not is_known(clause.words[i])
    ]
    strange = [i for i in others if i not in names or len(names) > 3]
    return not clause.of("doubt") and len(strange) <= unknown + (clause.end - clause.start) // 10


def _is_of_head(clause: Clause, names: set[int]) -> bool:
    """Whether a clause that calls an examination normal is clear and names no other part of the body."""
    return (
        _is_clear(clause, names)
        and not clause.of("uncertain")
        and (not clause.of("outside") or bool(clause.of("site")))
    )


def _shown(match: Match, clause: Clause) -> str:
    """Form of a stated bleed: `detailed` with place, size, age or verb, `bare` by name alone, or `unread`."""
    words = clause.words
    if presupposed(match, clause) == "held" or clause.of(*_SHOWN):
        return "detailed"
    if any(location.start >= match.end for location in clause.of("kind", "site")):
        return "detailed"
    if any(words[i][0].isdigit() and is_unit(words[i + 1]) for i in range(clause.start, clause.end - 1)):
        return "detailed"
    covered = {
        i for other in clause.of(*FINDINGS, "modifier", "kind", "site") for i in range(other.start, other.end)
    }
    covered |= {i for i in range(clause.start, match.start) if words[i].endswith(("ic", "al", "ar"))}
    rest = [words[i] for i in range(clause.start, clause.end) if i not in covered and words[i][0].isalpha()]
    return "unread" if [word for word in rest if len(word) > 1 and word not in ("and", "the")] else "bare"


def part_of(heading: str) -> Denied:
    """Scope of a denial below a heading: `part` of a compartment, `most` of the brain, else `any`."""
    roles = default_rules().of_heading(heading)
    return "part" if roles & {"kind", "place", "space"} else "most" if "part" in roles else "any"


def is_outside(heading: str, text: str) -> bool:
    """Whether a sentence below a heading is of another part of the body or of the scalp, face or orbits.

    A sentence that names a compartment or place in the skull is not, unless the heading is of the body.
    """
    words, rules = split_words(heading), default_rules()
    outside = [match for match in rules.find(words) if match.of("outside")]
    if not outside or not _HEAD.isdisjoint(words) or rules.of_heading(heading) & {"site", "kind", "place"}:
        return False
    return not _BODY.isdisjoint(words) or not any(
        match.of("site", "kind") or any(rule.kinds for rule in match.rules)
        for match in rules.find(split_words(text))
    )


def _denied(mentions: Sequence[tuple[_Mention, tuple[str, ...]]], words: Sequence[str]) -> Denied:
    """The widest negation among the absent findings."""
    cued = []
    for mention, kinds in mentions:
        if mention.cue and not _is_gone(mention, words):
            between = words[mention.cue.end : mention.match.start]
            cued.append((between, kinds or (("extra-axial",) if _is_extra_axial(between) else ())))
    wide = [between for between, kinds in cued if not kinds]
    if any(_AGES.isdisjoint(between) for between in wide):
        return "any"
    if wide or len({kind for _, kinds in cued for kind in kinds}) > 1:
        return "acute" if wide else "most"
    return "gone" if any(_is_gone(mention, words) for mention, _ in mentions) else "part"


def _is_extra_axial(words: Sequence[str]) -> bool:
    """Whether the last item of a denied list is blood outside of the brain alone."""
    last = max((i for i, word in enumerate(words) if word in (",", "/", "or", "nor", "and")), default=-1) + 1
    named = words[last : last + 2] == ["extra", "axial"] or "extraaxial" in words[last:]
    return named and not {"intra", "intraaxial"} & {*words}


def _is_gone(mention: _Mention, words: Sequence[str]) -> bool:
    """Whether a bleed of another examination is not in this one ("the hematoma on the MRI is not seen")."""
    if mention.cue is None:
        return False
    between = words[mention.match.end : mention.cue.start]
    return bool(mention.cue.of("gone")) or not _OTHER_STUDY.isdisjoint(between)
