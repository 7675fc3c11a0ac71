"""The application `ich-mil`, and what its commands share: types of arguments, checks, settings as options."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import CompletionItem, TyperCommand

from ich_mil import __version__
from ich_mil.errors import ConfigError, check_installed

if TYPE_CHECKING:
    from ich_mil.heads.extras import ExtraSources
    from ich_mil.sets.scan_labels import ScanLabels

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context of a command that takes settings as options, in `typer.Context.args`."""


def examples(*lines: str) -> str:
    """The last paragraph of a help page; the first character keeps its lines."""
    return "\n".join(["\b", "examples:", *(f"  {line}" for line in lines)])


app = typer.Typer(
    name="ich-mil",
    help="Intracranial hemorrhage in head CT, with uncertainty.",
    epilog=examples("ich-mil predict /path/to/head_ct", "ich-mil COMMAND --help"),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ich-mil {__version__}")
        raise typer.Exit


def _limit_threads(threads: int | None) -> None:
    """Set the number of threads of OpenMP, also of child processes; torch, imported later, reads it."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)


@app.callback()
def _of_all(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(min=1, callback=_limit_threads, help="Threads of a process; default: one per core."),
    ] = None,
) -> None:
    """Intracranial hemorrhage in head CT, with uncertainty."""


def share(value: float | None) -> float | None:
    """Callback of an option: a number between 0 and 1."""
    if value is not None and not 0 < value < 1:
        raise typer.BadParameter(f"must be a number between 0 and 1, got {value}")
    return value


def _with_dicom(wanted: bool) -> bool:
    if wanted:
        check_installed("highdicom", "dicom", "--dicom")
    return wanted


Studies = Annotated[
    Path, typer.Argument(exists=True, help="Folder or ZIP of one study or several, or a DICOM or NIfTI file.")
]
Predictions = Annotated[Path, typer.Argument(help="The folder of 'predict' or 'validate'.")]
Model = Annotated[Path, typer.Option(metavar="RUN", help="Folder of a run, or headct-base.")]
Jobs = Annotated[int, typer.Option(min=0, help="Worker processes; 0: one per core.")]
ContrastWords = Annotated[
    Path | None, typer.Option(exists=True, metavar="CSV", help="Phrases of the site: columns phrase,meaning.")
]
Prevalence = Annotated[
    float | None,
    typer.Option(
        callback=share,
        metavar="P",
        help="Share of positive scans at the site; default: that in training.",
    ),
]
Dicom = Annotated[
    bool, typer.Option("--dicom", callback=_with_dicom, help="Write DICOM results of predictions too.")
]
Names = Annotated[bool, typer.Option("--names", help="Show names and other DICOM texts on pages.")]
Labels = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, metavar="FILE", help="Table of labels, CSV or Excel."),
]
LabelColumn = Annotated[str, typer.Option(metavar="NAME", help="Its column of labels; default: label.")]
IdColumn = Annotated[
    str, typer.Option(metavar="NAME", help="Its column of scan ids; default: scan, folder, accession, ...")
]
Columns = Annotated[
    list[str],
    typer.Option(
        metavar="OURS=THEIRS",
        help="A column that is called otherwise in a feature file, as bag_name=slide_id; may be repeated.",
    ),
]
Requests = Annotated[
    Path | None,
    typer.Option(help="Multimodal head: CSV scan,text, or a folder of texts, from before the scan."),
]
Reports = Annotated[
    Path | None, typer.Option(help="Multimodal head: the same, of texts that may state the result.")
]
Covariates = Annotated[
    Path | None,
    typer.Option(help="Multimodal head: CSV scan and a column per covariate; 'header': age and sex."),
]


def workers(jobs: int) -> int:
    """Number of worker processes; for 0 the number of cores that this process may use."""
    from joblib import cpu_count

    return jobs or int(cpu_count())


def renamed(columns: Sequence[str]) -> dict[str, str]:
    """Names of columns in a table by our names. `ConfigError`: no pair."""
    pairs = dict(pair.partition("=")[::2] for pair in columns)
    if wrong := [name for name, theirs in pairs.items() if not theirs]:
        raise ConfigError(f"--column: must be OURS=THEIRS, got {wrong[0]!r}")
    return pairs


def feature_columns(columns: Sequence[str], layout: Any) -> dict[str, str]:
    """Names of columns in a feature file by our names. `ConfigError`: no pair, or no column of ours."""
    from ich_mil.network.training.set_settings import check_columns

    pairs = renamed(columns)
    try:
        check_columns(pairs, layout)
    except ValueError as error:
        raise ConfigError(f"--column: {error}") from error
    return pairs


def label_table(labels: Path, label_column: str, id_column: str) -> "ScanLabels":
    """The table of labels, checked without the scans. `DataError`: a fault of it."""
    from ich_mil.sets.scan_labels import LabelColumns, read_scan_labels

    table = read_scan_labels(labels, LabelColumns(id_column=id_column, label_column=label_column))
    table.check()
    return table


def extra_sources(requests: Path | None, reports: Path | None, covariates: Path | None) -> "ExtraSources":
    """Files of the inputs beside the slices. `DataError`: no such file."""
    from ich_mil.heads.extras import ExtraSources

    extras = ExtraSources(requests, reports, covariates)
    extras.check_paths()
    return extras


def check_model(model: Path) -> Path:
    """Check that `model` is the folder of a run, before torch is imported. `ModelError`: it is none."""
    from ich_mil.model.folder import read_run, run_folder

    read_run(run_folder(model))
    return model


def check_predictions(folder: Path) -> Path:
    """Check that `folder` is one of predictions. `ConfigError`: it is none."""
    from ich_mil.model.folder import PREDICTIONS

    if not (folder / PREDICTIONS).is_file():
        raise ConfigError(f"{folder}: holds no {PREDICTIONS}; name a folder of 'validate' or 'predict'")
    return folder


_SUFFIX = re.compile(r"\.(zip|dcm|nii|nii\.gz)$", re.IGNORECASE)
"""Suffix of an input that the folder of its results does without."""


def default_out(kind: str, root: Path) -> Path:
    """Default folder of results of `root`: <kind>/<name of root>, beside `root` where it would lie in it."""
    whole = root.resolve()
    out = Path(kind) / (_SUFFIX.sub("", whole.name) or "root")
    return whole.parent / out if out.resolve().is_relative_to(whole) else out


def check_out(out: Path, root: Path) -> Path:
    """Check that `out` is outside of `root` and no run. `ConfigError`: it is not."""
    from ich_mil.files import check_apart
    from ich_mil.model.folder import check_no_run

    check_apart(out, root)
    check_no_run(out)
    return out


def under_torchrun() -> bool:
    """Whether this process was started by torchrun."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def with_settings(kind: str) -> type[TyperCommand]:
    """Class of a command whose help and completion have the settings of `ich_mil.config.<kind>`."""

    class SettingsCommand(TyperCommand):
        def _lines(self) -> list[str]:
            from ich_mil import config
            from ich_mil.settings import help_lines

            return help_lines(getattr(config, kind))

        def format_options(self, ctx: Any, formatter: Any) -> None:
            super().format_options(ctx, formatter)
            with formatter.section("Settings, here or in the file"):
                formatter.write_dl([tuple(line.strip().split(": ", 1)) for line in self._lines()])

        def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
            names = (line.strip().split(":")[0] for line in self._lines())
            matches = [CompletionItem(name) for name in names if incomplete and name.startswith(incomplete)]
            return [*super().shell_complete(ctx, incomplete), *matches]

    return SettingsCommand
