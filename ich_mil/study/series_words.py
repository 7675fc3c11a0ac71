"""Words of series: body part, kernel, images of dual-energy and perfusion CT, in free text of sites.

In: SeriesDescription, BodyPartExamined, ConvolutionKernel, ImageType. Out: what they name. `series_words.csv`
lists regular expressions for texts in lower case without accents (`ich_mil.study.contrast.normalized`), with
their meaning: head, part of head, other part, bone. Texts are often empty and sometimes wrong; a description
outranks BodyPartExamined, which is often the default of a protocol.

Source: body parts in DICOM PS3.16 annex L; ImageType value 4 of multi-energy CT in PS3.3 C.8.15.2.1.1.5;
kernels and descriptions as GE, Siemens, Philips, Canon (Toshiba), Hitachi, United Imaging and Neusoft write
them.
"""

import re
from enum import IntEnum
from functools import cache, lru_cache
from pathlib import Path

from ich_mil.study.contrast import normalized, patterns_of

# Sharp kernels. GE: BONE, BONEPLUS, EDGE, LUNG, DETAIL, ULTRA. Siemens: a number of 50 or more (H60s, Hr64,
# Bl57). Philips: D, E, L and Y filters, also with their name ("Y-Sharp (YA)"). Canon: FC30-39, FC50-59,
# FC80-89. United Imaging and others: names with SHARP or BONE. A backslash separates several values.
_SHARP = re.compile(
    r"(.*(bone|edge|lung|detail|sharp|ultra|osteo|knochen|petrous|inner.?ear|high.?res).*|[del]|y[a-e]|fc[358]\d"
    r"|(?!fc)[a-z]{1,2}[5-9]\d[a-z]{0,2})(\\.*)?",
    re.IGNORECASE,
)
_MIXED = re.compile(r"\b[mf] ?[+-]?0[.,]\d|\bmixed\b|\bblend|\baverage\b|\bconventional\b")
_DUAL = re.compile(r"^de |\bdect\b|dual.?(energ|kv|source)|\bgsi\b|spe[ck]tral")
_SPECTRAL = (
    (
        "a virtual monoenergetic image",
        re.compile(r"\bmono(?!chrome|phas)|monoenerg|\bvm[ie]\b|kev\b"),
    ),
    (
        "a map of a material",
        re.compile(
            r"\bmat (specific|removed|fractional|modified|value based)\b|\beff atomic num\b"
            r"|\be(lectron)?.?dens|\bz.?eff|effective.?(atomic|z\b)|\biodine|\b[ij]od(e|ium)?.?(map|karte|overlay)|碘图|\bvnc|\bvue\b"
            r"|\bvirtu|\b(iodine|water|calcium|hap|fat|blood)\W?\(|uric.?acid|calcium.?suppress|\bno.?water\b"
            r"|\brho.?z\b"
        ),
    ),
    (
        "a map of perfusion",
        re.compile(r"\\(?:.* )?perf\b|\b(cb[fv]|mtt|t-?max|ttp|ttd|pbv|t-?avg|t-?mip)\b"),
    ),
    (
        "an image of one tube voltage of two",
        re.compile(r"(^de |\bdect\b|dual|\bgsi\b).*\b(sn ?)?\d{2,3} ?kvp?\b|\bsn ?1[0-5]0 ?kv"),
    ),
)


@cache
def _listed(meaning: str) -> re.Pattern[str]:
    """Any of the patterns of `series_words.csv` with this meaning."""
    return re.compile("|".join(patterns_of(Path(__file__).with_suffix(".csv"))[meaning]))


class Part(IntEnum):
    """Part of the body that a series shows, by its texts."""

    HEAD = 0
    """The head, or nothing is named."""
    HEAD_AND_PART = 1
    """The head and also a part of it, as in 'head + orbits'."""
    PART_OF_HEAD = 2
    OTHER = 3


def part_of(description: str, body_part: str) -> Part:
    """Part of the body: of the description, or of BodyPartExamined where the description names none."""
    for text in map(normalized, (description, body_part)):
        rest = _listed("part of head").sub(" ", text)
        has_part, has_head = rest != text, bool(_listed("head").search(rest))
        if has_head:
            return Part.HEAD_AND_PART if has_part else Part.HEAD
        if has_part:
            return Part.PART_OF_HEAD
        if _listed("other part").search(text):
            # The description of another part cannot be the default of a protocol.
            return Part.OTHER
    return Part.HEAD


def names_bone(description: str) -> bool:
    """Whether a description names a reconstruction for bone."""
    return bool(_listed("bone").search(normalized(description)))


def is_sharp_kernel(kernel: str) -> bool:
    """Whether a ConvolutionKernel is for bone or lung, by its name."""
    return bool(_SHARP.fullmatch(kernel))


@lru_cache(maxsize=4096)
def spectral_kind(image_type: str, description: str) -> str:
    """Kind of an image of dual-energy or perfusion CT, in words; '' for a conventional image.

    A mixed image of both tube voltages counts as conventional.
    """
    image_type, description = normalized(image_type), normalized(description)
    texts = (image_type, image_type.replace("\\", " "), description)
    for kind, pattern in _SPECTRAL:
        if any(pattern.search(text) for text in texts):
            return kind
    if any(_MIXED.search(text) for text in texts):
        return ""
    return "an image of dual-energy CT" if any(_DUAL.search(text) for text in texts) else ""


def is_mixed(image_type: str, description: str) -> bool:
    """Whether an image is mixed from the two tube voltages of dual-energy CT."""
    return any(_MIXED.search(normalized(text)) for text in (image_type, description))
