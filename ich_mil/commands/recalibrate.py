"""`ich-mil recalibrate`."""

from pathlib import Path
from typing import Annotated

import typer

from ich_mil import arguments as arg
from ich_mil.commands.validate import Labelled, labelled_set, site_labels
from ich_mil.sets.layouts.names import SiteLayout


@arg.app.command(
    epilog=arg.examples(
        "ich-mil recalibrate /data/site --layout folder --model checkpoints/a --out checkpoints/b"
    )
)
def recalibrate(
    root: Labelled,
    layout: Annotated[SiteLayout, typer.Option()],
    model: arg.Model,
    out: Annotated[Path, typer.Option(help="Folder of the new run.")],
    labels: arg.Labels = None,
    label_column: arg.LabelColumn = "",
    id_column: arg.IdColumn = "",
    column: arg.Columns = [],  # noqa: B006  Typer copies it
    jobs: arg.Jobs = 0,
    contrast_words: arg.ContrastWords = None,
    requests: arg.Requests = None,
    reports: arg.Reports = None,
    covariates: arg.Covariates = None,
) -> None:
    """Recalibrate a model on labelled scans of a site."""
    from ich_mil.files import check_apart

    table = site_labels(root, layout, labels, label_column, id_column)
    check_apart(out, root)
    arg.check_model(model)
    site = labelled_set(root, layout, jobs, contrast_words, column, (requests, reports, covariates), table)

    from ich_mil.model.site.recalibrate import recalibrate_run

    recalibrate_run(site, model=model, out=out)
