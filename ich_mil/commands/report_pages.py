"""`ich-mil report`."""

from pathlib import Path
from typing import Annotated

import typer

from ich_mil.arguments import Dicom, Names, app, examples
from ich_mil.errors import ConfigError


@app.command(epilog=examples("ich-mil report checkpoints/demo", "ich-mil report predictions/new --dicom"))
def report(
    folder: Annotated[Path, typer.Argument(exists=True, help="Folder of a validated run, or of 'predict'.")],
    dicom: Dicom = False,
    names: Names = False,
    scan: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Only this scan: id, folder or printed name; may be repeated."),
    ] = [],  # noqa: B006  Typer copies it
) -> None:
    """Rewrite the report of a run, or the pages of predictions."""
    from ich_mil.model.folder import PREDICTIONS, check_report

    if (folder / PREDICTIONS).is_file():
        from ich_mil.output.study_pages import Shown, show_folder

        show_folder(folder, Shown(dicom=dicom, names=names), scan)
        return
    if dicom or names or scan:
        raise ConfigError(
            f"{folder}: --dicom, --names and --scan are for predictions; name a folder of 'predict'"
        )
    check_report(folder)

    from ich_mil.output.run_report import report_run

    report_run(folder)
