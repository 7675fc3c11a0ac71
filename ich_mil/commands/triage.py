"""`ich-mil triage`."""

from pathlib import Path
from typing import Annotated

import typer

from ich_mil.arguments import (
    IdColumn,
    LabelColumn,
    Predictions,
    app,
    check_predictions,
    examples,
    label_table,
    share,
)
from ich_mil.errors import ConfigError


@app.command(
    epilog=examples(
        "ich-mil triage validations/site --sensitivity 0.98",
        "ich-mil triage predictions/new --apply validations/site/triage.json",
    )
)
def triage(
    folder: Predictions,
    apply: Annotated[Path | None, typer.Option(exists=True, help="Apply these thresholds.")] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, metavar="FILE", help="Table of labels; default: stored labels."
        ),
    ] = None,
    label_column: LabelColumn = "",
    id_column: IdColumn = "",
    sensitivity: Annotated[float, typer.Option(callback=share, help="Guaranteed.")] = 0.95,
    specificity: Annotated[float, typer.Option(callback=share, help="Guaranteed.")] = 0.95,
    confidence: Annotated[float, typer.Option(callback=share, help="Confidence of each guarantee.")] = 0.9,
    out: Annotated[
        Path | None, typer.Option(help="Default: triage.json or decisions.csv in the folder.")
    ] = None,
) -> None:
    """Compute or apply thresholds that guarantee a sensitivity."""
    check_predictions(folder)
    guarantee = (sensitivity, specificity, confidence)
    if apply is not None and (labels is not None or guarantee != (0.95, 0.95, 0.9)):
        raise ConfigError("--apply uses stored thresholds; leave out --labels and the options of a guarantee")
    if labels is None and (label_column or id_column):
        raise ConfigError("--label-column and --id-column need --labels FILE")
    table = None if labels is None else label_table(labels, label_column, id_column)

    from ich_mil.model.site.triage import apply_triage, calibrate_triage

    if apply is not None:
        apply_triage(folder, apply, out or folder / "decisions.csv")
        return
    calibrate_triage(
        folder,
        table,
        out or folder / "triage.json",
        sensitivity=sensitivity,
        specificity=specificity,
        confidence=confidence,
    )
