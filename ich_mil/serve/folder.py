"""Source of studies: a folder that any program writes to; files are grouped by StudyInstanceUID."""

import os
import shutil
import stat
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pydicom import dcmread

from ich_mil.files import digest
from ich_mil.serve.worker import Study

MANUFACTURER = "ich_mil"
"""Manufacturer (0008,0070) of our own results, which are never judged (`ich_mil.dicom_results.identity`)."""
_TAGS = ["StudyInstanceUID", "SOPInstanceUID", "ImagePositionPatient", "Manufacturer"]


class _Entry(NamedTuple):
    study: str  # '' for a file of no study
    slice: bytes
    mark: tuple[int, int, int]  # size in bytes, modification and change time in ns


class FolderSource:
    """The studies below `root`, each complete after `silence` seconds; results stay in OUT."""

    def __init__(self, root: Path, silence: float) -> None:
        self._root, self._silence = root, silence
        self._files: dict[Path, _Entry] = {}
        self._studies: dict[str, list[Path]] = {}
        self._changed: dict[str, float] = {}  # study that is not settled: time of its last change

    def waiting(self) -> list[str]:
        """Look at all files; the keys of the silent studies."""
        files: dict[Path, _Entry] = {}
        studies: defaultdict[str, list[Path]] = defaultdict(list)
        for parent, _, names in os.walk(self._root):
            for path in (Path(parent, name) for name in names):
                with suppress(OSError):  # gone, or not readable now: the next look tries again
                    status = path.lstat()
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    mark = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                    entry = self._files.get(path)
                    if entry is None or entry.mark != mark:
                        entry = _read_entry(path, mark)
                        self._changed[entry.study] = time.monotonic()
                    files[path] = entry
                    studies[entry.study].append(path)
        self._files, self._studies = files, studies
        self._changed.pop("", None)
        now = time.monotonic()
        return [key for key, at in self._changed.items() if key in studies and now - at >= self._silence]

    def study(self, name: str) -> Study:
        """The files of a study at the last look; of two files with the same slice the newer."""
        slices: dict[bytes, Path] = {}
        for path in sorted(self._studies[name], key=lambda path: self._files[path].mark[1]):
            slices[self._files[path].slice or os.fsencode(path)] = path
        paths = sorted(slices.values())

        def fetch(folder: Path) -> None:
            for number, path in enumerate(paths):
                shutil.copyfile(path, folder / f"{number:05}.dcm")

        lines = [f"{path.relative_to(self._root)} {self._files[path].mark[:2]}" for path in paths]
        return Study(name, digest(*map(os.fsencode, lines)), fetch)

    def settle(self, name: str) -> None:
        """Wait for the next change of a study."""
        self._changed.pop(name, None)

    def deliver(self, results: Sequence[Path]) -> None:
        """Do nothing: OUT is where results are expected."""


def _read_entry(path: Path, mark: tuple[int, int, int]) -> _Entry:
    try:
        header = dcmread(path, stop_before_pixels=True, specific_tags=list(_TAGS), force=True)
        items = [header.get_item(tag) for tag in _TAGS]  # raw bytes, as values may be invalid
        study, sop, position, maker = (bytes((item and item.value) or b"").strip(b"\0 ") for item in items)
    except Exception as error:  # of pydicom: not a DICOM file, or not yet
        if isinstance(error, OSError):
            raise
        study = sop = position = maker = b""
    is_input = study and maker != MANUFACTURER.encode()
    return _Entry(digest(study) if is_input else "", sop and sop + b" " + position, mark)
