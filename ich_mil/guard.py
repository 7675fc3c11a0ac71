"""Errors of a command as one line on standard error, and exit codes.

Exit code 2: bad input, or trouble of the machine such as a full disk. Exit code 1: the reader of the output
has ended. Errors of the program itself are not caught.
"""

import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from types import TracebackType

from ich_mil.errors import IchMilError
from ich_mil.progress import PrintableFormatter, printable

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
MACHINE = (*_DISK, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM)
"""Numbers of operating system errors that the user can mend."""


def guarded(work: Callable[[], None]) -> int:
    """Run `work` and return the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    sys.excepthook = _report
    if logging.lastResort is not None:  # prints records of libraries
        logging.lastResort.setFormatter(PrintableFormatter())
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            work()
        except IchMilError as error:
            _print("error", str(error))
            return 2
        except BrokenPipeError:  # the reader of our output has ended, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except (OSError, MemoryError, RuntimeError) as error:
            if not (reason := _machine_trouble(error)):
                raise
            _print("error", reason)
            return 2
    return 0


def _print(kind: str, text: str) -> None:
    print(f"{kind}: {printable(' '.join(text.splitlines()))}", file=sys.stderr)


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error of the program.

    A `KeyboardInterrupt` is not caught: Python ends as if killed by SIGINT, which also ends a shell loop.
    """
    lines = ["stopped"]
    if not issubclass(kind, KeyboardInterrupt):
        lines = "".join(traceback.format_exception(kind, error, trace)).rstrip().split("\n")
    print(*map(printable, lines), sep="\n", file=sys.stderr)


def _machine_trouble(error: Exception) -> str:
    """Message for an error of the machine (memory, disk, permissions); '' for other errors."""
    if isinstance(error, BrokenExecutor):
        return (
            "a worker process was killed (out of memory, or by a decoder); run the same command with fewer "
            "--jobs, finished work is kept"
        )
    detail = f" ({text.splitlines()[0]})" if (text := str(error)) else ""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return (
            f"the GPU is out of memory{detail}; end other programs on it, or set CUDA_VISIBLE_DEVICES= to "
            "use the CPU, and run the same command again"
        )
    if isinstance(error, MemoryError):
        return f"out of memory{detail}; lower --jobs and training.workers, or use a machine with more memory"
    if not isinstance(error, OSError) or error.errno not in MACHINE:
        return ""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{os.strerror(error.errno)}; mend that and run the same command again"


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, *_: object, **__: object
) -> None:
    """Print warnings of `ich_mil` as one line; warnings of libraries are for developers and are dropped."""
    if f"{os.sep}ich_mil{os.sep}" in filename:
        _print("warning", str(message))
