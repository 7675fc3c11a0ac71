"""Detect unreadable slice files by comparing their names with the names of readable slices.

For example, `IM0031.dcm` beside `IM0030.dcm` is a lost slice even if it contains an error message, and an
empty `.gitkeep` is not.
"""

import re
from collections.abc import Iterable

# These archives hold several files and may have any name; the packed formats below hold one file and keep
# its name.
_PACKS_SEVERAL = re.compile(r".+\.(zip|7z|rar|tgz|tar|tar\.\w+)", re.IGNORECASE)
_PACKED = re.compile(r"\.(gz|bz2|xz|zst)$", re.IGNORECASE)
_SUFFIX = re.compile(r"(.+)\.([A-Za-z][A-Za-z0-9]{0,7})")
_NUMBER = re.compile(r"[0-9A-Fa-f]*[0-9][0-9A-Fa-f]*(\.[0-9]+)*")
"""A decimal number, a hexadecimal number, or a UID."""


class Neighbours:
    """Suffixes and numbering patterns of the slices in a folder, from their file names."""

    def __init__(self, names: Iterable[str]) -> None:
        shapes = {_shape(name) for name in names}
        self._suffixes = {shape[:2] for shape in shapes}
        self._numberings = {numbering for *_, numbering in shapes}

    def __bool__(self) -> bool:
        return bool(self._suffixes)

    def may_be_slice(self, name: str) -> bool:
        """Whether a file of this name may be one of the slices; always True if there are no slices."""
        if not self or _PACKS_SEVERAL.fullmatch(name):
            return True
        hidden, suffix, numbering = _shape(_PACKED.sub("", name))
        if suffix:
            return (hidden, suffix) in self._suffixes
        return "#" in numbering and numbering in self._numberings


def _shape(name: str) -> tuple[bool, str, str]:
    """Whether a name is hidden, its suffix, and its stem with each number replaced by #, in lower case.

    A suffix that starts with a digit is part of the stem.
    """
    found = _SUFFIX.fullmatch(name)
    stem, suffix = (found[1], found[2].lower()) if found else (name, "")
    return name.startswith("."), suffix, _NUMBER.sub("#", stem).lower()
