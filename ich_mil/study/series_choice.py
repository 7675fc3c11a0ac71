"""Choice of the series that represents a study.

In: the ordered series of one study. Out: the same series, best first; the reason for any of them in words;
ledger entries for the series not chosen, and for a chosen series that is not a plain scan of a whole head.
A preference only ranks; it never refuses a series. Descriptions, kernels and body parts are free text, often
empty and sometimes wrong. Contrast information in the header outranks the description, and the description
outranks BodyPartExamined (`ich_mil.study.series_words`).

Source: the series of CQ500 (Chilamkurthy et al. 2018), whose names are folder names such as 'CT Plain THIN',
'CT 4cc sec 150cc D3D on-2', 'CT PRE CONTRAST 5MM STD', 'CT BONE'.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ich_mil.ledger import Code, LedgerEntry
from ich_mil.study.contrast import SitePhrases, contrast_of
from ich_mil.study.geometry.order import LEFT_OUT, Series
from ich_mil.study.geometry.planes import AXIAL_DEGREES, tilt_degrees
from ich_mil.study.series_words import Part, is_mixed, is_sharp_kernel, names_bone, part_of, spectral_kind

COVER_MM = 100.0  # minimum extent of a whole head
# Vertex to foramen magnum is at most about 200 mm; the rest allows for air above and a low start. Longer
# series also show the neck or the trunk, and would win by their number of slices alone.
LONGEST_MM = 260.0
STUB_MM = 60.0  # less than half a head: timing and test scans
THICK_MM = (2.4, 5.5)  # 2.5-5 mm with a margin for rounding
THICKEST_MM = 7.5
USUAL_KV = (110.0, 130.0)  # head CT is scanned at 120 kV; 80, 100 and 140 kV are parts of dual-energy CT
VOLTAGES_APART_KV = 30.0

_PARTS = {Part.PART_OF_HEAD: "of a part of the head", Part.OTHER: "of another body part"}
_DEFECTS = LEFT_OUT | {Code.GAP, Code.SPACING_CHANGES}
_REPEAT = re.compile(r"-[2-9]$")


def rank_series(series: Sequence[Series], site: SitePhrases = ()) -> list[Series]:
    """Sort the series of a study by preference, the representative series first.

    Criteria, in this order:

    1. extent of at least 60 mm (shorter series are timing or test scans)
    2. the head, then also a part of it, then only a part of it (sinus, orbit, ...), then another body part
    3. plain, then bone, then post-contrast, then of dual-energy or perfusion CT, then not axial
    4. extent of at most 260 mm (longer series include the trunk)
    5. extent of at least 100 mm
    6. no gap
    7. slice spacing of 2.5-5 mm, then up to 7.5 mm, then thinner (to be averaged), then thicker
    8. explicitly without contrast, then unknown
    9. original, then derived from other images (ImageType), such as copies with marks
    10. tube voltage of a conventional head scan, then another
    11. not mixed from dual-energy CT
    12. fewer defects
    13. more slices
    14. not a repeat (folder name ending in -2, -3, ...)
    15. series UID, kernel and path, which make the result independent of the input order
    """
    return sorted(series, key=lambda candidate: _rank(candidate, site))


def reason_for(chosen: Series, series: Sequence[Series], site: SitePhrases = ()) -> str:
    """Reason why `chosen`, one of the `series` of a study, represents it: its kind and that of the others."""
    rank = rank_series(series, site).index(chosen) + 1
    reason = _describe(chosen, site)
    if len(series) == 1:
        return f"{reason}; the only series"
    plain = [candidate for candidate in series if _unwanted(candidate, site) == 0]
    if len(plain) < len(series):
        others = f"{len(series) - len(plain)} of {len(series)} series"
        reason += f"; {others} are post-contrast, bone, spectral or not axial"
    else:
        reason += f"; all {len(series)} series are plain"
    for part, words in _PARTS.items():
        if n_such := sum(_part(candidate) == part for candidate in series):
            reason += f", {n_such} {words}"
    if chosen not in plain and plain and all(candidate.extent < STUB_MM for candidate in plain):
        reason += f", and the plain ones cover less than {STUB_MM:.0f} mm"
    return reason if rank == 1 else f"{reason}; number {rank} in order of preference"


def not_chosen(chosen: Series, series: Sequence[Series], site: SitePhrases = ()) -> list[LedgerEntry]:
    """Ledger entries for all `series` of a study except `chosen`, each with the file of the lowest slice."""
    entries = []
    for other in (s for s in series if s != chosen):
        refused = {entry.file for entry in other.entries if entry.code in LEFT_OUT}
        files = len(refused | {header.path for header in other.headers})
        detail = f"series {_text(other)!r} ({other.series_uid}), {files} files: {_describe(other, site)}"
        if unsure := _contrast_unsure(other, site):
            detail += f"; {unsure}"
        entries.append(LedgerEntry(other.study_uid, other.headers[0].path, Code.SERIES_NOT_CHOSEN, detail))
    return entries


def kind_entries(chosen: Series, site: SitePhrases = (), series: Sequence[Series] = ()) -> list[LedgerEntry]:
    """Ledger entries for deviations of the chosen series from a plain axial scan of a whole head.

    Entries are for the kind of series (post-contrast, bone, spectral, not axial, other body part, too long),
    for an extent shorter than a head, and for a description that contradicts the header. `series` are all of
    the study: two of other tube voltages are the parts of a dual-energy scan.
    """
    kinds = _kinds(chosen, site)
    if any(_unwanted(other, site) == 0 and _is_other_voltage(other, chosen) for other in series):
        kinds.append("of one tube voltage of two")
    for kind, n_such in (("post-contrast", _n_with_agent(chosen)), ("bone", _n_sharp(chosen))):
        if n_such and kind not in kinds:
            kinds.append(f"{kind} in {n_such} of {len(chosen.headers)} slices")
    if words := _PARTS.get(_part(chosen)):
        kinds.append(words)
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
    """Series description, or the name of its folder if empty."""
    text = series.description or _folder(series)
    return text.replace("_", " ")  # \b does not split 'POST_5MM'


def _header_contrast(series: Series) -> bool | None:
    """Contrast state stated by more than half of the headers, None if there is no such majority."""
    half = len(series.headers) / 2
    if _n_with_agent(series) > half:
        return True
    return False if sum(header.no_contrast for header in series.headers) > half else None


def _contrast(series: Series, site: SitePhrases) -> bool | None:
    """Whether a series is post-contrast, by its headers or else by its description; None if unknown."""
    contrast = _header_contrast(series)
    return contrast_of(_text(series), site) if contrast is None else contrast


def _contrast_unsure(series: Series, site: SitePhrases) -> str:
    """Contradiction between header and description on contrast, in words; '' if there is none."""
    header, text = _header_contrast(series), contrast_of(_text(series), site)
    if header is None or text in (None, header):
        return ""
    names = ("without contrast", "with contrast")
    return f"its header is {names[header]}, its description {names[not header]}; the header counts"


def _is_bone(series: Series) -> bool:
    """Whether most slices have a sharp kernel, the description names bone, or the noise is that of bone."""
    return bool(series.sharp) or 2 * _n_sharp(series) > len(series.headers) or names_bone(_text(series))


def _n_with_agent(series: Series) -> int:
    """Number of slices with a contrast agent according to their header."""
    return sum(header.contrast for header in series.headers)


def _n_sharp(series: Series) -> int:
    """Number of slices with a sharp kernel."""
    return sum(is_sharp_kernel(header.kernel) for header in series.headers)


def _is_axial(series: Series) -> bool:
    return tilt_degrees(series.headers[0]) <= AXIAL_DEGREES


def _part(series: Series) -> Part:
    return part_of(_text(series), series.headers[0].body_part)


def _spectral(series: Series) -> str:
    """Kind of an image of dual-energy CT in words; '' for a conventional series."""
    return spectral_kind(series.headers[0].image_type, _text(series))


def _unusual_voltage(series: Series) -> bool:
    """Whether the tube voltage is stated and not that of a conventional head scan."""
    voltage = series.headers[0].kvp
    return voltage is not None and not USUAL_KV[0] <= voltage <= USUAL_KV[1]


def _is_other_voltage(other: Series, chosen: Series) -> bool:
    """Whether two series of the same slices have tube voltages that are both unusual, and far apart."""
    low, high = other.headers[0].kvp, chosen.headers[0].kvp
    if low is None or high is None or not (_unusual_voltage(other) and _unusual_voltage(chosen)):
        return False
    ends = ((side.positions[0], side.positions[-1]) for side in (other, chosen))
    same_slices = all(abs(a - b) <= other.spacing for a, b in zip(*ends, strict=True))
    return same_slices and abs(low - high) >= VOLTAGES_APART_KV


def _unwanted(series: Series, site: SitePhrases) -> int:
    """Penalty of a series: 0 for plain axial, plus 1 for bone, 2 post-contrast, 4 spectral, 8 not axial."""
    penalty = 2 * (_contrast(series, site) is True) + _is_bone(series)
    return 8 * (not _is_axial(series)) + 4 * bool(_spectral(series)) + penalty


def _rank(series: Series, site: SitePhrases) -> tuple[bool | int | str, ...]:
    """Sort key of a series, smallest for the best; `rank_series` lists the criteria."""
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
        _part(series),
        _unwanted(series, site),
        series.extent > LONGEST_MM,
        series.extent < COVER_MM,
        Code.GAP in codes,
        step_class,
        _contrast(series, site) is not False,
        series.headers[0].image_type.upper().startswith("DERIVED"),
        _unusual_voltage(series),
        is_mixed(series.headers[0].image_type, _text(series)),
        sum(code in _DEFECTS for code in codes),
        -len(series.headers),
        bool(_REPEAT.search(_folder(series))),
        series.series_uid,
        series.headers[0].kernel,
        series.headers[0].path,
    )


def _kinds(series: Series, site: SitePhrases) -> list[str]:
    """Deviations of a series from plain axial, in words."""
    kinds = (
        ("not axial", not _is_axial(series)),
        ("post-contrast", _contrast(series, site) is True),
        ("bone", _is_bone(series)),
    )
    measured = [kind for kind in (series.sharp, _spectral(series)) if kind]
    return [word for word, holds in kinds if holds] + measured


def _describe(series: Series, site: SitePhrases) -> str:
    """Kind, spacing, number of slices, extent and defects of a series, in words."""
    n = len(series.headers)
    words = [" ".join(_kinds(series, site)) or "plain"]
    if n > 1:
        words.append(f"{series.spacing:.1f} mm")
    words += [f"{n} slice{'s' if n > 1 else ''}", f"{series.extent:.0f} mm"]
    counts = Counter(entry.code for entry in series.entries if entry.code in _DEFECTS)
    words += [f"{count} {code}" for code, count in counts.items()]
    return ", ".join(words)
