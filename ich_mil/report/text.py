"""Texts from outside, made fit to be shown.

In: any text, such as a file name or a DICOM value. Out: the same without what cannot be printed or misleads.
"""

import unicodedata

_DIRECTION = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Marks that reverse the reading direction, so that 'gnp.exe' could be shown as 'exe.png'."""


def printable(text: str) -> str:
    """`text` with � for control characters, lone surrogates and direction marks; tab and newline stay."""
    return "".join(c if c in "\n\t" or not _unprintable(c) else "\N{REPLACEMENT CHARACTER}" for c in text)


def _unprintable(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") or character in _DIRECTION
