"""Arguments of the commands of `ich-mil`.

Commands with a configuration (`WITH_SETTINGS`) read their options as its fields (`ich_mil.settings`) and are
only listed here.
"""

import argparse
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ich_mil import __version__
from ich_mil.dicom.series import AVERAGE_TO_MM
from ich_mil.errors import ConfigError
from ich_mil.progress import printable
from ich_mil.runs.folder import BUNDLED
from ich_mil.settings import did_you_mean, settings_parser

LABELLED = ("rsna", "cq500", "folder")
GUARANTEE: dict[str, Any] = {
    "sensitivity": 0.95,
    "specificity": 0.95,
    "confidence": 0.9,
    "method": "risk_control",
}
"""Defaults of `triage`."""
WITH_SETTINGS = {
    "run": "prepare, train, validate and report, by a configuration file or the name of a shipped one",
    "train": "prepare, train the CNN and fit the head",
    "grid": "fit a grid of heads to one feature table",
    "serve": "run a DICOM node that predicts received studies",
}
"""Commands with a configuration, and their help."""
EXAMPLES = {
    "": "ich-mil predict /path/to/head_ct\nich-mil COMMAND --help",
    "prepare": "ich-mil prepare /data/rsna --layout rsna --out data/prepared",
    "labels-template": "ich-mil labels-template /data/site",
    "run": "ich-mil run demo\nich-mil run my.yaml --head.beta 1.5 --out checkpoints/other\n"
    "ich-mil run my.yaml --resume",
    "train": "ich-mil train --config my.yaml --head.beta 1.5 --out checkpoints/other\n"
    "ich-mil train --config my.yaml --resume",
    "grid": "ich-mil grid --config grid_features --jobs 2",
    "serve": "ich-mil serve --config node.yaml",
    "predict": "ich-mil predict /path/to/head_ct\nich-mil predict export --model checkpoints/demo --dicom",
    "validate": "ich-mil validate /data/site --layout folder --model headct-base",
    "recalibrate": "ich-mil recalibrate /data/site --layout folder --model checkpoints/a --out checkpoints/b",
    "ensemble": "ich-mil ensemble checkpoints/a checkpoints/b --out checkpoints/joined",
    "triage": "ich-mil triage validations/site --sensitivity 0.98\n"
    "ich-mil triage predictions/new --apply validations/site/triage.json",
    "subtype": "ich-mil subtype validations/site --kinds kinds.csv --out checkpoints/kinds",
    "drift": "ich-mil drift predictions/new --reference headct-base",
    "report": "ich-mil report checkpoints/demo",
    "reports": "ich-mil reports reports.csv --out labels --text-column findings",
}
"""Command lines shown at the end of the help of a command; '' is `ich-mil` itself."""


def examples(command: str) -> str:
    """The last paragraph of the help of a command."""
    lines = "\n".join(f"  {line}" for line in EXAMPLES[command].splitlines())
    return f"examples:\n{lines}"


class _Parser(argparse.ArgumentParser):
    """Parser that suggests the closest command or option for a mistyped one."""

    words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        self.words = list(args or ())
        given, rest = super().parse_known_args(args, namespace)
        if rest:  # a command's own options are known here, not in the parser of all commands
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return given, rest

    def error(self, message: str) -> NoReturn:
        if choice := re.search(r"invalid choice: '(.*?)' \(", message):
            known = [str(one) for action in self._actions for one in action.choices or ()]
            message += did_you_mean(choice[1], known)
        else:
            options = [one for one in self._option_string_actions if one.startswith("--")]
            for word in (word.split("=")[0] for word in self.words if word.startswith("--")):
                if not any(one.startswith(word) for one in options) and (near := did_you_mean(word, options)):
                    message += f"; {word}{near}"
        super().error(printable(message))  # a pattern such as * can name any file


class _Completion(argparse.Action):
    """Print a completion script, with the settings of the commands that have a configuration, and exit."""

    def __call__(self, parser: Any, _: Any, shell: Any, option: Any = None) -> None:
        try:
            import shtab
        except ImportError as error:
            raise ConfigError("completion needs shtab: pip install 'ich-mil[completion]'") from error
        from ich_mil.config import GridConfig, RunConfig
        from ich_mil.serve.settings import ServeSettings

        kinds = {"run": RunConfig, "train": RunConfig, "grid": GridConfig}
        kinds |= {"serve": ServeSettings}
        commands: dict[str, Any] = next(one.choices for one in parser._actions if one.dest == "command")
        commands |= {name: settings_parser(kind, program=f"ich-mil {name}") for name, kind in kinds.items()}
        for action in (one for command in commands.values() for one in command._actions):
            if action.type is Path or action.dest == "config":
                action.complete = shtab.FILE
        print(shtab.complete(parser, shell))
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """Parser of all commands; the result has the name of the command as `command`."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="ich-mil",
        description="Intracranial hemorrhage in head CT, with uncertainty.",
        epilog=examples(""),
        formatter_class=plain,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        choices=("bash", "zsh", "tcsh"),
        default=argparse.SUPPRESS,
        help="print the completion script of a shell, then exit",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, *, help: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=help, description=help, epilog=examples(name), formatter_class=plain
        )

    prepare = command("prepare", help="convert DICOM files to a prepared set of HU volumes")
    prepare.add_argument("root", type=Path, nargs="?", help="folder with the DICOM files")
    prepare.add_argument("--layout", choices=(*LABELLED, "slices", "unlabelled"))
    prepare.add_argument("--out", type=Path, required=True, help="folder of the prepared set")
    prepare.add_argument(
        "--thickness",
        type=_millimetres,
        default=AVERAGE_TO_MM,
        help="slice thickness in mm to average thin slices to (default %(default)s); 0: no averaging",
    )
    prepare.add_argument(
        "--window",
        nargs=2,
        type=float,
        metavar=("LEVEL", "WIDTH"),
        help="window of 8-bit pictures in HU (layout slices)",
    )
    prepare.add_argument("--explain", metavar="SCAN", help="explain how SCAN was prepared, then exit")

    template = command("labels-template", help="write the table of labels to fill in")
    template.add_argument(
        "root", type=Path, help="folder with the DICOM files; labels.csv is written into it"
    )

    for name, what in WITH_SETTINGS.items():
        command(name, help=what)

    predict = command("predict", help="predict new studies: probabilities, pages, DICOM results")
    predict.add_argument("root", type=Path, help="a study, or a folder with several")
    predict.add_argument("--model", type=Path, default=BUNDLED, help="a run; default: bundled %(default)s")
    predict.add_argument("--out", type=Path, help="default: predictions/<name of the folder>")
    predict.add_argument(
        "--triage", type=Path, metavar="T.json", help="apply the thresholds of 'ich-mil triage'"
    )
    predict.add_argument(
        "--kinds", type=Path, metavar="DIR", help="add the kinds of bleed of 'ich-mil subtype'"
    )

    validate = command("validate", help="measure a model on a labelled set it was not trained on")
    validate.add_argument("--out", type=Path, help="default: validations/<name of the folder>")
    recalibrate = command("recalibrate", help="recalibrate a model on labelled scans of a site")
    recalibrate.add_argument("--out", type=Path, required=True, help="folder of the new run")
    for labelled in (validate, recalibrate):
        labelled.add_argument("root", type=Path, help="folder with the DICOM files, or a feature file")
        labelled.add_argument("--layout", choices=(*LABELLED, "features"), required=True)
        labelled.add_argument("--model", type=Path, required=True, help="folder of a run")
        labelled.add_argument(
            "--column",
            dest="columns",
            type=_column,
            action="append",
            default=[],
            metavar="OURS=THEIRS",
            help="a column that is called otherwise in a feature file: bag_name=slide_id; may be repeated",
        )

    ensemble = command("ensemble", help="join finished runs to one model with pooled predictions")
    ensemble.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    ensemble.add_argument("--out", type=Path, required=True, help="folder of the new model")
    ensemble.add_argument("--skip-failed", action="store_true", help="skip runs that cannot be loaded")

    triage = command("triage", help="compute or apply thresholds that guarantee a sensitivity")
    triage.add_argument("--apply", type=Path, metavar="TRIAGE", help="apply these thresholds")
    triage.add_argument("--labels", type=Path, help="table of labels; default: stored labels")
    for name in ("sensitivity", "specificity", "confidence"):
        triage.add_argument(f"--{name}", type=_share, help=f"guaranteed (default {GUARANTEE[name]})")
    triage.add_argument(
        "--method", choices=("risk_control", "conformal"), help=f"default: {GUARANTEE['method']}"
    )
    triage.add_argument("--out", type=Path, help="default: triage.json or decisions.csv in the folder")

    subtype = command("subtype", help="fit models of the kinds of bleed to predicted scans")
    subtype.add_argument(
        "--kinds", type=Path, required=True, help="CSV: column scan, and a 0/1 column per kind"
    )
    subtype.add_argument(
        "--model", type=Path, default=BUNDLED, help="the model that predicted them (default %(default)s)"
    )
    subtype.add_argument("--out", type=Path, required=True, help="folder to write, for 'predict --kinds'")

    drift = command("drift", help="test whether predicted scans differ from the training scans")
    drift.add_argument(
        "--reference", type=Path, required=True, metavar="RUN", help="the model that predicted them"
    )
    drift.add_argument(
        "--rate", type=_share, default=0.05, help="largest false-alarm rate (default %(default)s)"
    )
    for predicted in (triage, subtype, drift):
        predicted.add_argument("folder", type=Path, help="predictions: the folder of 'predict' or 'validate'")

    report = command("report", help="rewrite the report of a run, or the pages of predictions")
    report.add_argument("folder", type=Path, help="folder of a validated run, or of 'predict'")

    reports = command("reports", help="extract scan labels, evidence and key terms from radiology reports")
    reports.add_argument("source", type=Path, metavar="REPORTS", help="CSV, Excel, or a folder of reports")
    reports.add_argument(
        "--seeds", nargs="+", metavar="WORD", help="known key terms for blood (default: hemorrhage hematoma)"
    )
    reports.add_argument("--out", type=Path, required=True, help="folder of the results and corrections.csv")
    for name, what in (("report", "ids"), ("text", "texts"), ("scan", "scans; where missing, the ids are")):
        reports.add_argument(
            f"--{name}-column", default=name, help=f"column of a table with {what} (default %(default)s)"
        )
    reports.add_argument(
        "--uncertain",
        choices=("leave-out", "positive", "negative"),
        default="leave-out",
        help="label of scans with uncertain reports (default %(default)s)",
    )

    for shows in (predict, report):
        shows.add_argument("--dicom", action="store_true", help="write DICOM results of predictions too")
        shows.add_argument("--names", action="store_true", help="show names and other DICOM texts on pages")
    for reads in (prepare, predict, validate, recalibrate):
        reads.add_argument(
            "--jobs", type=_jobs, default="0", help="worker processes; 0 (default): one per core"
        )
        reads.add_argument(
            "--contrast-words", type=Path, metavar="CSV", help="phrases of the site: columns phrase,meaning"
        )
    for takes in (predict, validate, recalibrate):
        own = takes.add_argument_group("inputs beside the slices, of a model with head.family multimodal")
        own.add_argument(
            "--requests", type=Path, help="CSV scan,text, or a folder of texts from before the scan"
        )
        own.add_argument("--reports", type=Path, help="the same, of texts that may state the result")
        own.add_argument(
            "--covariates", type=Path, help="CSV: scan, and a column per covariate; header: age and sex"
        )
    return parser


def _jobs(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 up, got {text!r}")
    from joblib import cpu_count

    return int(text) or cpu_count()


def _column(text: str) -> tuple[str, str]:
    ours, equal, theirs = text.partition("=")
    if not (equal and theirs):
        raise argparse.ArgumentTypeError(f"must be OURS=THEIRS, got {text!r}")
    return ours, theirs


def _millimetres(text: str) -> float:
    return _number(text, "of mm from 0 up", lambda value: 0 <= value < math.inf)


def _share(text: str) -> float:
    return _number(text, "between 0 and 1", lambda value: 0 < value < 1)


def _number(text: str, allowed: str, fits: Callable[[float], bool]) -> float:
    with suppress(ValueError):
        if fits(value := float(text)):
            return value
    raise argparse.ArgumentTypeError(f"must be a number {allowed}, got {text!r}")
