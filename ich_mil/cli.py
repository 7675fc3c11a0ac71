"""Command line of `ich-mil` and `train.py`.

Bad input prints one line on standard error and exits with code 2. Paths and settings are checked before a
command imports torch, which takes seconds.
"""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.main import get_command

from ich_mil.arguments import app, under_torchrun
from ich_mil.commands import (  # noqa: F401  each adds its command to `app`
    drift,
    ensemble,
    grid,
    labels_template,
    predict,
    prepare,
    recalibrate,
    report_pages,
    report_texts,
    serve,
    subtype,
    train,
    triage,
    validate,
)
from ich_mil.errors import ConfigError
from ich_mil.guard import guarded

INTERRUPTED = 130
"""Exit code of Typer after a KeyboardInterrupt."""


def program() -> NoReturn:
    """Run `ich-mil` in a process of its own, and end the process.

    Two costs of large libraries, 3 s in sum, are left out: passes of the garbage collector while they are
    imported, and the removal of their objects one by one at the end.
    """
    gc.set_threshold(100_000)
    ended: list[int] = []

    @atexit.register  # the first to be registered is the last to be called
    def leave() -> None:
        if ended:  # not after an exception
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended[0])

    ended.append(main())
    sys.exit(ended[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `ich-mil` and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _run(get_command(app), words, "ich-mil"))


def train_main(arguments: Sequence[str]) -> int:
    """Run `train.py`, the whole pipeline, and return the exit code."""
    group: Any = get_command(app)
    return guarded(lambda: _run(group.commands["run"], list(arguments), "train.py"))


def _run(command: Any, words: list[str], program: str) -> None:
    if under_torchrun() and program == "ich-mil" and words[:1] not in (["train"], ["run"]):
        raise ConfigError(f"torchrun is for 'train' and 'run', not for {' '.join(words[:1])!r}")
    try:
        code = command.main(words, prog_name=program, standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        hint = f" ({context.command_path} --help)" if context else ""
        raise ConfigError(f"{error.format_message().rstrip('.')}{hint}") from error
    if code == INTERRUPTED:
        raise KeyboardInterrupt
