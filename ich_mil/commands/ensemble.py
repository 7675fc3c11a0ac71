"""`ich-mil ensemble`."""

from pathlib import Path
from typing import Annotated

import typer

from ich_mil.arguments import app, check_model, examples


@app.command(epilog=examples("ich-mil ensemble checkpoints/a checkpoints/b --out checkpoints/joined"))
def ensemble(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option(help="Folder of the new model.")],
) -> None:
    """Join finished runs to one model with pooled predictions."""
    for run in runs:
        check_model(run)

    from ich_mil.model.training.ensemble import join_runs

    join_runs(runs, out)
