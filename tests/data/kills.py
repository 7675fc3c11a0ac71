"""Kill runs of prepare at random moments: what is there is whole, and the next run mends the rest.

    python -m tests.data.kills --kills 50 --seed 0 [--jobs 2]

Two references are prepared without disturbance, of two sets of files that have most in common. Then, again
and again, prepare is started over the files of the second in a process of its own, in turn into an empty
folder and over a copy of the first reference, and killed with SIGKILL, every other two times without its
workers, which live on as orphans while the next run goes on. A third of the kills fall anywhere in the run, a
third while the index is written, a third while scans are. Two things must hold:

* at the moment of the kill every file with its final name has the bytes that a reference has under that name;
* after the next run, left alone, all files have the bytes of the second reference, and the header index,
  which is a cache, has its rows.

Phantom scans are small and written within a millisecond, where no kill would ever fall. So the runs to be
killed are slow: what they open below the result is written in pieces, with a pause after each, and each
statement of the index waits a while (`_SLOWLY`).
"""

import argparse
import io
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ich_mil.data.preparation.prepare import prepare
from ich_mil.data.store import UNFINISHED
from tests import phantoms

CACHE, LOCK, ABOUT = "index.sqlite", ".lock", "prepared.json"
SECONDS = 300
"""A run that takes longer hangs."""
ASIDE = 40
"""One file in so many is missing from the first set, and another from the second: about a slice a scan."""

Contents = dict[str, bytes]

_RUN = """
import sys
from pathlib import Path
from ich_mil.data.preparation.prepare import prepare
from ich_mil.data.store import UNFINISHED
prepare("rsna", Path(sys.argv[1]), Path(sys.argv[2]), jobs=int(sys.argv[3]))
"""
# Python runs a module of this name as it starts, in the workers, too.
_SLOWLY = """
import io, os, sqlite3, time

as_it_is, slow = io.open, os.environ["SLOW_FOLDER"]

class Pieces(io.FileIO):
    def write(self, content):
        content = memoryview(content).cast("B")
        written = super().write(content[: max(64, len(content) // 2)])
        time.sleep(0.001)
        return written

def in_pieces(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *rest):
    if not (str(file).startswith(slow) and mode in ("w", "wb")):
        return as_it_is(file, mode, buffering, encoding, errors, newline, *rest)
    buffered = io.BufferedWriter(Pieces(file, "w"))
    return buffered if mode == "wb" else io.TextIOWrapper(buffered, encoding, errors, newline)

class Database(sqlite3.Connection):
    def execute(self, *words):
        time.sleep(0.001)
        return super().execute(*words)

connect = sqlite3.connect
io.open, sqlite3.connect = in_pieces, lambda *words, **more: connect(*words, factory=Database, **more)
"""


def _is_indexing(out: Path) -> bool:
    """A transaction of the index is under way, and it is not the first, which makes its tables."""
    index = out / CACHE
    return index.exists() and index.stat().st_size > 0 and index.with_name(f"{CACHE}-journal").exists()


SIGNS: tuple[Callable[[Path], bool], ...] = (
    lambda out: (out / LOCK).exists(),
    _is_indexing,
    lambda out: any(out.glob("scans/.*.tmp")),
)
"""What a folder looks like when a run begins, when its index is written, when its scans are."""


@dataclass
class Tally:
    """What came of all kills.

    Attributes:
        runs: how many were started.
        killed: before their end.
        halfway: of these, with some files written and not all.
        writing: of these, with a file under its temporary name.
        wrong: a line for each thing that must not be.
    """

    runs: int = 0
    killed: int = 0
    halfway: int = 0
    writing: int = 0
    wrong: list[str] = field(default_factory=list)

    def count(self, now: Contents, before: Contents, new: Contents, *, running: bool, writing: bool) -> None:
        """Count one run by the files at its kill, those it began with and those it was to make."""
        changed = [path for path in new if new[path] != before.get(path)]
        done = sum(now.get(path) == new[path] for path in changed)
        self.runs += 1
        self.killed += running
        self.halfway += running and 0 < done < len(changed)
        self.writing += running and writing

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.killed} killed before their end: {self.halfway} with some files "
            f"written and not all, {self.writing} in the middle of a file; {len(self.wrong)} things wrong"
        )


def files(out: Path) -> Contents:
    """The files of a prepared set that have their final name; cache and lock are none."""
    found = {}
    for path in out.rglob("*"):
        if not path.name.startswith((CACHE, ".")):
            with suppress(FileNotFoundError, IsADirectoryError):  # orphans go on working
                found[path.relative_to(out).as_posix()] = path.read_bytes()
    return found


def rows(out: Path) -> Contents:
    """The rows of the header index, a text a table."""
    database = sqlite3.connect(out / CACHE)
    tables = {
        name: repr(database.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3").fetchall()).encode()
        for name in ("file", "slice")
    }
    database.close()
    return tables


def temporary(out: Path) -> list[Path]:
    """Files that bear a temporary name."""
    return [path for path in out.rglob(".*") if path.name != LOCK]


class Run:
    """A slow run of prepare in a process group of its own. A context manager: nothing of it lives on."""

    def __init__(self, root: Path, out: Path, jobs: int) -> None:
        self.out, self.errors = out, out.with_suffix(".txt")
        slowly = out.parent / "slowly"
        slowly.mkdir(exist_ok=True)
        (slowly / "sitecustomize.py").write_text(_SLOWLY)
        places = os.pathsep.join(filter(None, (str(slowly), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"SLOW_FOLDER": str(out), "PYTHONPATH": places}
        words = [sys.executable, "-c", _RUN, str(root), str(out), str(jobs)]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                words, start_new_session=True, env=environment, stdout=subprocess.DEVNULL, stderr=errors
            )

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(workers=True)

    def kill(self, *, workers: bool) -> None:
        """Kill the process, with its workers or without."""
        if workers:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait()

    def wait_for(self, sign: Callable[[Path], bool]) -> None:
        """Wait until the folder shows `sign`, or the process has ended."""
        while not sign(self.out) and self.process.poll() is None:
            time.sleep(0.0005)

    def end(self) -> None:
        """Wait until it ends; `RuntimeError` if it fails."""
        if self.process.wait(SECONDS):
            raise RuntimeError(f"a run that nobody disturbs fails: {self.errors.read_text()[-500:]}")


def kill_runs(root: Path, folder: Path, *, kills: int, seed: int, jobs: int) -> Tally:
    """Kill `kills` runs over `root`, an RSNA set, with results below `folder`."""
    draw, tally, out = random.Random(seed), Tally(), folder / "out"
    first, second = (sorted(root.rglob("*.dcm"))[start::ASIDE] for start in (0, ASIDE // 2))
    with _away(first, folder / "away"):
        prepare("rsna", root, folder / "old", jobs=1)
    with _away(second, folder / "away"):
        prepare("rsna", root, folder / "new", jobs=1)
        old, new, new_rows = files(folder / "old"), files(folder / "new"), rows(folder / "new")
        about = json.loads(new[ABOUT])
        unfinished = (json.dumps({**about, "files": UNFINISHED}, indent=2) + "\n").encode()
        moments = []
        for before in (None, folder / "old"):
            _begin(out, before)
            moments.append(_moments(root, out, jobs))
            tally.wrong += _differences(files(out) | rows(out), new | new_rows, "a run that nobody disturbs:")
        for number in range(kills):
            over_old, orphans = number % 2, number // 2 % 2
            name = f"kill {number} ({'over an older set' if over_old else 'from nothing'}"
            name += ", workers live on):" if orphans else "):"
            before = old if over_old else {}
            _begin(out, folder / "old" if over_old else None)
            with Run(root, out, jobs) as run:
                run.wait_for(SIGNS[number % 3])
                time.sleep(draw.uniform(0, moments[over_old][number % 3]))
                running = run.process.poll() is None
                run.kill(workers=not orphans)
                now = files(out)
                tally.count(now, before, new, running=running, writing=bool(temporary(out)))
                whole = {path: {before.get(path), new.get(path)} for path in now}
                whole.get(ABOUT, set()).add(unfinished)
                torn = [path for path in now if now[path] not in whole[path]]
                tally.wrong += [f"{name} {path} is torn" for path in torn]
                tally.wrong += _mend(root, out, new | new_rows, jobs=jobs, name=name)
            if not orphans:
                tally.wrong += [f"{name} {path.name} is left over" for path in temporary(out)]
    return tally


def _moments(root: Path, out: Path, jobs: int) -> list[float]:
    """Prepare slowly and undisturbed; for each sign the seconds from then on that a kill may fall into."""
    with Run(root, out, jobs) as run:
        began = []
        for sign in SIGNS:
            run.wait_for(sign)
            began.append(time.time())
        run.end()
    indexed, ended = ((out / name).stat().st_mtime for name in (CACHE, "prepared.json"))
    return [max(0.0, end - begin) for begin, end in zip(began, (ended, indexed, ended), strict=True)]


def _mend(root: Path, out: Path, expected: Contents, *, jobs: int, name: str) -> list[str]:
    """The next run, in this process; what is wrong after it."""
    try:
        with redirect_stdout(io.StringIO()):
            prepare("rsna", root, out, jobs=jobs)
    except Exception as error:
        return [f"{name} the next run fails: {type(error).__name__}: {error}"]
    return _differences(files(out) | rows(out), expected, f"{name} after the next run")


def _begin(out: Path, old: Path | None) -> None:
    """An empty place for a run, or a copy of an older result."""
    shutil.rmtree(out, ignore_errors=True)
    if old is not None:
        shutil.copytree(old, out, ignore=shutil.ignore_patterns(LOCK))


@contextmanager
def _away(paths: Sequence[Path], folder: Path) -> Iterator[None]:
    """Have files somewhere else for a while."""
    folder.mkdir(exist_ok=True)
    for number, path in enumerate(paths):
        path.rename(folder / str(number))
    yield
    for number, path in enumerate(paths):
        (folder / str(number)).rename(path)


def _differences(found: Contents, expected: Contents, name: str) -> list[str]:
    paths = sorted({*found, *expected})
    return [f"{name} {path} differs" for path in paths if found.get(path) != expected.get(path)]


def main() -> None:
    """Kill and compare; exit code 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--studies", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = phantoms.rsna(Path(name) / "set", studies=options.studies)
        tally = kill_runs(root, Path(name), kills=options.kills, seed=options.seed, jobs=options.jobs)
    print(*tally.wrong, tally, sep="\n")
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    main()
