"""`ich-mil validate`, and the arguments of a labelled set that `recalibrate` has too."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ich_mil import arguments as arg
from ich_mil.errors import ConfigError
from ich_mil.sets.layouts.names import SiteLayout

if TYPE_CHECKING:
    from ich_mil.model.site.validate import Site

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
) -> "Site":
    """The labelled set of these arguments. `ConfigError` or `DataError`: no such file or column."""
    if not Path(str(root).replace("{member}", "0")).exists():
        raise ConfigError(f"{root}: no such file or folder; correct the path")
    names, sources = arg.renamed(columns, layout), arg.extra_sources(*extras)

    from ich_mil.model.site.validate import Site

    return Site(root, layout, arg.workers(jobs), contrast_words, sources, names)


@arg.app.command(epilog=arg.examples("ich-mil validate /data/site --layout folder --model headct-base"))
def validate(
    root: Labelled,
    layout: Annotated[SiteLayout, typer.Option()],
    model: arg.Model,
    out: Annotated[Path | None, typer.Option(help="Default: validations/<name of the folder>.")] = None,
    column: arg.Columns = [],  # noqa: B006  Typer copies it
    prevalence: arg.Prevalence = None,
    jobs: arg.Jobs = 0,
    contrast_words: arg.ContrastWords = None,
    requests: arg.Requests = None,
    reports: arg.Reports = None,
    covariates: arg.Covariates = None,
) -> None:
    """Measure a model on a labelled set it was not trained on."""
    out = arg.check_out(out or Path("validations") / root.resolve().name, root)
    arg.check_model(model)
    site = labelled_set(root, layout, jobs, contrast_words, column, (requests, reports, covariates))

    from ich_mil.output.run_report import validate_folder

    validate_folder(site, model=model, out=out, prevalence=prevalence)
