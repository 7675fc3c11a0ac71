"""Kill runs of prepare at random moments: what is there is whole, and the next run mends the rest.

Two references are prepared without disturbance, of two sets of files that have most in common. Then prepare
is started, again and again, over the files of the second in its own process, in turn into an empty folder and
over a copy of the first reference, and killed with SIGKILL. Two things must hold:

* at the kill every file with its final name has the bytes that a reference has under that name;
* after the next run all files have the bytes of the second reference, and the header index has its rows.

The runs to be killed are slow: they wait before a file is renamed and after each chunk of headers.
"""

import io
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.store import UNFINISHED

CACHE, LOCK, ABOUT = "index.sqlite", ".lock", "prepared.json"
ASIDE = 40
"""One file in so many is missing from the first set, and another from the second: about a slice a scan."""

Contents = dict[str, bytes]

_RUN = """
import os, sys, time
from pathlib import Path
from ich_mil.sets.preparation import index, prepare
sync, keep = os.fsync, index.HeaderIndex._keep
os.fsync = lambda file: (sync(file), time.sleep(0.02))
index.HeaderIndex._keep = lambda *words: (keep(*words), time.sleep(0.02))
index.CHUNK, index.COMMIT_SECONDS = 8, 0.0
prepare.MANY = index.MANY = 200 if sys.argv[3] == "1" else 0
prepare.prepare("rsna", Path(sys.argv[1]), Path(sys.argv[2]), jobs=int(sys.argv[3]))
"""


def files(out: Path) -> Contents:
    """The files of a prepared set that have their final name."""
    found = {}
    for path in out.rglob("*"):
        if not path.name.startswith((CACHE, ".")):
            with suppress(FileNotFoundError, IsADirectoryError):  # a worker may live on
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
    words = [sys.executable, "-c", _RUN, str(root), str(out), str(jobs)]
    process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
        seconds = _seconds(root, out, jobs)
        for number in range(kills):
            over_old = number % 2
            shutil.rmtree(out, ignore_errors=True)
            if over_old:
                shutil.copytree(folder / "old", out, ignore=shutil.ignore_patterns(LOCK))
            with _run(root, out, jobs) as process:
                while not (out / LOCK).exists() and process.poll() is None:
                    time.sleep(0.001)
                time.sleep(draw.uniform(0, seconds))
                killed += process.poll() is None
            allowed = [new, old if over_old else {}, {ABOUT: unfinished}]
            now = files(out).items()
            torn = [path for path, content in now if content not in [one.get(path) for one in allowed]]
            wrong += [f"kill {number}: {path} is torn" for path in torn]
            with redirect_stdout(io.StringIO()):
                prepare("rsna", root, out, jobs=jobs)
            found = files(out) | rows(out)
            differ = [path for path in sorted({*found, *whole}) if found.get(path) != whole.get(path)]
            left = [path.name for path in out.rglob(".*") if path.name != LOCK]
            wrong += [f"kill {number}: {path} differs or is left over" for path in differ + left]
    return killed, wrong


def _seconds(root: Path, out: Path, jobs: int) -> float:
    """Time of an undisturbed run in seconds, from its lock on."""
    with _run(root, out, jobs) as process:
        while not (out / LOCK).exists() and process.poll() is None:
            time.sleep(0.001)
        began = time.monotonic()
        assert process.wait(300) == 0
    return time.monotonic() - began


@contextmanager
def _away(paths: Sequence[Path], folder: Path) -> Iterator[None]:
    """Have files somewhere else for a while."""
    folder.mkdir(exist_ok=True)
    for number, path in enumerate(paths):
        path.rename(folder / str(number))
    yield
    for number, path in enumerate(paths):
        (folder / str(number)).rename(path)
