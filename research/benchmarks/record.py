"""Print benchmark results, and append them to RESULTS.md with date, machine and commit."""

import argparse
import datetime
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter

import torch
from joblib import cpu_count

RESULTS = Path(__file__).parents[1] / "RESULTS.md"


def commit() -> str:
    """Short hash of the current commit, with a + if files are modified; "unknown" without a repository."""
    words = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> str:
    """Description of the machine: cores, processor, current load, versions of Python and torch."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    model = next(names, "unknown processor")
    a, b = torch.randn(2, 1024, 1024, dtype=torch.float64)
    rate = 2 * 1024**3 / statistics.median(seconds(lambda: a @ b, rounds=9)) / 1e9
    return (
        f"{cpu_count()} cores of {model}, {rate:.0f} GFlop/s in float64 products just now, "
        f"load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, torch {torch.__version__}"
    )


def command_line(about: str | None) -> argparse.ArgumentParser:
    """Argument parser with `--write` (for `record`) and the description `about`, the module's docstring."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="append to RESULTS.md")
    return parser


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def record(title: str, text: str) -> None:
    """Print a section with the running command; if that has `--write`, append the section to RESULTS.md."""
    module = sys.modules["__main__"].__spec__
    assert module is not None, "run a benchmark by python -m"
    words = ["python", "-m", module.name.removesuffix(".__main__"), *sys.argv[1:]]
    command = shlex.join(word for word in words if word != "--write")
    date = datetime.date.today().isoformat()
    section = f"\n### {title}\n\n    {command}\n\n{date}, commit {commit()}, {machine()}.\n\n{text.strip()}\n"
    print(section, flush=True)
    if "--write" in sys.argv:
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(section)


def seconds(work: Callable[[], object], *, rounds: int) -> list[float]:
    """Wall-clock seconds of each of `rounds` calls."""
    taken = []
    for _ in range(rounds):
        started = perf_counter()
        work()
        taken.append(perf_counter() - started)
    return taken


def spread(values: Sequence[float]) -> str:
    """Median and range of seconds."""
    return f"{statistics.median(values):.2f} s ({min(values):.2f}-{max(values):.2f})"


def with_interval(value: float, ends: Iterable[float], digits: int = 3) -> str:
    """A value with the two ends of its interval."""
    low, high = ends
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
