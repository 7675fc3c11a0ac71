"""Arguments of the commands of `ich-mil`.

Commands with a configuration (`train`, `grid`, `reproduce`, `serve`) read their options as its fields
(`ich_mil.settings`) and are only listed here.
"""

import argparse
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ich_mil.dicom.series import AVERAGE_TO_MM
from ich_mil.progress import printable
from ich_mil.runs.folder import BUNDLED

LABELLED = ("rsna", "cq500", "folder")
GUARANTEE: dict[str, Any] = {
    "sensitivity": 0.95,
    "specificity": 0.95,
    "confidence": 0.9,
    "method": "risk_control",
}
"""Defaults of `triage`."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print usage and error: a pattern such as * can name any file."""
        super().error(printable(message))


def make_parser() -> argparse.ArgumentParser:
    """Parser of all commands; the result has the name of the command as `command`."""
    parser = _Parser(prog="ich-mil", description="Intracranial hemorrhage in head CT, with uncertainty.")
    commands = parser.add_subparsers(dest="command", required=True)

    prepare = commands.add_parser("prepare", help="convert DICOM files to a prepared set of HU volumes")
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

    for name, what in (
        ("train", "prepare, train the CNN and fit the head; see 'ich-mil train --help'"),
        ("grid", "fit a grid of heads to one feature table; see 'ich-mil grid --help'"),
        ("reproduce", "run a benchmark protocol, given by name or file, and write its report"),
        ("serve", "run a DICOM node that predicts received studies; see 'ich-mil serve --help'"),
    ):
        commands.add_parser(name, help=what)

    predict = commands.add_parser("predict", help="predict new studies: probabilities, pages, DICOM results")
    predict.add_argument("root", type=Path, help="a study, or a folder with several")
    predict.add_argument("--model", type=Path, default=BUNDLED, help="a run; default: bundled %(default)s")
    predict.add_argument("--out", type=Path, help="default: predictions/<name of the folder>")
    predict.add_argument(
        "--triage", type=Path, metavar="T.json", help="apply the thresholds of 'ich-mil triage'"
    )
    predict.add_argument(
        "--kinds", type=Path, metavar="DIR", help="add the kinds of bleed of 'ich-mil subtype'"
    )

    validate = commands.add_parser("validate", help="measure a model on a labelled set it was not trained on")
    validate.add_argument("--out", type=Path, help="default: validations/<name of the folder>")
    recalibrate = commands.add_parser("recalibrate", help="recalibrate a model on labelled scans of a site")
    recalibrate.add_argument("--out", type=Path, required=True, help="folder of the new run")
    for labelled in (validate, recalibrate):
        labelled.add_argument("root", type=Path, help="folder with the DICOM files, or a feature CSV")
        labelled.add_argument("--layout", choices=(*LABELLED, "features"), required=True)
        labelled.add_argument("--model", type=Path, required=True, help="folder of a run")

    ensemble = commands.add_parser("ensemble", help="join finished runs to one model with pooled predictions")
    ensemble.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    ensemble.add_argument("--out", type=Path, required=True, help="folder of the new model")
    ensemble.add_argument("--skip-failed", action="store_true", help="skip runs that cannot be loaded")

    triage = commands.add_parser("triage", help="compute or apply thresholds that guarantee a sensitivity")
    triage.add_argument("--apply", type=Path, metavar="TRIAGE", help="apply these thresholds")
    triage.add_argument("--labels", type=Path, help="CSV scan,label[,patient]; default: stored labels")
    for name in ("sensitivity", "specificity", "confidence"):
        triage.add_argument(f"--{name}", type=_share, help=f"guaranteed (default {GUARANTEE[name]})")
    triage.add_argument(
        "--method", choices=("risk_control", "conformal"), help=f"default: {GUARANTEE['method']}"
    )
    triage.add_argument("--out", type=Path, help="default: triage.json or decisions.csv in the folder")

    subtype = commands.add_parser("subtype", help="fit models of the kinds of bleed to predicted scans")
    subtype.add_argument(
        "--kinds", type=Path, required=True, help="CSV: column scan, and a 0/1 column per kind"
    )
    subtype.add_argument("--model", type=Path, default=BUNDLED, help="the model that predicted them")
    subtype.add_argument("--out", type=Path, required=True, help="folder to write, for 'predict --kinds'")

    drift = commands.add_parser("drift", help="test whether predicted scans differ from the training scans")
    drift.add_argument(
        "--reference", type=Path, required=True, metavar="RUN", help="the model that predicted them"
    )
    drift.add_argument(
        "--rate", type=_share, default=0.05, help="largest false-alarm rate (default %(default)s)"
    )
    for predicted in (triage, subtype, drift):
        predicted.add_argument("folder", type=Path, help="predictions: the folder of 'predict' or 'validate'")

    report = commands.add_parser("report", help="rewrite the report of a run, or the pages of predictions")
    report.add_argument("folder", type=Path, help="folder of a validated run, or of 'predict'")

    reports = commands.add_parser(
        "reports", help="extract scan labels, evidence and key terms from radiology reports"
    )
    reports.add_argument("source", type=Path, metavar="REPORTS", help="CSV, Excel, or a folder of reports")
    reports.add_argument(
        "--seeds", nargs="+", metavar="WORD", help="known key terms for blood (default: hemorrhage hematoma)"
    )
    reports.add_argument("--out", type=Path, required=True, help="folder of the results and corrections.csv")
    for name, what in (("report", "ids"), ("text", "texts"), ("scan", "scans; where missing, the ids are")):
        reports.add_argument(f"--{name}-column", default=name, help=f"column of a table with {what}")
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


def _millimetres(text: str) -> float:
    return _number(text, "of mm from 0 up", lambda value: 0 <= value < math.inf)


def _share(text: str) -> float:
    return _number(text, "between 0 and 1", lambda value: 0 < value < 1)


def _number(text: str, allowed: str, fits: Callable[[float], bool]) -> float:
    with suppress(ValueError):
        if fits(value := float(text)):
            return value
    raise argparse.ArgumentTypeError(f"must be a number {allowed}, got {text!r}")
