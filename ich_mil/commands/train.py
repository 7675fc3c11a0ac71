"""`ich-mil train`, and `ich-mil run`, which validates and reports too."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from io import StringIO
from shlex import quote
from typing import Annotated, Any

import typer

from ich_mil.arguments import SETTINGS, app, examples, under_torchrun, with_settings
from ich_mil.errors import ConfigError
from ich_mil.progress import say

Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in its 'out' folder.")]
Start = Annotated[str | None, typer.Option("--from", metavar="RUN", help="Start from its networks.")]
Config = Annotated[
    str | None, typer.Option(metavar="FILE", help="YAML file, or the name of a shipped configuration.")
]
OWN: dict[str, Any] = {"cls": with_settings("RunConfig"), "context_settings": SETTINGS}


@app.command(
    **OWN,
    epilog=examples(
        "ich-mil run demo", "ich-mil run my.yaml --head.beta 1.5 --out other", "ich-mil run my.yaml --resume"
    ),
)
def run(context: typer.Context, config: Config = None, resume: Resume = False, start: Start = None) -> None:
    """Prepare, train, validate and report: CONFIG is a file, or the name of a shipped configuration."""
    words = list(context.args)
    if config is None and words and not words[0].startswith("-"):
        config = words.pop(0)
    if config is None and not words:
        from ich_mil.settings import shipped_configs

        raise ConfigError(f"run needs a configuration: a YAML file, or one of {', '.join(shipped_configs())}")
    _train(words, config, resume, start, whole=True)


@app.command(
    **OWN,
    epilog=examples(
        "ich-mil train --config my.yaml --out checkpoints/other", "ich-mil train --config my.yaml --resume"
    ),
)
def train(context: typer.Context, config: Config = None, resume: Resume = False, start: Start = None) -> None:
    """Prepare, train the CNN and fit the head."""
    _train(context.args, config, resume, start, whole=False)


def _train(words: list[str], file: str | None, resume: bool, start: str | None, *, whole: bool) -> None:
    from ich_mil.config import read_config
    from ich_mil.model.training.resume import check_folder, with_start_settings

    named = [f"--config={file}"] if file is not None else []
    started = [f"--start={start}"] if start is not None else []
    config = with_start_settings(read_config([*named, *started, *words]))
    for number in range(config.members):
        config.member(number).check_paths()
    if not under_torchrun():  # other ranks find the files of rank 0
        check_folder(config, resume)

    from ich_mil.model.training.train import train as train_one
    from ich_mil.model.training.train_members import train_ensemble
    from ich_mil.ranks import joined

    with joined() as ranks, nullcontext() if ranks.first else _silent():
        external = (train_one if config.members == 1 else train_ensemble)(config, resume=resume)
    if not ranks.first:
        return
    pictures = config.train.layout != "features"
    following = f"validate {'FOLDER --layout folder' if pictures else 'TABLE.csv --layout features'}"
    if whole:
        from ich_mil.output.run_report import validate_and_report

        validate_and_report(config, external)
        following = "predict FOLDER" if pictures else following
    say(f"written: {config.out}")
    say(f"next: ich-mil {following} --model {quote(str(config.out))}")


@contextmanager
def _silent() -> Iterator[None]:
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
