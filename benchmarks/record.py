"""Print benchmark results, and append them to RESULTS.md with date, machine and commit."""

import argparse
import datetime
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import torch
from joblib import cpu_count

RESULTS = Path(__file__).parent / "RESULTS.md"


def commit() -> str:
    """Short hash of the current commit, with a + if files are modified; "unknown" without a repository."""
    words = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or a copy of the files without the repository
        return "unknown"


def machine() -> str:
    """Description of the machine: cores, processor, current load, versions of Python and torch."""
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    a, b = torch.randn(2, 1024, 1024, dtype=torch.float64)
    product = statistics.median(seconds(lambda: a @ b, rounds=9))
    rate = 2 * 1024**3 / product / 1e9
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


def record(title: str, command: str, text: str, *, write: bool) -> None:
    """Print a section; with `write` append it to RESULTS.md."""
    date = datetime.date.today().isoformat()
    section = f"\n### {title}\n\n    {command}\n\n{date}, commit {commit()}, {machine()}.\n\n{text.strip()}\n"
    print(section, flush=True)
    if write:
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
    """Median and range."""
    return f"{statistics.median(values):.2f} s ({min(values):.2f}-{max(values):.2f})"
