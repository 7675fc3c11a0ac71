"""Command line of `ich-mil` and `train.py`.

Bad input prints one line on standard error and exits with code 2. Each command imports its own modules: the
import of training takes seconds, and a DICOM node that does not predict itself should not hold it in memory.
"""

import argparse
import errno
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ich_mil.dicom.series import AVERAGE_TO_MM
from ich_mil.errors import ConfigError, IchMilError
from ich_mil.progress import say

if TYPE_CHECKING:
    from ich_mil.multimodal.extras import ExtraSources

LABELLED = ("rsna", "cq500", "folder")
PROMISE: dict[str, Any] = {
    "sensitivity": 0.95,
    "specificity": 0.95,
    "confidence": 0.9,
    "method": "risk_control",
}
"""Defaults of `triage`: guaranteed sensitivity and specificity, confidence and method."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `ich-mil` and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="ich-mil", description="Intracranial hemorrhage in head CT, with uncertainty."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    one = commands.add_parser("prepare", help="convert DICOM files to a prepared set of HU volumes")
    one.add_argument("root", type=Path, nargs="?", help="folder with the DICOM files")
    one.add_argument("--layout", choices=(*LABELLED, "slices", "unlabelled"))
    one.add_argument("--out", type=Path, required=True, help="folder of the prepared set")
    one.add_argument(
        "--thickness",
        type=_millimetres,
        default=AVERAGE_TO_MM,
        help="slice thickness in mm to average thin slices to (default %(default)s); 0: no averaging",
    )
    one.add_argument(
        "--window",
        nargs=2,
        type=float,
        metavar=("LEVEL", "WIDTH"),
        help="window of 8-bit pictures in HU (layout slices)",
    )
    one.add_argument("--explain", metavar="SCAN", help="explain how SCAN was prepared, then exit")
    _add_reading(one)

    commands.add_parser("train", help="prepare, train the CNN and fit the head; see 'ich-mil train --help'")

    commands.add_parser("grid", help="fit a grid of heads to one feature table; see 'ich-mil grid --help'")

    commands.add_parser(
        "reproduce", help="run a benchmark protocol, given by name or file, and write its report"
    )

    commands.add_parser(
        "serve", help="run a DICOM node that predicts received studies; see 'ich-mil serve --help'"
    )

    one = commands.add_parser("predict", help="predict new studies: probabilities, pages, DICOM results")
    one.add_argument("root", type=Path, help="a study, or a folder with several")
    one.add_argument(
        "--model", type=Path, default="headct-base", help="folder of a run; default: the bundled %(default)s"
    )
    one.add_argument("--out", type=Path, help="default: predictions/<name of the folder>")
    one.add_argument("--triage", type=Path, metavar="T.json", help="apply the thresholds of 'ich-mil triage'")
    one.add_argument("--kinds", type=Path, metavar="DIR", help="add the kinds of bleed of 'ich-mil subtype'")
    _add_shown(one)
    _add_reading(one)
    _add_extras(one)

    one = commands.add_parser("validate", help="measure a model on a labelled set it was not trained on")
    one.add_argument("root", type=Path, help="folder with the DICOM files, or a feature CSV")
    one.add_argument("--layout", choices=(*LABELLED, "features"), required=True)
    one.add_argument("--model", type=Path, required=True, help="folder of a run")
    one.add_argument("--out", type=Path, help="default: validations/<name of the folder>")
    _add_reading(one)
    _add_extras(one)

    one = commands.add_parser("recalibrate", help="recalibrate a model on labelled scans of a site")
    one.add_argument("root", type=Path, help="folder with the DICOM files, or a feature CSV")
    one.add_argument("--layout", choices=(*LABELLED, "features"), required=True)
    one.add_argument("--model", type=Path, required=True, help="folder of a run")
    one.add_argument("--out", type=Path, required=True, help="folder of the new run")
    _add_reading(one)
    _add_extras(one)

    one = commands.add_parser("ensemble", help="join finished runs to one model with pooled predictions")
    one.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    one.add_argument("--out", type=Path, required=True, help="folder of the new model")
    one.add_argument("--skip-failed", action="store_true", help="skip runs that cannot be loaded")

    one = commands.add_parser("triage", help="compute thresholds that guarantee a sensitivity, or apply them")
    one.add_argument("folder", type=Path, help="predictions: the folder of 'validate' or 'predict'")
    one.add_argument("--apply", type=Path, metavar="TRIAGE", help="apply these thresholds")
    one.add_argument("--labels", type=Path, help="CSV scan,label[,patient]; default: the predictions' own")
    for name, what in (
        ("sensitivity", "promised"),
        ("specificity", "promised"),
        ("confidence", "of each promise"),
    ):
        one.add_argument(f"--{name}", type=_share, help=f"{what} (default {PROMISE[name]})")
    one.add_argument("--method", choices=("risk_control", "conformal"), help=f"default: {PROMISE['method']}")
    one.add_argument("--out", type=Path, help="default: triage.json or decisions.csv in the folder")

    one = commands.add_parser("subtype", help="fit models of the kinds of bleed to predicted scans")
    one.add_argument("folder", type=Path, help="predictions: the folder of 'predict' or 'validate'")
    one.add_argument("--kinds", type=Path, required=True, help="CSV: column scan, and a 0/1 column per kind")
    one.add_argument("--model", type=Path, default="headct-base", help="the model that predicted them")
    one.add_argument("--out", type=Path, required=True, help="folder to write, for 'predict --kinds'")

    one = commands.add_parser(
        "drift", help="test whether predicted scans differ from those of the training site"
    )
    one.add_argument("folder", type=Path, help="predictions: the folder of 'predict' or 'validate'")
    one.add_argument(
        "--reference", type=Path, required=True, metavar="RUN", help="the model that predicted them"
    )
    one.add_argument(
        "--rate", type=_share, default=0.05, help="largest false-alarm rate (default %(default)s)"
    )

    one = commands.add_parser("report", help="rewrite the report of a run, or the pages of predictions")
    one.add_argument("folder", type=Path, help="folder of a validated run, or of 'predict'")
    _add_shown(one)

    one = commands.add_parser(
        "reports", help="extract scan labels, evidence and key terms from radiology reports"
    )
    one.add_argument("source", type=Path, metavar="REPORTS", help="CSV, Excel, or a folder of texts or DICOM")
    one.add_argument(
        "--seeds", nargs="+", metavar="WORD", help="known key terms for blood (default: hemorrhage hematoma)"
    )
    one.add_argument("--out", type=Path, required=True, help="folder of the results and of corrections.csv")
    for name, what in (("report", "ids"), ("text", "texts"), ("scan", "scans; where missing, the ids are")):
        one.add_argument(f"--{name}-column", default=name, help=f"column of a table with {what}")
    one.add_argument(
        "--uncertain",
        choices=("leave-out", "positive", "negative"),
        default="leave-out",
        help="label of scans with uncertain reports (default %(default)s)",
    )

    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["train"]:  # options are the fields of the configuration
        return _guard(lambda: _train(words[1:], whole=False))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        print(f"error: torchrun is for 'train' alone, not for {' '.join(words[:1])!r}", file=sys.stderr)
        return 2
    from_file = {"grid": _grid, "reproduce": _reproduce, "serve": _serve}
    if words and words[0] in from_file:
        return _guard(lambda: from_file[words[0]](words[1:]))
    chosen = parser.parse_args(words)
    return _guard(lambda: _run(chosen))


def _add_shown(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dicom", action="store_true", help="write DICOM results of predictions too")
    parser.add_argument("--names", action="store_true", help="show names and other DICOM texts on the pages")


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=_jobs, default="0", help="worker processes; 0 (default): one per core")
    parser.add_argument(
        "--contrast-words", type=Path, metavar="CSV", help="phrases of the site: columns phrase,meaning"
    )


def _add_extras(parser: argparse.ArgumentParser) -> None:
    own = parser.add_argument_group("inputs beside the slices, of a model with head.family multimodal")
    own.add_argument("--requests", type=Path, help="CSV scan,text, or a folder of texts from before the scan")
    own.add_argument("--reports", type=Path, help="the same, of texts that may state the result")
    own.add_argument(
        "--covariates", type=Path, help="CSV: column scan, and a column per covariate; header: age and sex"
    )


def _extras(chosen: argparse.Namespace) -> "ExtraSources":
    from ich_mil.multimodal.extras import ExtraSources

    return ExtraSources(chosen.requests, chosen.reports, chosen.covariates)


def _jobs(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 up, got {text!r}")
    from joblib import cpu_count

    return int(text) or cpu_count()


def _millimetres(text: str) -> float:
    return _number(text, "of mm from 0 up", lambda value: 0 <= value < math.inf)


def _share(text: str) -> float:
    return _number(text, "between 0 and 1", lambda value: 0 < value < 1)


def _number(text: str, allowed: str, fits: Callable[[float], bool]) -> float:
    with suppress(ValueError):
        if fits(value := float(text)):
            return value
    raise argparse.ArgumentTypeError(f"must be a number {allowed}, got {text!r}")


def train_main(arguments: Sequence[str]) -> int:
    """Run `train.py`, the whole pipeline, and return the exit code."""
    return _guard(lambda: _train(list(arguments), whole=True))


def _train(words: list[str], *, whole: bool) -> None:
    from ich_mil.commands.report import report_run
    from ich_mil.commands.train import train
    from ich_mil.commands.train_members import train_ensemble
    from ich_mil.commands.validate import validate_run
    from ich_mil.config import read_config
    from ich_mil.ranks import joined

    resume = "--resume" in words
    rest = [re.sub(r"^--from\b", "--start", word) for word in words if word != "--resume"]
    config = read_config(rest, program="train.py" if whole else "ich-mil train")
    with joined() as ranks, nullcontext() if ranks.first else _silent():
        (train if config.members == 1 else train_ensemble)(config, resume=resume)
    if whole and ranks.first:
        if validate_run(config):
            report_run(config.out)
        else:
            say(f"{config.out}: no scans are held out to measure it on; 'ich-mil validate' takes others")


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress output and warnings within the block: those of other ranks would repeat those of rank 0."""
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _grid(words: list[str]) -> None:
    from ich_mil.commands.grid import grid
    from ich_mil.config import read_grid

    grid(read_grid(words))


def _reproduce(words: list[str]) -> None:
    from ich_mil.reproduce.protocol import read_protocol
    from ich_mil.reproduce.run import reproduce

    reproduce(read_protocol(words))


def _serve(words: list[str]) -> None:
    from ich_mil.serve.judging import ModelJudge
    from ich_mil.serve.node import serve
    from ich_mil.serve.settings import ServeSettings
    from ich_mil.settings import read_settings

    settings = read_settings(ServeSettings, words, program="ich-mil serve")
    serve(settings, ModelJudge(settings.model, settings.triage, settings.contrast_words))


def _run(chosen: argparse.Namespace) -> None:
    match chosen.command:
        case "prepare":
            _prepare(chosen)
        case "predict":
            from ich_mil.commands.pages import Shown
            from ich_mil.commands.predict import predict_folder

            out = chosen.out or Path("predictions") / chosen.root.resolve().name
            predict_folder(
                chosen.root,
                model=chosen.model,
                out=out,
                jobs=chosen.jobs,
                triage=chosen.triage,
                contrast_words=chosen.contrast_words,
                kinds=chosen.kinds,
                extras=_extras(chosen),
                shown=Shown(dicom=chosen.dicom, names=chosen.names),
            )
        case "validate":
            from ich_mil.commands.validate import validate_folder

            out = chosen.out or Path("validations") / chosen.root.resolve().name
            validate_folder(
                chosen.root,
                layout=chosen.layout,
                model=chosen.model,
                out=out,
                jobs=chosen.jobs,
                contrast_words=chosen.contrast_words,
                extras=_extras(chosen),
            )
        case "recalibrate":
            from ich_mil.commands.recalibrate import recalibrate_run

            recalibrate_run(
                chosen.root,
                layout=chosen.layout,
                model=chosen.model,
                out=chosen.out,
                jobs=chosen.jobs,
                contrast_words=chosen.contrast_words,
                extras=_extras(chosen),
            )
        case "ensemble":
            from ich_mil.commands.ensemble import join_runs

            join_runs(chosen.runs, chosen.out, skip_failed=chosen.skip_failed)
        case "triage":
            _triage(chosen)
        case "subtype":
            from ich_mil.commands.subtype import train_kinds

            train_kinds(chosen.folder, kinds=chosen.kinds, model=chosen.model, out=chosen.out)
        case "drift":
            from ich_mil.commands.drift import drift_of

            drift_of(chosen.folder, reference=chosen.reference, rate=chosen.rate)
        case "reports":
            from ich_mil.commands.reports import SEEDS, label_reports
            from ich_mil.reports.read import Columns

            label_reports(
                chosen.source,
                out=chosen.out,
                seeds=chosen.seeds or SEEDS,
                columns=Columns(chosen.report_column, chosen.text_column, chosen.scan_column),
                uncertain=chosen.uncertain,
            )
        case "report":
            _report(chosen)


def _prepare(chosen: argparse.Namespace) -> None:
    from ich_mil.data.layouts.slice_pictures import parse_window
    from ich_mil.data.preparation.explain import explain
    from ich_mil.data.preparation.prepare import prepare

    if chosen.explain is not None:
        say(explain(chosen.out, chosen.explain))
    elif chosen.root is None or chosen.layout is None:
        raise ConfigError("prepare needs a folder and --layout, or --explain SCAN")
    else:
        try:
            window = chosen.window and parse_window(chosen.window, layout=chosen.layout)
        except ValueError as error:
            raise ConfigError(f"--window: {error}") from error
        prepare(
            chosen.layout,
            chosen.root,
            chosen.out,
            jobs=chosen.jobs,
            thickness_mm=chosen.thickness,
            window=window,
            contrast_words=chosen.contrast_words,
        )


def _triage(chosen: argparse.Namespace) -> None:
    from ich_mil.commands.triage import apply_triage, calibrate_triage

    asked = {name: value for name in ("labels", *PROMISE) if (value := getattr(chosen, name)) is not None}
    if chosen.apply is None:
        promise = {"labels": None} | PROMISE | asked
        calibrate_triage(chosen.folder, out=chosen.out or chosen.folder / "triage.json", **promise)
    elif asked:
        useless = ", ".join(f"--{name}" for name in asked)
        raise ConfigError(f"{useless}: for new thresholds alone, --apply decides by those it has")
    else:
        apply_triage(chosen.folder, chosen.apply, chosen.out or chosen.folder / "decisions.csv")


def _report(chosen: argparse.Namespace) -> None:
    if not chosen.folder.is_dir():
        raise ConfigError(f"{chosen.folder}: no such folder; name that of a validated run, or of 'predict'")
    if (chosen.folder / "predictions.json").is_file():
        from ich_mil.commands.pages import Shown, show_folder

        show_folder(chosen.folder, Shown(dicom=chosen.dicom, names=chosen.names))
    elif chosen.dicom or chosen.names:
        raise ConfigError(
            f"{chosen.folder}: --dicom and --names are for predictions; name a folder of 'predict'"
        )
    else:
        from ich_mil.commands.report import report_run

        report_run(chosen.folder)


def _guard(work: Callable[[], None]) -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            work()
        except IchMilError as error:
            told = " ".join(str(error).splitlines())  # names in tables may hold line ends
            print(f"error: {told}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            # re-raised: Python then ends as if killed by SIGINT, which also ends a loop of the shell
            sys.excepthook = _say_stopped
            raise
        except BrokenPipeError:  # the reader of our output has ended, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except (OSError, MemoryError, RuntimeError) as error:
            if not (reason := _of_the_machine(error)):
                raise
            print(f"error: {reason}", file=sys.stderr)
            return 2
    return 0


def _say_stopped(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("stopped", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _of_the_machine(error: Exception) -> str:
    """Message for an error of the machine (memory, disk, permissions); '' for other errors."""
    text = str(error)
    if isinstance(error, BrokenExecutor):
        return (
            "a worker process was killed (out of memory, or by a decoder); run the same command with fewer "
            "--jobs, what is done is kept"
        )
    # matched by text: torch is not imported here, and has no error class for CPU memory
    if "CUDA out of memory" in text:
        return (
            f"the GPU's memory ran out ({text.splitlines()[0]}); end what else runs on it, or set "
            "CUDA_VISIBLE_DEVICES= to use the CPU, and run the same command again"
        )
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
        told = f" ({text.splitlines()[0]})" if text else ""
        return f"memory ran out{told}; use a machine with more, or lower what --jobs and training.workers set"
    full = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
    numbers = (*full, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM)
    if not isinstance(error, OSError) or error.errno not in numbers:
        return ""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{os.strerror(error.errno)}; mend that and run the same command again"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    """Print warnings of `ich_mil` as one line; warnings of libraries are for developers and are dropped."""
    if f"{os.sep}ich_mil{os.sep}" in filename:
        print(f"warning: {message}", file=sys.stderr)
