"""Detect unreadable slice files by comparing their names with the names of readable slices.

In: the names of the slices in a folder. Out: for the name of another file, whether it has the same suffix as
these slices or, without a suffix, the same numbering pattern. For example, `IM0031.dcm` beside `IM0030.dcm`
is a lost slice even if it contains an error message, and an empty `.gitkeep` is not.
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
    """Suffixes and numbering patterns of the slices in a folder.

    Args:
        names: file names of the slices, without folders.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._suffixes: set[tuple[bool, str]] = set()
        self._shapes: set[str] = set()
        for name in names:
            stem, suffix = _divided(name)
            self._shapes.add(_shape(stem))
            if suffix:
                self._suffixes.add((name.startswith("."), suffix))

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def may_be_slice(self, name: str) -> bool:
        """Whether a file of this name may be one of the slices; always True if there are no slices."""
        if not self._shapes or _PACKS_SEVERAL.fullmatch(name):
            return True
        name = _PACKED.sub("", name)
        stem, suffix = _divided(name)
        if suffix:
            return (name.startswith("."), suffix) in self._suffixes
        shape = _shape(stem)
        return "#" in shape and shape in self._shapes


def _divided(name: str) -> tuple[str, str]:
    """Split a name into stem and lower-case suffix; a suffix that starts with a digit is part of the stem."""
    found = _SUFFIX.fullmatch(name)
    return (found[1], found[2].lower()) if found else (name, "")


def _shape(stem: str) -> str:
    """Lower-case stem with each number replaced by #."""
    return _NUMBER.sub("#", stem).lower()
