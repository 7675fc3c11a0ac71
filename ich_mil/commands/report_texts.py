"""`ich-mil reports`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ich_mil.arguments import app, examples


@app.command(epilog=examples("ich-mil reports reports.csv --out labels --text-column findings"))
def reports(
    source: Annotated[
        Path, typer.Argument(exists=True, metavar="REPORTS", help="CSV, Excel, or a folder of reports.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the results and corrections.csv.")],
    seeds: Annotated[
        list[str], typer.Option(metavar="WORD", help="Known key term for blood; may be repeated.")
    ] = ["hemorrhage", "hematoma"],  # noqa: B006  Typer copies it
    report_column: Annotated[str, typer.Option(help="Column of a table with ids.")] = "report",
    text_column: Annotated[str, typer.Option(help="Column with texts.")] = "text",
    scan_column: Annotated[str, typer.Option(help="Column with scans; where missing, the ids are.")] = "scan",
    uncertain: Annotated[
        Literal["leave-out", "positive", "negative"],
        typer.Option(help="Label of scans with uncertain reports."),
    ] = "leave-out",
) -> None:
    """Extract scan labels, evidence and key terms from radiology reports."""
    from ich_mil.output.label_reports import label_reports
    from ich_mil.radiology_text.read import Columns

    columns = Columns(report_column, text_column, scan_column)
    label_reports(source, out=out, seeds=seeds, columns=columns, uncertain=uncertain)
