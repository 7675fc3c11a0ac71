"""`ich-mil reports`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ich_mil.arguments import app, examples, renamed


@app.command(epilog=examples("ich-mil reports reports.csv --out labels --column text=findings"))
def reports(
    source: Annotated[
        Path, typer.Argument(exists=True, metavar="REPORTS", help="CSV, Excel, or a folder of reports.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the results and corrections.csv.")],
    seeds: Annotated[
        list[str], typer.Option(metavar="WORD", help="Known key term for blood; may be repeated.")
    ] = ["hemorrhage", "hematoma"],  # noqa: B006  Typer copies it
    column: Annotated[
        list[str],
        typer.Option(
            metavar="OURS=THEIRS",
            help="A column of a table (report, text or scan) that is called otherwise; may be repeated.",
        ),
    ] = [],  # noqa: B006  Typer copies it
    uncertain: Annotated[
        Literal["leave-out", "positive", "negative"],
        typer.Option(help="Label of scans with uncertain reports."),
    ] = "leave-out",
) -> None:
    """Extract scan labels, evidence and key terms from radiology reports."""
    from ich_mil.output.label_reports import label_reports

    label_reports(source, out=out, seeds=seeds, columns=renamed(column), uncertain=uncertain)
