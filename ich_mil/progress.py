"""Progress reports of long loops: a bar on a terminal, plain lines in a log file."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
PLAIN_SECONDS = 15.0
"""Shortest time between two progress lines where the output is not a terminal."""


def say(text: str) -> None:
    """Print a line and flush, so that a log shows it without delay."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


@cache
def say_once(text: str) -> None:
    """Print a line at most once in this process."""
    say(text)


def progress(
    items: Iterable[T], *, total: int, what: str, unit: str = "scan", weight: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:
    """Yield `items` and report progress: `total` units of the work `what`, `weight(item)` units per item."""
    if sys.stderr.isatty():
        with tqdm(total=total, desc=what, unit=unit, leave=False) as bar:
            for item in items:
                yield item
                bar.update(weight(item))
        return
    started = last = time.monotonic()
    done = 0
    for item in items:
        yield item
        done += weight(item)
        now = time.monotonic()
        if now - last >= PLAIN_SECONDS and done < total:
            last = now
            rate = done / (now - started)
            say(f"{what}: {done} of {total} {unit}s, {rate:.1f} a second, {(total - done) / rate:.0f} s left")
