"""Validation of DICOM element values by value representation (VR).

In: raw bytes of a source image, or any text. Out: text that is valid for its VR. Texts and names are
truncated to the allowed length. An identifier is kept whole or left out, since a truncated identifier could
be that of another patient.

Source: DICOM PS3.5 6.2 (value representations), PS3.5 9 and B.2 (unique identifiers derived from UUIDs).
"""

import json
import re
from collections.abc import Sequence
from datetime import date
from uuid import UUID, uuid5

from ich_mil.dicom.files.text import decode_text
from ich_mil.report.text import printable

LO, SH = 64, 16
"""Largest number of characters of a long string (LO) and of a short string (SH)."""

_NAMESPACE = UUID("5f0c1d0a-7d9e-4b0c-9f4e-3c6f1d6b2a17")
"""UUID namespace of all derived UIDs."""
_NAME_PARTS, _NAME_GROUPS, _NAME_CHARACTERS = 5, 3, 64
_UID = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))*")
_DATE = re.compile(r"([0-9]{4})[.-]?([0-9]{2})[.-]?([0-9]{2})")
_TIME = re.compile(r"([01][0-9]|2[0-3])(?::?([0-5][0-9])(?::?([0-5][0-9]|60)(\.[0-9]{1,6})?)?)?")


def derived_uid(*parts: str) -> str:
    """UID as a deterministic function of `parts`: 2.25 and a name-based UUID."""
    return f"2.25.{uuid5(_NAMESPACE, json.dumps(parts)).int}"


def valid_uid(uid: str) -> str:
    """The UID itself if valid, else (such as RSNA's `ID_...`) a UID derived from it."""
    return uid if len(uid) <= 64 and _UID.fullmatch(uid) else derived_uid("not a UID", uid)


def decoded(raw: bytes, character_sets: Sequence[str]) -> str:
    """Decode the text of an element (`ich_mil.dicom.files.text`), without trailing empty groups of a name."""
    text = decode_text(raw, character_sets)
    return text.rstrip("=") if b"\x1b" in raw else text


def line(text: str, most: int = LO) -> str:
    """Single-line text (LO, SH, CS) of at most `most` characters; inner blanks are kept."""
    return re.sub(r"[^\S ]+", " ", printable(text).replace("\\", "/")).strip()[:most].rstrip()


def identifier(text: str, most: int = LO) -> str:
    """A single-line identifier, or '' if it is not valid unchanged."""
    return text if line(text, most) == text else ""


def paragraph(text: str) -> str:
    """Multi-line text without length limit (UT, LT)."""
    return printable(text).replace("\t", " ").rstrip()


def person_name(text: str) -> str:
    """A person name (PN): up to three groups of up to five components and 64 characters each."""
    groups = [
        "^".join(line(part, _NAME_CHARACTERS) for part in group.split("^")[:_NAME_PARTS])
        for group in text.replace("\\", " ").split("=")[:_NAME_GROUPS]
    ]
    return "=".join(group[:_NAME_CHARACTERS].rstrip() for group in groups).rstrip("=")


def day(text: str) -> str:
    """A date (DA) as YYYYMMDD, also from the older YYYY.MM.DD; '' if invalid."""
    found = _DATE.fullmatch(text)
    try:
        return date(*map(int, found.groups())).isoformat().replace("-", "") if found else ""
    except ValueError:
        return ""


def clock(text: str) -> str:
    """A time (TM) as HHMMSS.FFFFFF, as precise as given, also from HH:MM:SS; '' if invalid.

    SS is 60 in a leap second.
    """
    found = _TIME.fullmatch(text)
    return "".join(part or "" for part in found.groups()) if found else ""


def sex(text: str) -> str:
    """M, F or O; '' for any other value."""
    return text if text in ("M", "F", "O") else ""


def age(text: str) -> str:
    """An age (AS) such as 045Y; '' if invalid."""
    return text if re.fullmatch(r"[0-9]{3}[DWMY]", text) else ""


def yes_or_no(text: str) -> str:
    """YES or NO; '' for any other value."""
    return text if text in ("YES", "NO") else ""
