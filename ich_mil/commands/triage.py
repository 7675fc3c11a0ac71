"""`ich-mil triage`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ich_mil.arguments import Predictions, app, check_predictions, examples, share
from ich_mil.errors import ConfigError

GUARANTEE = {"sensitivity": 0.95, "specificity": 0.95, "confidence": 0.9, "method": "risk_control"}
"""Defaults."""


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
        Path | None, typer.Option(exists=True, help="Table of labels; default: stored labels.")
    ] = None,
    sensitivity: Annotated[
        float | None, typer.Option(callback=share, help="Guaranteed; default 0.95.")
    ] = None,
    specificity: Annotated[
        float | None, typer.Option(callback=share, help="Guaranteed; default 0.95.")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(callback=share, help="Of each guarantee; default 0.9.")
    ] = None,
    method: Annotated[
        Literal["risk_control", "conformal"] | None, typer.Option(help="Default: risk_control.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Default: triage.json or decisions.csv in the folder.")
    ] = None,
) -> None:
    """Compute or apply thresholds that guarantee a sensitivity."""
    check_predictions(folder)
    options = {
        "labels": labels,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "confidence": confidence,
        "method": method,
    }
    asked = {name: value for name, value in options.items() if value is not None}
    if apply is not None and asked:
        useless = ", ".join(f"--{name}" for name in asked)
        raise ConfigError(
            f"{useless}: for new thresholds; leave out with --apply, which uses stored thresholds"
        )

    from ich_mil.commands.steps.triage import apply_triage, calibrate_triage

    if apply is None:
        calibrate_triage(folder, out=out or folder / "triage.json", **{"labels": None} | GUARANTEE | asked)
    else:
        apply_triage(folder, apply, out or folder / "decisions.csv")
