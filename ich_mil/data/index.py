"""The header index: every file of a collection looked at once, without its pixels.

In: the files of a collection. Out: headers of the usable slices and a ledger line for each refused file,
kept in `index.jsonl` (one file a line) so that a second run reads only what is new or has changed. Patient
identifiers are replaced by a pseudonymous key before anything is written.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from ich_mil.dicom.read import SliceHeader, read_header
from ich_mil.errors import DataError, DicomError
from ich_mil.files import digest, write_text
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.progress import progress

FORMAT = 1
CHUNK = 64
"""Files a worker takes at a time: reading one header takes about a millisecond, handing it over as long."""


@dataclass(frozen=True)
class IndexedFile:
    """What is known of one file: its header, or the code and reason of its refusal.

    `path` and `header.path` are relative to the root; `stamp` is (size in bytes, mtime in ns).
    """

    path: str
    stamp: tuple[int, int]
    header: SliceHeader | None
    code: str
    detail: str


def patient_key(patient_id: str) -> str:
    """A pseudonymous key of a DICOM PatientID: equal for equal identifiers, '' for an empty one."""
    return f"P{digest(patient_id.encode())}" if patient_id else ""


def index_files(files: Sequence[Path], root: Path, cache: Path, *, jobs: int) -> list[IndexedFile]:
    """Read the headers of `files`, taking from `cache` what has not changed since, and write `cache` anew."""
    known = _read_cache(cache)
    stamps = {path: _stamp(path) for path in files}
    new = [
        path
        for path in files
        if (old := known.get(_relative(path, root))) is None or old.stamp != stamps[path]
    ]
    chunks = [new[i : i + CHUNK] for i in range(0, len(new), CHUNK)]
    found: dict[str, IndexedFile] = {}
    if chunks:
        work = Parallel(n_jobs=min(jobs, len(chunks)), return_as="generator")(
            delayed(_index_chunk)(chunk, [stamps[path] for path in chunk], root) for chunk in chunks
        )
        for chunk in progress(work, total=len(chunks), what="read headers", unit=f"chunk of {CHUNK} file"):
            found.update((item.path, item) for item in chunk)
    index = [found.get(name) or known[name] for name in (_relative(path, root) for path in files)]
    if chunks or len(known) != len(index):
        lines = [json.dumps({"format": FORMAT, **asdict(item)}) for item in index]
        write_text(cache, "\n".join(lines) + "\n")
    return index


def refused_entries(index: Sequence[IndexedFile]) -> list[LedgerEntry]:
    """A ledger line for each file that is not a usable slice."""
    return [LedgerEntry("", item.path, Code(item.code), item.detail) for item in index if item.header is None]


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:  # a broken link: reading it says so
        status = path.lstat()
    return status.st_size, status.st_mtime_ns


def _index_chunk(paths: Sequence[Path], stamps: Sequence[tuple[int, int]], root: Path) -> list[IndexedFile]:
    index = []
    for path, stamp in zip(paths, stamps, strict=True):
        name = _relative(path, root)
        try:
            header = read_header(path)
        except DicomError as error:
            index.append(IndexedFile(name, stamp, None, error.code, str(error)))
        else:
            header = replace(header, path=name, patient_id=patient_key(header.patient_id))
            index.append(IndexedFile(name, stamp, header, "", ""))
    return index


def _read_cache(cache: Path) -> dict[str, IndexedFile]:
    if not cache.is_file():
        return {}
    known = {}
    try:
        for line in cache.read_text(encoding="utf-8").splitlines():
            row: dict[str, Any] = json.loads(line)
            if row.pop("format") != FORMAT:
                return {}
            header = row.pop("header")
            row["stamp"] = tuple(row["stamp"])
            item = IndexedFile(**row, header=None if header is None else _header(header))
            known[item.path] = item
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{cache}: is damaged ({error}); delete it and run the same command again") from error
    return known


def _header(row: dict[str, Any]) -> SliceHeader:
    """A header from JSON: lists become the tuples they were."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    values["notes"] = tuple((Code(code), detail) for code, detail in row["notes"])
    return SliceHeader(**values)
