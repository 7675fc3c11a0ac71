"""Progress for long loops: a bar on a terminal, plain lines in a log file."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
PLAIN_SECONDS = 15.0
"""On something that is not a terminal a line is printed at most this often."""


def say(text: str) -> None:
    """Print one line at once, so that a log shows it when it happens."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


@cache
def say_once(text: str) -> None:
    """`say`, unless this process has said it."""
    say(text)


def progress(
    items: Iterable[T], *, total: int, what: str, unit: str = "scan", weight: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:
    """Yield `items`, telling how far it is.

    Args:
        items: what is done, one after the other.
        total: units in all.
        what: names the work.
        unit: names one unit of it.
        weight: units of an item.
    """
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
