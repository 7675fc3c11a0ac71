"""Names of scans: id, folder, study and series UID, accession number, as people write them.

In: ids of scans and the folders of their files. Out: the folder that stands for a scan on pages and in
tables, and `ScanNames`, which finds the scan that a name means.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple
from unicodedata import normalize

_NUMBER = re.compile(r"0*(\d+)(?:\.0)?")
"""A number without its leading zeros: Excel drops them, and some programs write whole numbers as 7.0."""
_UID = re.compile(r"[0-9.]{16,}")


def folder_of(path: str) -> str:
    """Folder of a file, both as paths below the root; '' for a file in the root."""
    return path.rpartition("/")[0]


def short_name(scan: str) -> str:
    """A scan id for headings: of a UID its last 8 characters, other ids whole."""
    return f"\N{HORIZONTAL ELLIPSIS}{scan[-8:]}" if _UID.fullmatch(scan) else scan


def own_folders(folders: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map each scan to its folder, as the whole path below the root.

    That is the lowest folder that holds all files of the scan and none of another scan; files in the root do
    not count. '' where there is none. Last parts that other scans have too, such as 'Unknown Study', are left
    out.

    Args:
        folders: pairs of a scan id and a folder of its files.
    """
    scans_in: dict[str, set[str]] = defaultdict(set)
    files_in: dict[str, set[str]] = defaultdict(set)
    for scan, folder in folders:
        files_in[scan] |= {folder} - {""}
        for parent in _upwards(folder):
            scans_in[parent].add(scan)
    part_counts = Counter(part for paths in files_in.values() for part in {*"/".join(paths).split("/")})
    names = {}
    for scan, paths in files_in.items():
        above = Counter(parent for path in paths for parent in _upwards(path) if scans_in[parent] == {scan})
        whole = [parent for parent, count in above.items() if count == len(paths)]
        name = max(whole, key=len, default="")
        while part_counts[name.rpartition("/")[2]] > 1 and scans_in[folder_of(name)] == {scan}:
            name = folder_of(name)
        names[scan] = name
    return names


Kind = Literal["path", "part", "accession", "series"]
"""Kinds of names: scan id or whole path of a folder, last part of a path, AccessionNumber, series UID."""
_COLUMNS: dict[str, tuple[Kind, ...]] = {
    "folder": ("path", "part"),
    "accession": ("accession",),
    "series": ("series",),
}
"""Kinds of names that a column of a table holds first of all."""


class Name(NamedTuple):
    """A name of a scan, with its kind."""

    scan: str
    name: str
    kind: Kind = "path"


def folder_names(folders: Iterable[tuple[str, str]]) -> Iterator[Name]:
    """Names of scans: their ids, and all folders above their files, as a path and as its last part.

    `folders` are pairs of a scan id and a folder of its files.
    """
    for scan, folder in folders:
        yield Name(scan, scan)
        for parent in _upwards(folder):
            yield Name(scan, parent)
            yield Name(scan, parent.rpartition("/")[2], "part")


class ScanNames:
    """Scans by their names. Unicode form and a closing slash of a name do not matter."""

    def __init__(self, names: Iterable[Name] = ()) -> None:
        self._exact: dict[Kind, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._numbers: dict[Kind, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.add(names)

    def add(self, names: Iterable[Name]) -> None:
        """Add names of scans."""
        for scan, name, kind in names:
            self._exact[kind][_composed(name)].add(scan)
            if number := _NUMBER.fullmatch(name):
                self._numbers[kind][number[1]].add(scan)

    def find(self, name: str, column: str = "") -> set[str]:
        """Scans of this name; of none, scans whose name is the same number with other leading zeros.

        Names of the kind of the column come first, then names of any kind; a whole path comes before the
        last part of one.
        """
        number = _NUMBER.fullmatch(name)
        keys = ((self._exact, _composed(name)), (self._numbers, number[1] if number else ""))
        for kinds in (_COLUMNS.get(column, ()), ("path", "part", "accession", "series")):
            for names, key in keys:
                scans = {kind: names[kind].get(key, set()) for kind in kinds}
                if scans.get("path"):
                    scans.pop("part", None)
                if fits := set().union(*scans.values()):
                    return fits
        return set()

    def path_of(self, name: str) -> str:
        """A path below the root whose last part is `name`; '' if `name` itself is a path, or of no folder."""
        end, paths = f"/{_composed(name)}", self._exact["path"]
        return "" if end[1:] in paths else next((path for path in paths if path.endswith(end)), "")


def _upwards(folder: str) -> list[str]:
    """A folder and all folders above it, as paths below the root."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _composed(name: str) -> str:
    return normalize("NFC", name).rstrip("/")
