"""Output on terminals and in logs, and progress reports of long loops.

Texts from outside (UIDs, names of files, values of configurations) can hold escape sequences that a terminal
obeys, line ends, and marks that reverse the direction of writing. `printable` replaces them, at each place
where text leaves the program: `say`, `PrintableFormatter`, and the errors and warnings of `ich_mil.guard`.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeVar

T = TypeVar("T")
PLAIN_SECONDS = 15.0
"""Shortest time between two progress lines where the output is not a terminal."""


def printable(text: str) -> str:
    """One line of text: line ends and all other characters that `str.isprintable` excludes as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class PrintableFormatter(logging.Formatter):
    """Formatter of log records as `printable` lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        return printable(super().format(record))


def say(*lines: str) -> None:
    """Print lines and flush, so that a log shows them without delay."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in map(printable, lines):
        print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)


@cache
def say_once(text: str) -> None:
    """Print a line at most once in this process."""
    say(text)


def progress(
    items: Iterable[T], *, total: int, what: str, unit: str = "scan", weight: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:
    """Yield `items` and report progress: `total` units of the work `what`, `weight(item)` units per item."""
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
