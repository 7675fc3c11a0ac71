"""`ich-mil validate`, and the arguments of a labelled set that `recalibrate` has too."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ich_mil import arguments as arg
from ich_mil.errors import ConfigError
from ich_mil.sets.layouts.names import SiteLayout

if TYPE_CHECKING:
    from ich_mil.model.site.validate import Site
    from ich_mil.sets.scan_labels import ScanLabels

Labelled = Annotated[
    Path, typer.Argument(help="Folder with the DICOM files, or a feature file; {member}: of each member.")
]


def labelled_set(
    root: Path,
    layout: SiteLayout,
    jobs: int,
    contrast_words: Path | None,
    columns: list[str],
    extras: tuple[Path | None, Path | None, Path | None],
    labels: "ScanLabels | None",
) -> "Site":
    """The labelled set of these arguments. `ConfigError` or `DataError`: no such file or column."""
    names, sources = arg.feature_columns(columns, layout), arg.extra_sources(*extras)

    from ich_mil.model.site.validate import Site

    return Site(root, layout, arg.workers(jobs), contrast_words, sources, names, labels)


def site_labels(
    root: Path, layout: SiteLayout, labels: Path | None, label_column: str, id_column: str
) -> "ScanLabels | None":
    """The table of labels of a folder, read before anything else; None for other layouts and that in a ZIP.

    `ConfigError` or `DataError`: no such file or folder, options of another layout, a fault of the table.
    """
    if not Path(str(root).replace("{member}", "0")).exists():
        raise ConfigError(f"{root}: no such file or folder; correct the path")
    named = labels is not None or label_column or id_column
    if layout != "folder" and named:
        raise ConfigError(
            "--labels and its columns need --layout folder; the other layouts have labels of their own"
        )
    if layout != "folder" or (root.is_file() and not named):
        return None
    if labels is None:
        if root.is_file():
            raise ConfigError("--label-column and --id-column need --labels FILE where ROOT is no folder")
        from ich_mil.sets.scan_labels import find_labels

        labels = find_labels(root)
    return arg.label_table(labels, label_column, id_column)


@arg.app.command(
    epilog=arg.examples(
        "ich-mil validate /data/site --layout folder --model headct-base",
        "ich-mil validate site --layout folder --model headct-base --labels list.xlsx --label-column ICH",
    )
)
def validate(
    root: Labelled,
    layout: Annotated[SiteLayout, typer.Option()],
    model: arg.Model,
    out: Annotated[Path | None, typer.Option(help="Default: validations/<name of the folder>.")] = None,
    labels: arg.Labels = None,
    label_column: arg.LabelColumn = "",
    id_column: arg.IdColumn = "",
    column: arg.Columns = [],  # noqa: B006  Typer copies it
    prevalence: arg.Prevalence = None,
    jobs: arg.Jobs = 0,
    contrast_words: arg.ContrastWords = None,
    requests: arg.Requests = None,
    reports: arg.Reports = None,
    covariates: arg.Covariates = None,
) -> None:
    """Measure a model on a labelled set it was not trained on."""
    table = site_labels(root, layout, labels, label_column, id_column)
    out = arg.check_out(out or arg.default_out("validations", root), root)
    arg.check_model(model)
    site = labelled_set(root, layout, jobs, contrast_words, column, (requests, reports, covariates), table)

    from ich_mil.output.run_report import validate_folder

    validate_folder(site, model=model, out=out, prevalence=prevalence)
