"""Header index: SQLite database of the DICOM headers of a collection, without pixels.

The database `index.sqlite` has three purposes: a second run reads only new and changed files, a killed run
keeps the headers it has read, and memory does not grow with the collection. Patient identifiers are replaced
by a pseudonymous key before anything is written.
"""

import json
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from joblib import Parallel, delayed

from ich_mil.errors import DataError, DiskFullError
from ich_mil.files import digest, escaped
from ich_mil.ledger import INCOMPLETE, PASSING, Code, LedgerEntry
from ich_mil.progress import progress, say
from ich_mil.sets.layouts.collection import Collection, Series, Source
from ich_mil.sets.preparation.file_headers import FileHeaders, Shape, may_be_slice, read_files, shape_of
from ich_mil.study.files.header import SEPARATORS, SliceHeader, header_of, header_text

FORMAT = "ich_mil.index.9"
CHUNK = 64
"""Files per worker task: reading a header takes a third of a millisecond, dispatching a task takes longer."""
MANY = 10_000
"""Number of files above which worker processes read headers: a process takes about a second to start."""
COMMIT_SECONDS = 2.0
"""Interval between commits in seconds: the most work that a killed run can lose."""

_TABLES = """
CREATE TABLE about (format TEXT, layout TEXT, root TEXT);
CREATE TABLE file (
    path BLOB PRIMARY KEY, size INTEGER, mtime INTEGER, scan TEXT, sop TEXT, code TEXT, detail TEXT,
    series TEXT, orientation TEXT, is_dicom INTEGER
) WITHOUT ROWID;
CREATE TABLE slice (
    scan TEXT, path BLOB, frame INTEGER, sop TEXT, header TEXT, PRIMARY KEY (scan, path, frame)
) WITHOUT ROWID;
CREATE INDEX slice_of_path ON slice (path);
"""


class IndexedScan(NamedTuple):
    """One scan: its slices by path and frame, and a digest of names, sizes and times of their files."""

    scan: str
    sources: list[Source]
    fingerprint: str


class HeaderIndex:
    """Header database `path` of a collection, in memory for None. A context manager.

    On exit, an empty database is removed. The database of another `layout` or root is rebuilt. The folder
    `leave_out` is no part of the collection; it may lie below the root. `DataError`: the database is damaged,
    or cannot be written.
    """

    def __init__(
        self, path: Path | None, collection: Collection, *, layout: str, leave_out: Path | None = None
    ) -> None:
        self.path, self.collection = path, collection
        self._about = (FORMAT, layout, escaped(str(collection.root.resolve())))
        # with its last separator
        self._leave_out = None if leave_out is None else os.path.join(leave_out.resolve(), "")  # noqa: PTH118
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            # joblib iterates over the tasks in its own threads, one at a time
            self._database = sqlite3.connect(path or ":memory:", check_same_thread=False)
            self._open_tables()
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    def __enter__(self) -> "HeaderIndex":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        with closing(self._database):
            if isinstance(error, sqlite3.Error):
                raise self._unusable(error) from error
            holds_nothing = self._database.execute("SELECT * FROM file LIMIT 1").fetchone() is None
        if holds_nothing and self.path is not None:
            self.path.unlink(missing_ok=True)

    def update(self, *, jobs: int) -> int:
        """Read the headers of new and changed files. Returns the number of all files."""
        n_files, n_new = self._compare()
        if n_new:
            self._read_new(n_new, jobs)
        return n_files

    def scans(self) -> Iterator[IndexedScan]:
        """All scans with a usable slice, sorted by id, except those that `Collection.check` leaves out."""
        rows = self._database.execute(
            "SELECT s.scan, s.path, s.sop, f.size, f.mtime FROM slice s JOIN file f USING (path) "
            "ORDER BY s.scan, s.path, s.frame"
        )
        for scan, group in groupby(rows, key=lambda row: row[0]):
            if scan in self.collection.left_out:
                continue
            _, paths, sops, sizes, times = zip(*group, strict=True)
            sources = [Source(os.fsdecode(path), sop) for path, sop in zip(paths, sops, strict=True)]
            files = {b"%d %d %s" % file for file in zip(sizes, times, paths, strict=True)}
            yield IndexedScan(scan, sources, digest(*sorted(files)))

    def headers(self, scan: str) -> list[SliceHeader]:
        """Headers of one scan, sorted by path and frame; paths are relative to the root."""
        rows = self._database.execute(
            "SELECT path, header FROM slice WHERE scan = ? ORDER BY path, frame", (scan,)
        )
        return [header_of(os.fsdecode(path), text) for path, text in rows]

    def series(self) -> Iterator[Series]:
        """The series of all scans, each with its first file."""
        rows = self._database.execute(
            "SELECT scan, json_extract(header, '$.series_uid') uid, min(path) FROM slice GROUP BY scan, uid"
        )
        return (Series(scan, uid, os.fsdecode(path)) for scan, uid, path in rows)

    def changed(self) -> set[str]:
        """Scans with a file that has another size or time than when its header was read."""
        changed = set()
        rows = self._database.execute("SELECT scan, path, size, mtime FROM file WHERE code = ''")
        for scan, path, *known in rows:
            with suppress(OSError):  # a file that is gone is in the ledger if it was not read before
                status = (self.collection.root / os.fsdecode(path)).stat()
                if known != [status.st_size, status.st_mtime_ns]:
                    changed.add(scan)
        return changed

    def refused(self) -> Iterator[LedgerEntry]:
        """Ledger lines for the files that are not usable slices, sorted by path.

        A file that may be a slice but names no study belongs to the only scan in the nearest folder that has
        scans. A file without any sign of DICOM may be a slice if its name is like those of slices near it.
        """
        rows = self._database.execute(
            "SELECT scan, path, code, detail, is_dicom FROM file WHERE code != '' ORDER BY path"
        )
        near_folder, only_scan = cache(self._slices_near), cache(self._only_scan_near)
        for scan, path, code, detail, is_dicom in rows:
            if not is_dicom and not self.collection.pictures:
                folder, name = os.path.split(path)
                near = near_folder(folder)
                is_lost = may_be_slice(os.fsdecode(name), near)
                if code == Code.NOT_DICOM and near and is_lost:
                    code, detail = Code.UNREADABLE, f"{detail}, but it is named like a slice"
                elif code != Code.NOT_DICOM and not is_lost:
                    code, detail = Code.NOT_DICOM, f"{detail}; it is not named like a slice"
            whose = scan or (only_scan(os.path.dirname(path)) if code in INCOMPLETE else "")  # noqa: PTH120
            yield LedgerEntry(whose, os.fsdecode(path), Code(code), detail)

    def lost_slices(self) -> Iterator[LedgerEntry]:
        """Ledger lines for slices that are marked as localizer or not CT, probably by mistake.

        Such a slice is parallel to CT slices of its own series; a real localizer has another series or
        orientation. The gap check misses the loss of the first or last slice.
        """
        rows = self._database.execute(
            "SELECT scan, path FROM file WHERE code IN (?, ?) AND (scan, series, orientation) IN (SELECT "
            "scan, json_extract(header, '$.series_uid'), json_extract(header, '$.orientation') FROM slice) "
            "ORDER BY path",
            (Code.NOT_CT, Code.LOCALIZER),
        )
        for scan, path in rows:
            detail = "it lies parallel to the CT slices of its series, which lacks it"
            yield LedgerEntry(scan, os.fsdecode(path), Code.GAP, detail)

    def refused_sources(self) -> dict[str, list[Source]]:
        """Refused files of each scan, needed for scan labels: an unreadable slice may still have a label."""
        sources: dict[str, list[Source]] = defaultdict(list)
        rows = self._database.execute("SELECT scan, path, sop FROM file WHERE code != '' AND sop != ''")
        for scan, path, sop in rows:
            sources[scan].append(Source(os.fsdecode(path), sop))
        return sources

    def empty_scans(self) -> Iterator[LedgerEntry]:
        """Ledger lines for scans that have files but no usable slice."""
        rows = self._database.execute(
            "SELECT scan, count(*), min(detail) FROM file WHERE scan != '' "
            "AND scan NOT IN (SELECT scan FROM slice) GROUP BY scan ORDER BY scan"
        )
        for scan, n_files, reason in rows:
            detail = f"none of its {n_files} files is a usable slice; one of them: {reason}"
            yield LedgerEntry(scan, "", Code.SCAN_EMPTY, detail)

    def _only_scan_near(self, folder: bytes) -> str:
        """The only scan in the nearest folder, from `folder` up, that has scans; '' if that has several."""
        query = "SELECT DISTINCT scan FROM file WHERE scan != '' AND path >= ? AND path < ? LIMIT 2"
        scans = self._nearest(folder, query)
        return scans[0] if len(scans) == 1 else ""

    def _slices_near(self, folder: bytes) -> set[Shape]:
        """Shapes of the names of the slices in the nearest folder, from `folder` upwards, that has slices."""
        paths = self._nearest(folder, "SELECT DISTINCT path FROM slice WHERE path >= ? AND path < ?")
        return {shape_of(os.fsdecode(path).rsplit("/", 1)[-1]) for path in paths}

    def _nearest(self, folder: bytes, query: str) -> list[Any]:
        """Values of `query`, with bounds of paths, for the nearest folder from `folder` up that has any."""
        while True:
            first, end = (folder + b"/", folder + b"0") if folder else (b"", b"\xff" * 8)  # 0 comes after /
            values = [value for (value,) in self._database.execute(query, (first, end))]
            if values or not folder:
                return values
            folder = os.path.dirname(folder)  # noqa: PTH120 - bytes, as the file system has

    def _unusable(self, error: Exception) -> DataError:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return DiskFullError(f"{self.path}: the disk is full; free space and run the same command again")
        return DataError(f"{self.path}: cannot be used ({error}); delete it and run the same command again")

    def _open_tables(self) -> None:
        """Create the tables; drop those of another version, since the index can always be rebuilt."""
        database = self._database
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if "about" in tables and database.execute("SELECT * FROM about").fetchall() == [self._about]:
            return
        with database:
            for name in tables:
                database.execute(f'DROP TABLE "{name}"')
            for statement in _TABLES.split(";"):
                database.execute(statement)
            database.execute("INSERT INTO about VALUES (?, ?, ?)", self._about)

    def _compare(self) -> tuple[int, int]:
        """Drop files that are gone or changed. Returns the numbers of all files, and of files to read."""
        database = self._database
        with database:
            database.execute("CREATE TEMP TABLE IF NOT EXISTS found (path BLOB PRIMARY KEY, size, mtime)")
            database.execute("DELETE FROM found")
            database.executemany("INSERT INTO found VALUES (?, ?, ?)", self._listing())
            n_files = database.execute("SELECT count(*) FROM found").fetchone()[0]
            if not n_files:  # perhaps an unmounted share: keep the index
                raise DataError(f"{self.collection.root}: holds no DICOM file; name the folder with them")
            database.execute(
                "DELETE FROM file WHERE NOT EXISTS (SELECT 1 FROM found n "
                "WHERE n.path = file.path AND n.size = file.size AND n.mtime = file.mtime)"
            )
            database.executemany("DELETE FROM file WHERE code = ?", [(code,) for code in sorted(PASSING)])
            database.execute("DELETE FROM slice WHERE path NOT IN (SELECT path FROM file)")
            database.execute("DELETE FROM found WHERE path IN (SELECT path FROM file)")
            n_new = database.execute("SELECT count(*) FROM found").fetchone()[0]
        return n_files, n_new

    def _listing(self) -> Iterator[tuple[bytes, int, int]]:
        """Path relative to the root (raw bytes), size and modification time of every file."""
        root = str(self.collection.root.resolve())
        for path in self.collection.files():
            whole = f"{root}{os.sep}{path}"
            if self._leave_out is not None and whole.startswith(self._leave_out):
                continue
            with suppress(FileNotFoundError):  # gone since it was listed
                # a broken link is reported when it is read; a Path takes longer than the call
                status = os.stat(whole) if os.path.exists(whole) else os.lstat(whole)  # noqa: PTH110, PTH116
                yield os.fsencode(path), status.st_size, status.st_mtime_ns

    def _chunks(self) -> Iterator[list[str]]:
        """Paths to read, `CHUNK` files at a time."""
        query, last = "SELECT path FROM found WHERE path > ? ORDER BY path LIMIT ?", b""
        while chunk := [path for (path,) in self._database.execute(query, (last, CHUNK))]:
            yield [os.fsdecode(path) for path in chunk]
            last = chunk[-1]

    def _read_new(self, n_new: int, jobs: int) -> None:
        """Read the headers of the files in table `found`, and store each chunk as it arrives."""
        root = self.collection.root.absolute()
        if n_new > MANY:
            say(f"{root}: headers of {n_new} files to read")
        work = Parallel(n_jobs=jobs if n_new > MANY else 1, return_as="generator")(
            delayed(read_files)(chunk, root, self.collection.pictures) for chunk in self._chunks()
        )
        last = time.monotonic()
        for chunk in progress(work, total=n_new, what="read headers", unit="file", weight=len):
            self._keep(chunk)
            if time.monotonic() - last > COMMIT_SECONDS:
                self._database.commit()
                last = time.monotonic()
        self._database.commit()

    def _keep(self, chunk: Iterable[FileHeaders]) -> None:
        """Store the results of a chunk of files."""
        for file in chunk:
            path, scan = os.fsencode(file.path), self.collection.scan_id(file.path, file.study)
            orientation = json.dumps(file.orientation, separators=SEPARATORS)
            refusal = (file.code, escaped(file.detail), file.series, orientation, file.is_dicom)
            self._database.execute(
                "INSERT INTO file SELECT path, size, mtime, ?, ?, ?, ?, ?, ?, ? FROM found WHERE path = ?",
                (scan, file.sop, *refusal, path),
            )
            slices = [(scan, path, head.frame, head.sop_uid, header_text(head)) for head in file.headers]
            self._database.executemany("INSERT INTO slice VALUES (?, ?, ?, ?, ?)", slices)
