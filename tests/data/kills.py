"""Kill runs of prepare at random moments: what is there is whole, and the next run ends as if nothing had been.

    python -m tests.data.kills --kills 50 --seed 0 [--jobs 2]

Two references are prepared without disturbance, one of a folder of files, one after some of these were taken
away. Then, again and again, prepare is started in a process of its own, in turn into an empty folder and over
a copy of the first reference, and killed with SIGKILL at a moment drawn from the time such a run takes; every
other time with its workers, else they live on as orphans while the next run goes on. Two things must hold:

* at the moment of the kill every file with a final name has the bytes that a reference has under that name;
* after the next run, left alone, all files have the bytes of the second reference, and the header index, which
  is a cache, has its rows.

Phantom scans are small and written within a millisecond, where no kill would ever fall. So the runs to be
killed write slowly: what they open below the result goes out in pieces, with a pause after each (`_SLOWLY`).
"""

import argparse
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ich_mil.data.prepare import prepare
from tests import phantoms

CACHE, LOCK = "index.sqlite", ".lock"
SECONDS = 300
"""A run that takes longer hangs."""
TAKEN_AWAY = 40
"""One file in so many: about half of the scans lose a slice."""

Contents = dict[str, bytes]

_RUN = """
import sys
from pathlib import Path
from ich_mil.data.prepare import prepare
prepare("rsna", Path(sys.argv[1]), Path(sys.argv[2]), jobs=int(sys.argv[3]))
"""
# Python runs a module of this name as it starts, in the workers, too.
_SLOWLY = """
import io, os, time

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

io.open = in_pieces
"""


@dataclass
class Tally:
    """What came of all kills.

    Attributes:
        runs: how many were started.
        killed: before their end.
        halfway: of these, with some of their files written and not all.
        writing: of these, with a file half written under its temporary name.
        wrong: a line for each thing that must not be.
    """

    runs: int = 0
    killed: int = 0
    halfway: int = 0
    writing: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.killed} killed before their end: {self.halfway} with some of their files "
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
    """A run of prepare in a process group of its own. A context manager: nothing of it lives on."""

    def __init__(self, root: Path, out: Path, jobs: int, *, slowly: bool) -> None:
        self.out = out
        self.errors = out.with_suffix(".txt")
        environment = dict(os.environ)
        if slowly:
            (out.parent / "slowly").mkdir(exist_ok=True)
            (out.parent / "slowly" / "sitecustomize.py").write_text(_SLOWLY)
            places = (str(out.parent / "slowly"), environment.get("PYTHONPATH", ""))
            environment |= {"SLOW_FOLDER": str(out), "PYTHONPATH": os.pathsep.join(filter(None, places))}
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

    def begin(self) -> float:
        """Wait until it has the folder. Returns the time."""
        while not (self.out / LOCK).exists() and self.process.poll() is None:
            time.sleep(0.005)
        return time.monotonic()

    def end(self) -> str:
        """Wait until it ends; what went wrong, or ''."""
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return f"does not end within {SECONDS} s"
        return f"ends with {code}: {self.errors.read_text()[-500:]}" if code else ""


def kill_runs(root: Path, folder: Path, *, kills: int, seed: int, jobs: int) -> Tally:
    """Kill `kills` runs over `root`, some of whose files are taken away, with results below `folder`."""
    draw, tally = random.Random(seed), Tally()
    prepare("rsna", root, folder / "old", jobs=1)
    for path in sorted(root.rglob("*.dcm"))[::TAKEN_AWAY]:
        path.unlink()
    prepare("rsna", root, folder / "new", jobs=1)
    olds, new, new_rows = ({}, files(folder / "old")), files(folder / "new"), rows(folder / "new")
    seconds = []
    for old in olds:
        out = _fresh(folder, bool(old))
        with Run(root, out, jobs, slowly=True) as run:
            started = run.begin()
            if trouble := run.end():
                raise RuntimeError(f"a run that nobody disturbs {trouble}")
            seconds.append(time.monotonic() - started)
    for number in range(kills):
        over_old, orphans = number % 2, number // 2 % 2
        old, out = olds[over_old], _fresh(folder, bool(over_old))
        name = f"kill {number} ({'over an older set' if over_old else 'from nothing'}"
        name += ", workers live on)" if orphans else ")"
        with Run(root, out, jobs, slowly=True) as run:
            run.begin()
            time.sleep(draw.uniform(0, seconds[over_old]))
            running = run.process.poll() is None
            run.kill(workers=not orphans)
            now = files(out)
            changed = [path for path in new if new[path] != old.get(path)]
            tally.runs += 1
            tally.killed += running
            tally.halfway += running and 0 < sum(now.get(path) == new[path] for path in changed) < len(
                changed
            )
            tally.writing += running and bool(temporary(out))
            whole = ({new.get(path), old.get(path)} for path in now)
            tally.wrong += [
                f"{name}: {path} is torn"
                for path, allowed in zip(now, whole, strict=True)
                if now[path] not in allowed
            ]
            with Run(root, out, jobs, slowly=False) as following:
                if trouble := following.end():
                    tally.wrong.append(f"{name}: the next run {trouble}")
                    continue
            after = files(out) | rows(out)
        expected = new | new_rows
        tally.wrong += [
            f"{name}: {path} differs after the next run"
            for path in sorted({*after, *expected})
            if after.get(path) != expected.get(path)
        ]
        if not orphans:
            tally.wrong += [f"{name}: {path.name} is left over" for path in temporary(out)]
    return tally


def _fresh(folder: Path, over_old: bool) -> Path:
    """The folder to prepare into: none yet, or a copy of the older set."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    if over_old:
        shutil.copytree(folder / "old", out, ignore=shutil.ignore_patterns(LOCK))
    return out


def main() -> None:
    """Kill and compare; exit code 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--studies", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = phantoms.rsna(Path(name) / "set", studies=options.studies)
        tally = kill_runs(root, Path(name), kills=options.kills, seed=options.seed, jobs=options.jobs)
    print(*tally.wrong, tally, sep="\n")
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    main()
