"""Sanitised text from untrusted sources such as file names and DICOM values."""

import re

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]"
)
"""Control characters, lone surrogates, and direction marks, which could show 'gnp.exe' as 'exe.png'."""


def printable(text: str) -> str:
    """Replace unprintable characters by �; keep tab and newline."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
