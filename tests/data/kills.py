"""Kill runs of prepare at random moments: what is there is whole, and the next run mends the rest.

    python -m tests.data.kills --kills 50 --seed 0 [--jobs 2]

Two references are prepared without disturbance, of two sets of files that have most in common. Then prepare
is started, again and again, over the files of the second in its own process, in turn into an empty folder
and over a copy of the first reference, and killed with SIGKILL, every other two times without its workers,
which live on as orphans while the next run goes on. A third of the kills fall anywhere in the run, a third
while the index is written, a third while scans are. Two things must hold:

* at the kill every file with its final name has the bytes that a reference has under that name;
* after the next run all files have the bytes of the second reference, and the header index has its rows.

Phantom scans are written within a millisecond, where no kill would ever fall. So the runs to be killed are
slow: files of the result are written in pieces, and each statement of the index waits a while (`_SLOWLY`).
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
from ich_mil.data.preparation import index, prepare
prepare.MANY = index.MANY = 0
prepare.prepare("rsna", Path(sys.argv[1]), Path(sys.argv[2]), jobs=int(sys.argv[3]))
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


def files(out: Path) -> Contents:
    """The files of a prepared set that have their final name."""
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


@contextmanager
def _run(root: Path, out: Path, jobs: int) -> Iterator[subprocess.Popen[bytes]]:
    """A slow run of prepare in a process group of its own; nothing of it lives on."""
    slowly = out.parent / "slowly"
    slowly.mkdir(exist_ok=True)
    (slowly / "sitecustomize.py").write_text(_SLOWLY)
    places = os.pathsep.join(filter(None, (str(slowly), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"SLOW_FOLDER": str(out), "PYTHONPATH": places}
    words = [sys.executable, "-c", _RUN, str(root), str(out), str(jobs)]
    process = subprocess.Popen(words, start_new_session=True, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(sign: Callable[[Path], bool], out: Path, process: subprocess.Popen[bytes]) -> None:
    while not sign(out) and process.poll() is None:
        time.sleep(0.0005)


def kill_runs(root: Path, folder: Path, *, kills: int, seed: int, jobs: int) -> tuple[int, list[str]]:
    """Kill `kills` runs over `root`, an RSNA set, with results below `folder`.

    Returns:
        How many were killed before their end, and a line for each thing that is wrong.
    """
    draw, killed, wrong, out = random.Random(seed), 0, [], folder / "out"
    first, second = (sorted(root.rglob("*.dcm"))[start::ASIDE] for start in (0, ASIDE // 2))
    with _away(first, folder / "away"):
        prepare("rsna", root, folder / "old", jobs=1)
    with _away(second, folder / "away"):
        prepare("rsna", root, folder / "new", jobs=1)
        old, new = files(folder / "old"), files(folder / "new")
        whole = new | rows(folder / "new")
        unfinished = (json.dumps({**json.loads(new[ABOUT]), "files": UNFINISHED}, indent=2) + "\n").encode()
        moments = [_moments(root, _begin(out, before), jobs) for before in (None, folder / "old")]
        for number in range(kills):
            over_old, orphans = number % 2, number // 2 % 2
            name = f"kill {number} ({'over an older set' if over_old else 'from nothing'}, {orphans=}):"
            _begin(out, folder / "old" if over_old else None)
            with _run(root, out, jobs) as process:
                _wait_for(SIGNS[number % 3], out, process)
                time.sleep(draw.uniform(0, moments[over_old][number % 3]))
                killed += process.poll() is None
                if orphans:
                    process.kill()
                else:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                allowed = [new, old if over_old else {}, {ABOUT: unfinished}]
                now = files(out).items()
                torn = [path for path, content in now if content not in [one.get(path) for one in allowed]]
                wrong += [f"{name} {path} is torn" for path in torn]
                wrong += _mend(root, out, whole, jobs=jobs, name=name)
            if not orphans:
                left = [path.name for path in out.rglob(".*") if path.name != LOCK]
                wrong += [f"{name} {path} is left over" for path in left]
    return killed, wrong


def _moments(root: Path, out: Path, jobs: int) -> list[float]:
    """Prepare slowly and undisturbed; for each sign the seconds from then on that a kill may fall into."""
    began = []
    with _run(root, out, jobs) as process:
        for sign in SIGNS:
            _wait_for(sign, out, process)
            began.append(time.time())
        if process.wait(SECONDS):
            raise RuntimeError("a run that nobody disturbs fails")
    indexed, ended = ((out / name).stat().st_mtime for name in (CACHE, ABOUT))
    return [max(0.0, end - begin) for begin, end in zip(began, (ended, indexed, ended), strict=True)]


def _mend(root: Path, out: Path, expected: Contents, *, jobs: int, name: str) -> list[str]:
    """The next run, in this process; what is wrong after it."""
    try:
        with redirect_stdout(io.StringIO()):
            prepare("rsna", root, out, jobs=jobs)
    except Exception as error:
        return [f"{name} the next run fails: {type(error).__name__}: {error}"]
    found = files(out) | rows(out)
    differ = [path for path in sorted({*found, *expected}) if found.get(path) != expected.get(path)]
    return [f"{name} after the next run {path} differs" for path in differ]


def _begin(out: Path, old: Path | None) -> Path:
    """An empty place for a run, or a copy of an older result."""
    shutil.rmtree(out, ignore_errors=True)
    if old is not None:
        shutil.copytree(old, out, ignore=shutil.ignore_patterns(LOCK))
    return out


@contextmanager
def _away(paths: Sequence[Path], folder: Path) -> Iterator[None]:
    """Have files somewhere else for a while."""
    folder.mkdir(exist_ok=True)
    for number, path in enumerate(paths):
        path.rename(folder / str(number))
    yield
    for number, path in enumerate(paths):
        (folder / str(number)).rename(path)


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
        killed, wrong = kill_runs(root, Path(name), kills=options.kills, seed=options.seed, jobs=options.jobs)
    print(*wrong, f"{killed} of {options.kills} runs killed, {len(wrong)} things wrong", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
