"""Names of scans: id, folder, study and series UID, accession number, as people write them.

In: ids of scans and the folders of their files. Out: the folder that stands for a scan on pages and in
tables, and `ScanNames`, which finds the scan that a name means.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
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

    That is the lowest folder that holds all files of the scan and none of another scan. Where there is none,
    it is the highest folder that holds files of this scan alone; '' where there is none either. Last parts
    that other scans have too, such as 'Unknown Study', are left out.

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
        highest = min(above, key=lambda parent: (parent.count("/"), parent), default="")
        name = max(whole, key=len, default=highest)
        while part_counts[name.rpartition("/")[2]] > 1 and scans_in[folder_of(name)] == {scan}:
            name = folder_of(name)
        names[scan] = name
    return names


def folder_names(folders: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Names of scans: their ids, and all folders above their files, as a path and as its last part.

    `folders` are pairs of a scan id and a folder of its files.
    """
    for scan, folder in folders:
        yield scan, scan
        for parent in _upwards(folder):
            yield scan, parent
            yield scan, parent.rpartition("/")[2]


class ScanNames:
    """Scans by their names. Unicode form and a closing slash of a name do not matter."""

    def __init__(self, names: Iterable[tuple[str, str]] = ()) -> None:
        self._exact: dict[str, set[str]] = defaultdict(set)
        self._numbers: dict[str, set[str]] = defaultdict(set)
        self.add(names)

    def add(self, names: Iterable[tuple[str, str]]) -> None:
        """Add pairs of a scan id and a name of the scan."""
        for scan, name in names:
            self._exact[_composed(name)].add(scan)
            if number := _NUMBER.fullmatch(name):
                self._numbers[number[1]].add(scan)

    def find(self, name: str) -> set[str]:
        """Scans of this name; of none, scans whose name is the same number with other leading zeros."""
        number = _NUMBER.fullmatch(name)
        return self._exact.get(_composed(name)) or self._numbers.get(number[1] if number else "", set())


def _upwards(folder: str) -> list[str]:
    """A folder and all folders above it, as paths below the root."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _composed(name: str) -> str:
    return normalize("NFC", name).rstrip("/")
