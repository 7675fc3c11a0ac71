"""`ich-mil labels-template`."""

from pathlib import Path
from typing import Annotated

import typer

from ich_mil.arguments import app, examples


@app.command(epilog=examples("ich-mil labels-template /data/site"))
def labels_template(
    root: Annotated[
        Path,
        typer.Argument(exists=True, help="Folder with the DICOM files; labels.csv is written into it."),
    ],
) -> None:
    """Write the table of labels to fill in."""
    from ich_mil.commands.steps.labels_template import write_template

    write_template(root)
