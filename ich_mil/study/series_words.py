"""Words of series: body part, kernel, images of dual-energy and perfusion CT, in free text of sites.

In: SeriesDescription, BodyPartExamined, ConvolutionKernel, ImageType. Out: what they name. Texts are often
empty and sometimes wrong; a description outranks BodyPartExamined, which is often the default of a protocol.

Source: body parts in DICOM PS3.16 annex L; ImageType value 4 of multi-energy CT in PS3.3 C.8.15.2.1.1.5;
kernels and descriptions as GE, Siemens, Philips, Canon (Toshiba), Hitachi, United Imaging and Neusoft write
them.
"""

import re
from enum import IntEnum

_HEAD = re.compile(
    r"head|brain|skull|crani|cr[aâ]n[ei]|cereb|neuro|enc[eé]f|kopf|sch(ä|ae?)del|hirn|t[eê]te\b|cabe[cz]|testa\b"
    r"|hoofd|hersen|hoved|aivo|g[lł]ow[aęy]|m[oó]zg|kafa|beyin|голов|мозг|頭|头|颅|顱|脑|脳|\btou?bu\b|\bnou\b",
    re.IGNORECASE,
)
_PART_OF_HEAD = re.compile(
    r"sinus(?!.?thromb)|\bs[ei]n[io]s?\b|\bpns\b|\bnnh\b|parana[sz]al|orbit|\beyes?\b|\bfac(e|ial|iale?s?)\b|maxill"
    r"|mandib|\bdent|\bjaw|kiefer|\btmj\b|temporo.?mandib|\batm\b|temporal|petrous|mastoid|felsenbein|\bro[ck]her"
    r"|\bia[cm]s?\b|inner.?ear|\bears?\b|oreille|o[iíy]dos?\b|cochlea|nas(al|e)\b|\bnose\b|zygom|mittelgesicht"
    r"|(gesichts|facial|face).?(sch(ä|ae?)del|skull|bones?)|(skull|crani\w*).?base|base.?(of.?)?(the.?)?(skull|crane)"
    r"|sch(ä|ae?)delbasis|\bsella\b|pituitar|hypophys|副鼻|鼻窦|鼻竇|眼|颞骨|顳骨|側頭骨|颌|顎|内耳|пазух|глазниц|височн"
    r"|\bganmen|\bganka\b|fukubiku?u|sokutou?kotsu|\bnaiji\b|\bkagaku\b",
    re.IGNORECASE,
)
_OTHER_PART = re.compile(
    r"chest|thora|abdo|pelvi|spin(e|al)\b|cervical|lumbar|\bneck\b|extremit|shoulder|\bhip\b|\bknee\b|\bankle\b"
    r"|\bfoot\b|\bwrist\b|\bhand\b|\belbow\b|\b(upper|lower)?(arm|leg)\b|\bheart\b|cardiac|coronary|\blung|\bliver\b"
    r"|kidney|aort|\b[hbl]ws\b|rachis|columna|col\.? ?cerv|\bhals\b|wirbel|colonna|颈|頸|胸|腹|脊"
    r"|keitsui|youtsui|kyoubu|fukubu\b|keibu\b",
    re.IGNORECASE,
)
_BONE = re.compile(
    r"bone|knochen|osseous|temporal|petrous|\biac\b|\bdetails?\b|\bhone\b|kotsu", re.IGNORECASE
)
# Sharp kernels. GE: BONE, BONEPLUS, EDGE, LUNG, DETAIL, ULTRA. Siemens: a number of 50 or more (H60s, Hr64,
# Bl57). Philips: D, E, L and Y filters, also with their name ("Y-Sharp (YA)"). Canon: FC30-39, FC50-59,
# FC80-89. United Imaging and others: names with SHARP or BONE. A backslash separates several values.
_SHARP = re.compile(
    r"(.*(bone|edge|lung|detail|sharp|ultra|osteo|knochen|petrous|inner.?ear|high.?res).*|[del]|y[a-e]|fc[358]\d"
    r"|(?!fc)[a-z]{1,2}[5-9]\d[a-z]{0,2})(\\.*)?",
    re.IGNORECASE,
)
_MIXED = re.compile(r"\b[mf][ _]?[+-]?0[.,]\d|\bmixed\b|\bblend|\baverage\b|\bconventional\b", re.IGNORECASE)
_DUAL = re.compile(r"^de[ _]|\bdect\b|dual.?(energ|kv|source)|\bgsi\b|spe[ck]tral", re.IGNORECASE)
_SPECTRAL = (
    (
        "a virtual monoenergetic image",
        re.compile(r"\bmono(?!chrome|phas)|monoenerg|\bvmi\b|\d ?kev\b|\bvmonokev", re.IGNORECASE),
    ),
    (
        "a map of a material",
        re.compile(
            r"\bmat_(specific|removed|fractional|modified|value_based)\b|\beff_atomic_num\b|electron.?dens"
            r"|\bz.?eff|effective.?(atomic|z\b)|\biodine|\b[ij]od(e|ium)?.?(map|karte|overlay)|\bvnc|\bvue\b"
            r"|virtu(al|ell).{0,3}(non|un|nativ|calcium|contr)|\b(iodine|water|calcium|hap|fat|blood)\W?\("
            r"|uric.?acid|calcium.?suppress|\bno.?water\b|\brho.?z\b",
            re.IGNORECASE,
        ),
    ),
    (
        "a map of perfusion",
        re.compile(r"\\(?:.* )?perf\b|\b(cb[fv]|mtt|t-?max|ttp|ttd|pbv)\b", re.IGNORECASE),
    ),
    (
        "an image of one tube voltage of two",
        re.compile(
            r"(^de[ _]|\bdect\b|dual|\bgsi\b).*\b(sn ?)?\d{2,3} ?kvp?\b|\bsn ?1[0-5]0 ?kv", re.IGNORECASE
        ),
    ),
)
_SEPARATORS = re.compile(r"[_\\]")


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
    for text in (description, body_part):
        rest = _PART_OF_HEAD.sub(" ", text)
        has_part, has_head = rest != text, bool(_HEAD.search(rest))
        if has_head:
            return Part.HEAD_AND_PART if has_part else Part.HEAD
        if has_part:
            return Part.PART_OF_HEAD
        if _OTHER_PART.search(text):
            # The description of another part cannot be the default of a protocol.
            return Part.OTHER
    return Part.HEAD


def names_bone(description: str) -> bool:
    """Whether a description names a reconstruction for bone."""
    return bool(_BONE.search(description))


def is_sharp_kernel(kernel: str) -> bool:
    """Whether a ConvolutionKernel is for bone or lung, by its name."""
    return bool(_SHARP.fullmatch(kernel))


def spectral_kind(image_type: str, description: str) -> str:
    """Kind of an image of dual-energy or perfusion CT, in words; '' for a conventional image.

    A mixed image of both tube voltages counts as conventional.
    """
    texts = (_SEPARATORS.sub(" ", image_type), description)
    for kind, pattern in _SPECTRAL:
        if pattern.search(image_type) or any(pattern.search(text) for text in texts):
            return kind
    if any(_MIXED.search(text) for text in texts):
        return ""
    return "an image of dual-energy CT" if any(_DUAL.search(text) for text in texts) else ""


def is_mixed(image_type: str, description: str) -> bool:
    """Whether an image is mixed from the two tube voltages of dual-energy CT."""
    return any(_MIXED.search(text) for text in (image_type, description))
