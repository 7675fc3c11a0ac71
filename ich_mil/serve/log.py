"""The node's log: lines on standard output.

In: what happened. Out: a line of it, where one can be written: that the disk of the log is full, or that
nobody reads it any more, must not end the judging and sending of results.
"""

import os
import sys
from contextlib import suppress


def say(text: str) -> None:
    """Write one line at once, or drop it where it cannot be written."""
    # past the buffer of sys.stdout: what stays in it fails who flushes it next, as each start of a judge does
    with suppress(OSError, ValueError):  # a disk that is full, a pipe that broke; a stream that was closed
        os.write(sys.stdout.fileno(), f"{text}\n".encode(sys.stdout.encoding, "backslashreplace"))
