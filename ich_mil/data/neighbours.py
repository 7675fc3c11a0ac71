"""Whether a file that cannot be read may have been a slice: by the names of the slices beside it.

In: the names of the slices in a folder. Out: for the name of another file, whether it has their suffix, or
where it has none their numbering. `IM0031.dcm` among `IM0030.dcm` is a lost slice, though an error message
stands in it; an empty `.gitkeep` is none.
"""

import re
from collections.abc import Iterable

# what packs several files may hold slices under any name; the others pack one and keep its name
_PACKS_SEVERAL = re.compile(r".+\.(zip|7z|rar|tgz|tar|tar\.\w+)", re.IGNORECASE)
_PACKED = re.compile(r"\.(gz|bz2|xz|zst)$", re.IGNORECASE)
_SUFFIX = re.compile(r"(.+)\.([A-Za-z][A-Za-z0-9]{0,7})")
_NUMBER = re.compile(r"[0-9A-Fa-f]*[0-9][0-9A-Fa-f]*(\.[0-9]+)*")
"""Decimal, hexadecimal, or a UID."""


class Neighbours:
    """The names of the slices in a folder.

    Args:
        names: of the files, without folders.
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
        """Whether a file of this name belongs to the slices; without any nothing speaks against it."""
        if not self._shapes or _PACKS_SEVERAL.fullmatch(name):
            return True
        name = _PACKED.sub("", name)
        stem, suffix = _divided(name)
        if suffix:
            return (name.startswith("."), suffix) in self._suffixes
        shape = _shape(stem)
        return "#" in shape and shape in self._shapes


def _divided(name: str) -> tuple[str, str]:
    """Stem and suffix, in small letters; a name that ends with a number has no suffix."""
    found = _SUFFIX.fullmatch(name)
    return (found[1], found[2].lower()) if found else (name, "")


def _shape(stem: str) -> str:
    """A stem with # for each number in it."""
    return _NUMBER.sub("#", stem).lower()
