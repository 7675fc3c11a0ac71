"""`ich-mil prepare`."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ich_mil.arguments import ContrastWords, Jobs, app, examples, workers
from ich_mil.errors import ConfigError
from ich_mil.progress import say
from ich_mil.sets.layouts.names import Layout


@app.command(epilog=examples("ich-mil prepare /data/rsna --layout rsna --out data/prepared"))
def prepare(
    out: Annotated[Path, typer.Option(help="Folder of the prepared set.")],
    root: Annotated[Path | None, typer.Argument(exists=True, help="Folder with the DICOM files.")] = None,
    layout: Annotated[Layout | None, typer.Option()] = None,
    window: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LEVEL WIDTH", help="Window of 8-bit pictures in HU (layout slices)."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="SCAN", help="Explain how SCAN was prepared, then exit.")
    ] = None,
    jobs: Jobs = 0,
    contrast_words: ContrastWords = None,
) -> None:
    """Convert DICOM files to a prepared set of HU volumes."""
    if explain is not None:
        from ich_mil.sets.preparation.explain import explain as explain_scan

        say(*explain_scan(out, explain).split("\n"))
        return
    if root is None or layout is None:
        raise ConfigError("prepare needs a folder and --layout, or --explain SCAN")

    from ich_mil.sets.layouts.slice_pictures import parse_window
    from ich_mil.sets.preparation.prepare import prepare as prepare_set

    try:
        shown = window and parse_window(window, layout=layout)
    except ValueError as error:
        raise ConfigError(f"--window: {error}") from error
    prepare_set(layout, root, out, window=shown, jobs=workers(jobs), contrast_words=contrast_words)
    say(f"written: {out / 'ledger.csv'}, {out / 'slices.csv'}")
    say(f"next: ich-mil prepare --explain SCAN --out {quote(str(out))}")
