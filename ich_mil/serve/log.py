"""Log of the node: lines on standard output.

In: texts. Out: one line for each. A line that cannot be written, because the disk is full or the reader has
closed the pipe, is dropped, since logging must not interrupt the processing of studies.
"""

import os
import sys
from contextlib import suppress


def say(text: str) -> None:
    """Write one line without buffering; drop it if it cannot be written."""
    # bypass the buffer of sys.stdout: unwritten data would fail the next flush, such as at a process start
    with suppress(OSError, ValueError):  # full disk or broken pipe; closed stream
        os.write(sys.stdout.fileno(), f"{text}\n".encode(sys.stdout.encoding, "backslashreplace"))
