"""`ich-mil subtype`."""

from pathlib import Path
from typing import Annotated

import typer

from ich_mil.arguments import Model, Predictions, app, check_model, check_predictions, examples


@app.command(epilog=examples("ich-mil subtype validations/site --kinds kinds.csv --out checkpoints/kinds"))
def subtype(
    folder: Predictions,
    kinds: Annotated[
        Path, typer.Option(exists=True, help="CSV: column scan, and a 0/1 column per kind of bleed.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write, for 'predict --kinds'.")],
    model: Model = Path("headct-base"),
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels", help="Several kernels by MCMC (minutes), compared with logistic regression."
        ),
    ] = False,
) -> None:
    """Fit models of the kinds of bleed to predicted scans."""
    check_predictions(folder)
    check_model(model)

    from ich_mil.model.site.subtype import train_kinds

    train_kinds(folder, kinds=kinds, model=model, out=out, kernels=kernels)
