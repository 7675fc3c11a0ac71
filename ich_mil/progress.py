"""Progress for long loops: a bar on a terminal, plain lines in a log file."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
PLAIN_SECONDS = 15.0
"""On something that is not a terminal a line is printed at most this often."""


def say(text: str) -> None:
    """Print one line at once, so that a log shows it when it happens."""
    print(text, flush=True)


def progress(items: Iterable[T], *, total: int, what: str, unit: str = "scan") -> Iterator[T]:
    """Yield `items`, telling how far it is: `what` names the work, `unit` one item of it."""
    if sys.stderr.isatty():
        yield from tqdm(items, total=total, desc=what, unit=unit, leave=False)
        return
    started = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= PLAIN_SECONDS and done < total:
            last = now
            rate = done / (now - started)
            say(f"{what}: {done} of {total} {unit}s, {rate:.1f} a second, {(total - done) / rate:.0f} s left")
