"""Texts that are valid for their value representation (VR).

Source: DICOM PS3.5 6.2 (value representations), PS3.5 9 and B.2 (unique identifiers derived from UUIDs).
"""

import json
import re
from uuid import UUID, uuid5

from pydicom.config import RAISE
from pydicom.uid import RE_VALID_UID
from pydicom.valuerep import validate_value

from ich_mil.pages.text import printable

LO = 64
"""Largest number of characters of a long string (LO)."""

_NAMESPACE = UUID("5f0c1d0a-7d9e-4b0c-9f4e-3c6f1d6b2a17")
"""UUID namespace of all derived UIDs."""


def derived_uid(*parts: str) -> str:
    """UID as a deterministic function of `parts`: 2.25 and a name-based UUID."""
    return f"2.25.{uuid5(_NAMESPACE, json.dumps(parts)).int}"


def valid_uid(uid: str) -> str:
    """The UID itself if valid, else (such as RSNA's `ID_...`) a UID derived from it."""
    return uid if len(uid) <= 64 and re.fullmatch(RE_VALID_UID, uid) else derived_uid("not a UID", uid)


def valid_or_empty(text: str, vr: str) -> str:
    """A single value if valid for its VR unchanged, else ''; a truncated identifier could be another's."""
    try:
        validate_value(vr, text, RAISE)
    except ValueError:
        return ""
    return text if text == printable(text) and not {*"\\\n\t"} & {*text} else ""


def line(text: str) -> str:
    """Single-line text (LO), truncated; inner blanks are kept."""
    return re.sub(r"[^\S ]+", " ", printable(text).replace("\\", "/")).strip()[:LO].rstrip()


def paragraph(text: str) -> str:
    """Multi-line text without length limit (UT, LT)."""
    return printable(text).replace("\t", " ").rstrip()
