"""Sanitised text from untrusted sources such as file names and DICOM values."""

import unicodedata

_DIRECTION = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Unicode direction marks, which could show 'gnp.exe' as 'exe.png'."""


def printable(text: str) -> str:
    """Replace control characters, lone surrogates and direction marks by �; keep tab and newline."""
    return "".join(c if c in "\n\t" or not _unprintable(c) else "\N{REPLACEMENT CHARACTER}" for c in text)


def _unprintable(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") or character in _DIRECTION
