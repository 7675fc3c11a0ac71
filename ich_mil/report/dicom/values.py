"""Texts that are valid for their value representation (VR), from a source image or any text.

Texts and names are truncated to the allowed length. An identifier is kept whole or left out, since a
truncated identifier could be that of another patient.

Source: DICOM PS3.5 6.2 (value representations), PS3.5 9 and B.2 (unique identifiers derived from UUIDs).
"""

import json
import re
from uuid import UUID, uuid5

from pydicom.uid import RE_VALID_UID
from pydicom.valuerep import DA

from ich_mil.report.text import printable

LO, SH = 64, 16
"""Largest number of characters of a long string (LO) and of a short string (SH)."""

_NAMESPACE = UUID("5f0c1d0a-7d9e-4b0c-9f4e-3c6f1d6b2a17")
"""UUID namespace of all derived UIDs."""
_NAME_PARTS, _NAME_GROUPS, _NAME_CHARACTERS = 5, 3, 64
_TIME = re.compile(r"([01][0-9]|2[0-3])(?::?([0-5][0-9])(?::?([0-5][0-9]|60)(\.[0-9]{1,6})?)?)?")


def derived_uid(*parts: str) -> str:
    """UID as a deterministic function of `parts`: 2.25 and a name-based UUID."""
    return f"2.25.{uuid5(_NAMESPACE, json.dumps(parts)).int}"


def valid_uid(uid: str) -> str:
    """The UID itself if valid, else (such as RSNA's `ID_...`) a UID derived from it."""
    return uid if len(uid) <= 64 and re.fullmatch(RE_VALID_UID, uid) else derived_uid("not a UID", uid)


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
    plain = re.sub(r"(\d{4})[.-]?(\d\d)[.-]?(\d\d)", r"\1\2\3", text)
    try:
        return plain if re.fullmatch("[0-9]{8}", plain) and DA(plain) else ""
    except ValueError:
        return ""


def clock(text: str) -> str:
    """A time (TM) as HHMMSS.FFFFFF, as precise as given, also from HH:MM:SS; '' if invalid.

    SS is 60 in a leap second. pydicom's validation also accepts ranges of times.
    """
    found = _TIME.fullmatch(text)
    return "".join(part or "" for part in found.groups()) if found else ""


def age(text: str) -> str:
    """An age (AS) such as 045Y; '' if invalid."""
    return text if re.fullmatch(r"[0-9]{3}[DWMY]", text) else ""
