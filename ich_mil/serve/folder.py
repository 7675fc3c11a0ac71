"""Source of studies: a folder that any program writes to; files are grouped by StudyInstanceUID.

A file whose study cannot be read may be a lost slice. It counts for each study with files in its folder; if
there is none, for the only study of the nearest folder above, as in `HeaderIndex.refused`. A file that counts
for no study is in `OUT/ledger.csv`.
"""

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ich_mil.errors import DicomError
from ich_mil.files import digest, whole_file
from ich_mil.ledger import INCOMPLETE, Code, LedgerEntry, LedgerWriter
from ich_mil.serve.worker import LOG, Study
from ich_mil.sets.layouts.collection import every_file
from ich_mil.sets.preparation.file_headers import Shape, may_be_slice, shape_of
from ich_mil.sets.scan_names import folder_of
from ich_mil.study.files.elements import read_elements
from ich_mil.study.files.header import read_headers

MANUFACTURER = "ich_mil"
"""Manufacturer (0008,0070) of our own results, which are never judged (`ich_mil.dicom_results.identity`)."""
_TAGS = ["StudyInstanceUID", "SOPInstanceUID", "ImagePositionPatient", "Manufacturer"]
_Mark = tuple[int, int, int]  # size in bytes, modification and change time in ns; zeros: cannot be opened


class _Entry(NamedTuple):
    mark: _Mark
    study: str = ""  # '' for a file of no study
    slice: str = ""
    code: str = ""  # why the study cannot be read, '' for our own results
    detail: str = ""
    is_dicom: bool = True
    seen: float = 0.0  # time of the last change


class FolderSource:
    """The studies below `root`, each complete after `silence` seconds; results stay in the folder `out`.

    Paths are strings below the root.
    """

    def __init__(self, root: Path, out: Path, silence: float) -> None:
        self._root, self._ledger, self._silence = root, out / "ledger.csv", silence
        self._files: dict[str, _Entry] = {}
        self._studies: dict[str, list[str]] = {}
        self._lost: dict[str, dict[str, _Mark]] = {}  # study: files that may be slices of it
        self._strays: list[LedgerEntry] | None = None
        self._changed: dict[str, float] = {}  # study that is not settled: time of its last change

    def waiting(self) -> list[str]:
        """Look at all files; the keys of the silent studies. `DataError`: the folder cannot be listed."""
        files: dict[str, _Entry] = {}
        studies: defaultdict[str, list[str]] = defaultdict(list)
        now = time.monotonic()
        for path in every_file(self._root, self._root):
            try:
                status = (self._root / path).stat()
                mark = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and not (self._root / path).is_symlink():
                    continue  # gone since it was listed
                mark = (0, 0, 0)
            entry = self._files.get(path)
            if entry is None or entry.mark != mark or entry.code == Code.NOT_OPENED:
                new = _read_entry(self._root / path, mark)
                if entry is None or new != entry._replace(seen=0.0):
                    entry = new._replace(seen=now)
                    self._changed[entry.study] = now
            files[path] = entry
            studies[entry.study].append(path)
        studies.pop("", None)
        self._files, self._studies = files, studies
        self._find_lost(now)
        return [key for key, at in self._changed.items() if key in studies and now - at >= self._silence]

    def study(self, name: str) -> Study:
        """The files of a study at the last look; of two files with the same slice the newer."""
        slices: dict[str, str] = {}
        for path in sorted(self._studies[name], key=lambda path: self._files[path].mark[1]):
            slices[self._files[path].slice or f"/{path}"] = path
        paths, lost = sorted(slices.values()), sorted(self._lost.get(name, ()))

        def fetch(folder: Path) -> None:
            for path in (*paths, *lost):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                if path in lost:  # perhaps no regular file, or closed
                    (folder / path).symlink_to((self._root / path).absolute())
                else:
                    shutil.copyfile(self._root / path, folder / path)

        lines = [f"{path} {self._files[path].mark[:2]}" for path in (*paths, *lost)]
        return Study(name, digest(*map(os.fsencode, lines)), fetch)

    def settle(self, name: str) -> None:
        """Wait for the next change of a study."""
        self._changed.pop(name, None)

    def deliver(self, results: Sequence[Path]) -> None:
        """Do nothing: OUT is where results are expected."""

    def _find_lost(self, now: float) -> None:
        """Assign the silent files without a study to the studies near them; list the others in the ledger."""
        owners = _owners(self._studies)

        @cache
        def shapes(folder: str) -> set[Shape]:
            paths = [path for key in owners(folder) for path in self._studies[key]]
            return {shape_of(path.rpartition("/")[2]) for path in paths}

        lost: defaultdict[str, dict[str, _Mark]] = defaultdict(dict)
        strays = []
        for path, entry in self._files.items():
            if not entry.code or now - entry.seen < self._silence:
                continue
            folder, _, name = path.rpartition("/")
            is_lost = entry.code in INCOMPLETE if entry.is_dicom else may_be_slice(name, shapes(folder))
            for key in owners(folder) if is_lost else ():
                lost[key][path] = entry.mark
            if is_lost and entry.code in INCOMPLETE and not owners(folder):
                strays.append(LedgerEntry("", path, Code(entry.code), entry.detail))
        for key in lost.keys() | self._lost.keys():
            if lost.get(key) != self._lost.get(key):  # new, changed, or mended
                self._changed.setdefault(key, now - self._silence)
        self._lost = dict(lost)
        if strays != self._strays:
            with whole_file(self._ledger) as temporary, LedgerWriter(temporary) as ledger:
                ledger.write(strays)
            if strays:
                LOG.warning("files of no study: %d, see ledger.csv", len(strays))
            self._strays = strays


def _owners(studies: Mapping[str, Sequence[str]]) -> Callable[[str], set[str]]:
    """Function from a folder to the studies that a file in it may belong to."""
    beside: defaultdict[str, set[str]] = defaultdict(set)
    below: defaultdict[str, set[str]] = defaultdict(set)
    for key, paths in studies.items():
        for folder in set(map(folder_of, paths)):
            beside[folder].add(key)
            for parent in _upwards(folder):
                below[parent].add(key)

    @cache
    def owners(folder: str) -> set[str]:
        near = next((below[parent] for parent in _upwards(folder) if parent in below), set())
        return beside.get(folder) or (near if len(near) == 1 else set())

    return owners


def _upwards(folder: str) -> Iterator[str]:
    """A folder and all folders above it."""
    while folder:
        yield folder
        folder = folder_of(folder)
    yield ""


def _read_entry(path: Path, mark: _Mark) -> _Entry:
    with suppress(Exception):  # of a damaged file: `read_headers` names the reason
        study, sop, position, maker = map(read_elements(path, _TAGS).text, _TAGS)
        if maker == MANUFACTURER:
            return _Entry(mark)
        if study:
            return _Entry(mark, digest(study.encode()), sop and f"{sop} {position}")
    try:
        read_headers(path)
    except DicomError as error:
        detail = str(error).removeprefix(f"{path}: ")
        return _Entry(mark, code=error.code, detail=detail, is_dicom=error.is_dicom or path.is_dir())
    return _Entry((0, 0, 0), code=Code.NOT_OPENED)  # completed meanwhile: the next look reads it
