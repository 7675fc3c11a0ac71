"""Which series stands for a study.

In: the ordered series of one study. Out: the same series, best first; for any of them the reason in words; a
ledger entry for each that does not stand for the study, and one if that which does is no plain head.
A preference never refuses: descriptions, kernels and body parts are makers' free text, often empty and
sometimes wrong. What the header says of a contrast agent outranks the description
(`ich_mil.dicom.contrast`).

Source: the series of CQ500 (Chilamkurthy et al. 2018), whose names are folder names such as 'CT Plain THIN',
'CT 4cc sec 150cc D3D on-2', 'CT PRE CONTRAST 5MM STD', 'CT BONE'; body parts are PS3.16 annex L.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ich_mil.dicom.contrast import Told, contrast_words
from ich_mil.dicom.contrast_words import SitePhrases
from ich_mil.dicom.order import LEFT_OUT, Series
from ich_mil.dicom.planes import AXIAL_DEGREES, tilt_degrees
from ich_mil.ledger import Code, LedgerEntry

COVER_MM = 100.0
# From vertex to foramen magnum is at most about 200 mm, and there is room for air above and for a low start.
# What is longer shows the neck or the trunk as well, and has more slices for that alone.
LONGEST_MM = 260.0
STUB_MM = 60.0  # less than half a head: timing and test scans
THICK_MM = (2.4, 5.5)  # 2.5-5 mm with room for rounding
THICKEST_MM = 7.5

_DEFECTS = LEFT_OUT | {Code.GAP, Code.SPACING_CHANGES}
_BONE = re.compile(r"bone|knochen|osseous|temporal|petrous|\biac\b|\bdetails?\b", re.IGNORECASE)
# Sharp kernels by name: GE BONE*, EDGE, DETAIL; Philips D, E, YD; Toshiba FC30-39 and FC80-89; Siemens with
# 60 or more (H60s, Hr64). A backslash divides several values.
_BONE_KERNEL = re.compile(
    r"(.*(bone|edge|lung|detail).*|d|e|yd|fc[38]\d|(?!fc)[a-z]{1,2}[6-9]\d[a-z]?)(\\.*)?", re.IGNORECASE
)
_HEAD = re.compile(r"head|brain|skull|crani|cereb|neuro|kopf|sch(ä|ae?)del|hirn|crane|crâne", re.IGNORECASE)
_OTHER_PART = re.compile(
    r"chest|thora|abdo|pelvi|spin(e|al)\b|cervical|lumbar|\bneck\b|extremit|shoulder|\bhip\b|\bknee\b|\bankle\b"
    r"|\bfoot\b|\bwrist\b|\bhand\b|\belbow\b|\b(upper|lower)?(arm|leg)\b|\bheart\b|cardiac|coronary|\blung|\bliver\b"
    r"|kidney|aort",
    re.IGNORECASE,
)
_REPEAT = re.compile(r"-[2-9]$")


def rank_series(series: Sequence[Series], site: SitePhrases = ()) -> list[Series]:
    """Sort the series of a study, the one that stands for it first.

    What counts, in this order: at least 60 mm (a shorter one is a timing or test scan); no other body part
    named; plain, else bone, else post-contrast, else not axial; at most 260 mm (a longer one is of the trunk
    as well); at least 100 mm; no gap; steps of 2.5-5 mm, else up to 7.5 mm, else thin (to be averaged), else
    thicker; called plain rather than not called anything; fewer defects; more slices; no repeat (folder name
    with -2, -3); the series UID, so that the result does not depend on the order given.

    Args:
        series: all series of one study, at least one.
        site: contrast words of the site.

    Returns:
        The same series, best first.

    Raises:
        ValueError: no series was given.
    """
    if not series:
        raise ValueError("a study needs at least one series to choose from; got none")
    return sorted(series, key=lambda one: _rank(one, site))


def reason_for(chosen: Series, series: Sequence[Series], site: SitePhrases = ()) -> str:
    """Why `chosen` stands for the study, in words.

    Args:
        chosen: any of `series`.
        series: all series of the study.
        site: contrast words of the site.

    Returns:
        What `chosen` is like, and what its rivals are.

    Raises:
        ValueError: `chosen` is not among `series`.
    """
    if chosen not in series:
        raise ValueError(f"series {chosen.series_uid} is not among the {len(series)} series of the study")
    place = rank_series(series, site).index(chosen) + 1
    reason = _describe(chosen, site)
    if len(series) == 1:
        return f"{reason}; the only series"
    plain = [one for one in series if _unwanted(one, site) == 0]
    if len(plain) < len(series):
        reason += f"; {len(series) - len(plain)} of {len(series)} series are post-contrast, bone or not axial"
    else:
        reason += f"; all {len(series)} series are plain"
    if n_other := sum(_is_other_part(one) for one in series):
        reason += f", {n_other} of another body part"
    if chosen not in plain and plain and all(one.extent < STUB_MM for one in plain):
        reason += f", and the plain ones cover less than {STUB_MM:.0f} mm"
    return reason if place == 1 else f"{reason}; number {place} in order of preference"


def not_chosen(chosen: Series, series: Sequence[Series], site: SitePhrases = ()) -> list[LedgerEntry]:
    """One ledger entry, with the lowest file, for each of the `series` of a study other than `chosen`."""
    entries = []
    for one in series:
        if one != chosen:
            refused = {entry.file for entry in one.entries if entry.code in LEFT_OUT}
            files = len(refused | {header.path for header in one.headers})
            detail = f"series {_text(one)!r} ({one.series_uid}), {files} files: {_describe(one, site)}"
            if unsure := _contrast_unsure(one, site):
                detail += f"; {unsure}"
            entries.append(LedgerEntry(one.study_uid, one.headers[0].path, Code.SERIES_NOT_CHOSEN, detail))
    return entries


def kind_entries(chosen: Series, site: SitePhrases = ()) -> list[LedgerEntry]:
    """Ledger entries that say in what the series that stands for a study is no plain one of a whole head.

    Args:
        chosen: the series that stands for the study, be it the only one.
        site: contrast words of the site.

    Returns:
        None for a plain axial series that names no other body part, is as long as a head and has a
        description that is understood and agrees with its header.
    """
    kinds = _kinds(chosen, site)
    for kind, n_such in (("post-contrast", _n_with_agent(chosen)), ("bone", _n_sharp(chosen))):
        if n_such and kind not in kinds:
            kinds.append(f"{kind} in {n_such} of {len(chosen.headers)} slices")
    if _is_other_part(chosen):
        kinds.append("of another body part")
    if chosen.extent > LONGEST_MM:
        kinds.append(f"longer than a head ({chosen.extent:.0f} mm)")
    entries = []
    if kinds:
        detail = f"series {_text(chosen)!r} ({chosen.series_uid}) is {', '.join(kinds)}"
        entries.append(LedgerEntry(chosen.study_uid, "", Code.SERIES_KIND, detail))
    if chosen.extent < COVER_MM:
        n_slices = len(chosen.headers)
        detail = f"{n_slices} slices cover {chosen.extent:.0f} mm, a head needs {COVER_MM:.0f} mm"
        entries.append(LedgerEntry(chosen.study_uid, "", Code.PART_OF_HEAD, detail))
    if unsure := _contrast_unsure(chosen, site):
        detail = f"series {_text(chosen)!r} ({chosen.series_uid}): {unsure}"
        entries.append(LedgerEntry(chosen.study_uid, "", Code.CONTRAST_UNSURE, detail))
    return entries


def _folder(series: Series) -> str:
    return Path(series.headers[0].path).parent.name


def _text(series: Series) -> str:
    """What a person called the series: its description, else the folder it lies in."""
    text = series.description or _folder(series)
    return text.replace("_", " ")  # to a word pattern 'POST_5MM' is one word


def _told(series: Series, site: SitePhrases) -> Told:
    """What the description says of contrast."""
    return contrast_words(site).read(_text(series))


def _header_contrast(series: Series) -> bool | None:
    """What most headers say of contrast; None where they say nothing."""
    half = len(series.headers) / 2
    if _n_with_agent(series) > half:
        return True
    return False if sum(header.no_contrast for header in series.headers) > half else None


def _contrast(series: Series, site: SitePhrases) -> bool | None:
    """Whether a series was made with contrast: as its headers say, else its description."""
    told = _header_contrast(series)
    return _told(series, site).contrast if told is None else told


def _contrast_unsure(series: Series, site: SitePhrases) -> str:
    """Why it is not sure whether a series was made with contrast, in words; '' where it is.

    Folder names are of no one who would know: unknown words of theirs are passed over.
    """
    header, told = _header_contrast(series), _told(series, site)
    if header is None and series.description and told.unknown:
        words = ", ".join(map(repr, told.unknown))
        return f"the table of contrast words lacks {words}, which were passed over"
    if header is not None and told.contrast not in (None, header):
        said = ("without contrast", "with contrast")
        return f"its header says {said[header]}, its name {said[not header]}; the header counts"
    return ""


def _is_bone(series: Series) -> bool:
    """A sharp kernel in most slices, or a description that says bone."""
    return 2 * _n_sharp(series) > len(series.headers) or bool(_BONE.search(_text(series)))


def _n_with_agent(series: Series) -> int:
    """Slices whose header names a contrast agent."""
    return sum(header.contrast for header in series.headers)


def _n_sharp(series: Series) -> int:
    """Slices of a sharp kernel."""
    return sum(bool(_BONE_KERNEL.fullmatch(header.kernel)) for header in series.headers)


def _is_axial(series: Series) -> bool:
    return tilt_degrees(series.headers[0]) <= AXIAL_DEGREES


def _is_other_part(series: Series) -> bool:
    """A part of the body is named that is not the head, and nothing names the head."""
    words = f"{series.headers[0].body_part} {_text(series)}"
    return bool(_OTHER_PART.search(words)) and not _HEAD.search(words)


def _unwanted(series: Series, site: SitePhrases) -> int:
    """0 for a plain axial series; else higher the less it resembles one."""
    return 4 * (not _is_axial(series)) + 2 * (_contrast(series, site) is True) + _is_bone(series)


def _rank(series: Series, site: SitePhrases) -> tuple[bool | int | str, ...]:
    """Sorts the best series of a study first (`rank_series` states the order)."""
    codes = [entry.code for entry in series.entries]
    spacing = series.spacing
    if THICK_MM[0] <= spacing <= THICK_MM[1]:
        step_class = 0
    elif THICK_MM[1] < spacing <= THICKEST_MM:
        step_class = 1
    else:
        step_class = 2 if 0 < spacing < THICK_MM[0] else 3
    return (
        series.extent < STUB_MM,
        _is_other_part(series),
        _unwanted(series, site),
        series.extent > LONGEST_MM,
        series.extent < COVER_MM,
        Code.GAP in codes,
        step_class,
        _contrast(series, site) is not False,
        sum(code in _DEFECTS for code in codes),
        -len(series.headers),
        bool(_REPEAT.search(_folder(series))),
        series.series_uid,
        series.headers[0].kernel,
        series.headers[0].path,
    )


def _kinds(series: Series, site: SitePhrases) -> list[str]:
    """What keeps a series from being a plain axial one, in words."""
    kinds = (
        ("not axial", not _is_axial(series)),
        ("post-contrast", _contrast(series, site) is True),
        ("bone", _is_bone(series)),
    )
    return [word for word, holds in kinds if holds]


def _describe(series: Series, site: SitePhrases) -> str:
    """Kind, step, number of slices, extent and defects, in words."""
    n = len(series.headers)
    parts = [" ".join(_kinds(series, site)) or "plain"]
    if n > 1:
        parts.append(f"{series.spacing:.1f} mm")
    parts += [f"{n} slice{'s' if n > 1 else ''}", f"{series.extent:.0f} mm"]
    counts = Counter(entry.code for entry in series.entries if entry.code in _DEFECTS)
    parts += [f"{count} {code}" for code, count in counts.items()]
    return ", ".join(parts)
