"""Kill a run of prepare at random moments and see that the next run ends as if nothing had happened.

    python -m tests.data.kills --kills 50 --seed 0 [--jobs 2]

A reference is prepared without disturbance. Then, again and again: prepare is started in a process of its own
into a new folder, killed with SIGKILL at a moment drawn from the time the reference took (every other time
with its workers, else they live on as orphans), started again and left alone. Every file of the result must
have the bytes of the reference; the header index, which is a cache, must have its rows.
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
from pathlib import Path

from ich_mil.data.prepare import prepare
from tests import phantoms

CACHE = "index.sqlite"
LOCK = ".lock"
_RUN = "import sys; from pathlib import Path; from ich_mil.data.prepare import prepare; "
_RUN += "prepare('rsna', Path(sys.argv[1]), Path(sys.argv[2]), jobs=int(sys.argv[3]))"


def contents(folder: Path) -> dict[str, object]:
    """What a prepared set holds: the bytes of every file, the rows of the header index."""
    found: dict[str, object] = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith((CACHE, LOCK))
    }
    with sqlite3.connect(folder / CACHE) as database:
        for name in ("file", "slice"):
            found[name] = database.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3").fetchall()
    database.close()
    return found


def start(root: Path, out: Path, jobs: int) -> subprocess.Popen[bytes]:
    """Prepare in a process group of its own."""
    words = [sys.executable, "-c", _RUN, str(root), str(out), str(jobs)]
    return subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL)


def working_seconds(process: subprocess.Popen[bytes], out: Path) -> float:
    """Wait until `process` has begun to write; returns the time it takes from then on."""
    while not (out / LOCK).exists() and process.poll() is None:
        time.sleep(0.005)
    started = time.monotonic()
    if process.wait() != 0:
        raise RuntimeError(f"prepare ended with {process.returncode}")
    return time.monotonic() - started


def kill(process: subprocess.Popen[bytes], out: Path, after: float, *, workers: bool) -> bool:
    """Kill a run `after` seconds of work, with its workers or without. Returns whether it still ran."""
    while not (out / LOCK).exists() and process.poll() is None:
        time.sleep(0.005)
    time.sleep(after)
    running = process.poll() is None
    if running and workers:
        os.killpg(process.pid, signal.SIGKILL)
    elif running:
        process.kill()
    process.wait()
    return running


def differences(root: Path, kills: int, seed: int, jobs: int) -> tuple[list[str], int, int]:
    """Kill `kills` runs over `root`.

    Returns:
        What differed from the reference, a line each; how many runs were killed before their end; how many of
        these had written some scans but not all.
    """
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        prepare("rsna", root, Path(folder) / "reference", jobs=1)
        reference = contents(Path(folder) / "reference")
        seconds = working_seconds(start(root, Path(folder) / "timed", jobs), Path(folder) / "timed")
        n_scans = sum(name.endswith(".npy") for name in reference)
        wrong, n_killed, n_halfway = [], 0, 0
        for number in range(kills):
            out = Path(folder) / f"killed{number}"
            out.mkdir()
            n_killed += kill(start(root, out, jobs), out, draw.uniform(0, seconds), workers=number % 2 == 0)
            n_halfway += 0 < len(list(out.glob("scans/*.npy"))) < n_scans
            if start(root, out, jobs).wait() != 0:
                wrong.append(f"kill {number}: the next run failed")
                continue
            got = contents(out)
            wrong += [
                f"kill {number}: {name} differs"
                for name in sorted({*got, *reference})
                if got.get(name) != reference.get(name)
            ]
            shutil.rmtree(out)
    return wrong, n_killed, n_halfway


def main() -> None:
    """Kill and compare; exit code 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--studies", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = phantoms.rsna(Path(folder) / "set", studies=arguments.studies)
        wrong, n_killed, n_halfway = differences(root, arguments.kills, arguments.seed, arguments.jobs)
    print(*wrong, sep="\n")
    print(
        f"{arguments.kills} runs, {n_killed} killed before their end, {n_halfway} of them with some scans "
        f"written and not all; {len(wrong)} differences after the next run"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
