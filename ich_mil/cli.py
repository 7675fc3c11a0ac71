"""Command line of `ich-mil` and `train.py`.

Bad input prints one line on standard error and exits with code 2. Paths and settings are checked before a
command imports torch, which takes seconds.
"""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from shlex import quote
from typing import Any

from ich_mil.arguments import GUARANTEE, examples, make_parser
from ich_mil.errors import ConfigError
from ich_mil.files import check_apart
from ich_mil.guard import guarded
from ich_mil.progress import say
from ich_mil.runs.folder import PREDICTIONS, check_no_run, check_report, read_run, run_folder
from ich_mil.settings import shipped_configs

INPUTS = ("root", "folder", "source", "triage", "apply", "labels", "kinds", "contrast_words")
"""Arguments that name a file or folder to read."""
DEFAULT_OUT = {"predict": "predictions", "validate": "validations"}
FROM_PREDICTIONS = ("triage", "subtype", "drift")
"""Commands that read a folder of `predict` or `validate`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `ich-mil` and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command, rest = "".join(words[:1]), words[1:]
    if "TORCHELASTIC_RUN_ID" in os.environ and command not in ("train", "run"):
        print(f"error: torchrun is for 'train' and 'run', not for {command!r}", file=sys.stderr)
        return 2
    with_settings = {
        "run": _run_file,
        "train": _train,
        "grid": _grid,
        "serve": _serve,
    }
    if command in with_settings:  # options are the fields of their configuration
        return guarded(lambda: with_settings[command](rest))
    return guarded(lambda: _run(vars(make_parser().parse_args(words))))


def train_main(arguments: Sequence[str]) -> int:
    """Run `train.py`, the whole pipeline, and return the exit code."""
    return guarded(lambda: _train(list(arguments), "run", program="train.py"))


def _check_paths(command: str, given: dict[str, Any]) -> None:
    """Check paths before torch is imported.

    Raises:
        ConfigError: a missing input, an output within an input, or in the folder of a run.
        ModelError: a folder that holds no run.
    """
    for name in INPUTS:
        path = given.get(name)
        if path is not None and not Path(str(path).replace("{member}", "0")).exists():
            raise ConfigError(f"{path}: no such file or folder; correct the path")
    if "extras" in given:
        given["extras"].check_paths()
    if command in FROM_PREDICTIONS and not (given["folder"] / PREDICTIONS).is_file():
        raise ConfigError(
            f"{given['folder']}: holds no {PREDICTIONS}; name a folder of 'validate' or 'predict'"
        )
    if command in ("predict", "validate", "recalibrate"):
        check_apart(given["out"], given["root"])
    if command in DEFAULT_OUT:
        check_no_run(given["out"])
    models = [given.get("model"), given.get("reference")]
    models += [] if given.get("skip_failed") else given.get("runs", [])
    for model in filter(None, models):
        read_run(run_folder(model))


def _run(given: dict[str, Any]) -> None:
    command = given.pop("command")
    if command in DEFAULT_OUT and given["out"] is None:
        given["out"] = Path(DEFAULT_OUT[command]) / given["root"].resolve().name
    if "columns" in given:
        from ich_mil.training.set_settings import check_columns

        given["columns"] = dict(given["columns"])
        try:
            check_columns(given["columns"], given["layout"])
        except ValueError as error:
            raise ConfigError(f"--column: {error}") from error
    if "covariates" in given:
        from ich_mil.multimodal.extras import ExtraSources

        names = ("requests", "reports", "covariates")
        given["extras"] = ExtraSources(**{name: given.pop(name) for name in names})
    _check_paths(command, given)
    match command:
        case "prepare":
            _prepare(**given)
        case "labels-template":
            from ich_mil.commands.labels_template import write_template

            write_template(**given)
        case "predict":
            from ich_mil.commands.predict import predict_folder

            predict_folder(**given)
        case "validate":
            from ich_mil.commands.report import validate_folder
            from ich_mil.commands.validate import Site

            model, out = given.pop("model"), given.pop("out")
            validate_folder(Site(**given), model=model, out=out)
        case "recalibrate":
            from ich_mil.commands.recalibrate import recalibrate_run
            from ich_mil.commands.validate import Site

            model, out = given.pop("model"), given.pop("out")
            recalibrate_run(Site(**given), model=model, out=out)
        case "ensemble":
            from ich_mil.commands.ensemble import join_runs

            join_runs(**given)
        case "triage":
            _triage(**given)
        case "subtype":
            from ich_mil.commands.subtype import train_kinds

            train_kinds(**given)
        case "drift":
            from ich_mil.commands.drift import drift_of

            drift_of(**given)
        case "report":
            _report(**given)
        case "reports":
            from ich_mil.commands.reports import SEEDS, label_reports
            from ich_mil.reports.read import Columns

            columns = Columns(*(given.pop(f"{name}_column") for name in ("report", "text", "scan")))
            label_reports(**given | {"seeds": given["seeds"] or SEEDS}, columns=columns)


def _prepare(
    root: Path | None,
    *,
    explain: str | None,
    layout: Any,
    out: Path,
    window: Any,
    thickness: float,
    **how: Any,
) -> None:
    from ich_mil.data.layouts.slice_pictures import parse_window
    from ich_mil.data.preparation.explain import explain as explain_scan
    from ich_mil.data.preparation.prepare import prepare

    if explain is not None:
        say(*explain_scan(out, explain).split("\n"))
        return
    if root is None or layout is None:
        raise ConfigError("prepare needs a folder and --layout, or --explain SCAN")
    try:
        window = window and parse_window(window, layout=layout)
    except ValueError as error:
        raise ConfigError(f"--window: {error}") from error
    prepare(layout, root, out, thickness_mm=thickness, window=window, **how)
    say(f"written: {out / 'ledger.csv'}, {out / 'slices.csv'}")
    say(f"next: ich-mil prepare --explain SCAN --out {quote(str(out))}")


def _triage(folder: Path, *, apply: Path | None, out: Path | None, **options: Any) -> None:
    asked = {name: value for name, value in options.items() if value is not None}
    if apply is not None and asked:
        useless = ", ".join(f"--{name}" for name in asked)
        raise ConfigError(
            f"{useless}: for new thresholds; leave out with --apply, which uses stored thresholds"
        )
    from ich_mil.commands.triage import apply_triage, calibrate_triage

    if apply is None:
        calibrate_triage(folder, out=out or folder / "triage.json", **{"labels": None} | GUARANTEE | asked)
    else:
        apply_triage(folder, apply, out or folder / "decisions.csv")


def _report(folder: Path, *, dicom: bool, names: bool) -> None:
    if (folder / PREDICTIONS).is_file():
        from ich_mil.commands.pages import Shown, show_folder

        show_folder(folder, Shown(dicom=dicom, names=names))
        return
    if dicom or names:
        raise ConfigError(f"{folder}: --dicom and --names are for predictions; name a folder of 'predict'")
    check_report(folder)
    from ich_mil.commands.report import report_run

    report_run(folder)


def _run_file(words: list[str]) -> None:
    """`ich-mil run CONFIG ...` is `train.py --config CONFIG ...`."""
    if not words:
        raise ConfigError(f"run needs a configuration: a YAML file, or one of {', '.join(shipped_configs())}")
    named = [] if words[0].startswith("-") else ["--config"]
    _train(named + words, "run", program="ich-mil run CONFIG")


def _train(words: list[str], command: str = "train", *, program: str = "ich-mil train") -> None:
    """`train`, or for the command `run` the whole pipeline."""
    from ich_mil.config import read_config
    from ich_mil.runs.resume import check_folder

    resume = "--resume" in words
    rest = [re.sub(r"^--from\b", "--start", word) for word in words if word != "--resume"]
    config = read_config(rest, program=program, more=examples(command))
    for number in range(config.members):
        config.member(number).check_paths()
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # other ranks find the files of rank 0
        check_folder(config, resume)

    from ich_mil.commands.train import train
    from ich_mil.commands.train_members import train_ensemble
    from ich_mil.ranks import joined

    with joined() as ranks, nullcontext() if ranks.first else _silent():
        external = (train if config.members == 1 else train_ensemble)(config, resume=resume)
    if not ranks.first:
        return
    pictures = config.train.layout != "features"
    following = f"validate {'FOLDER --layout folder' if pictures else 'TABLE.csv --layout features'}"
    if command == "run":
        from ich_mil.commands.report import validate_and_report

        validate_and_report(config, external)
        following = "predict FOLDER" if pictures else following
    say(f"written: {config.out}")
    say(f"next: ich-mil {following} --model {quote(str(config.out))}")


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress output and warnings within the block: those of other ranks would repeat those of rank 0."""
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _grid(words: list[str]) -> None:
    from ich_mil.config import read_grid

    config = read_grid(words, more=examples("grid"))
    config.check_paths()
    from ich_mil.commands.grid import grid

    grid(config)


def _serve(words: list[str]) -> None:
    from ich_mil.serve.judging import ModelJudge
    from ich_mil.serve.node import serve
    from ich_mil.serve.settings import ServeSettings
    from ich_mil.settings import read_settings

    more = examples("serve")
    settings = read_settings(ServeSettings, words, program="ich-mil serve", more=more)
    serve(settings, ModelJudge(settings.model, settings.triage, settings.contrast_words))
