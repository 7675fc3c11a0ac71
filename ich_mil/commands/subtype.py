"""`ich-mil subtype`."""

from pathlib import Path
from typing import Annotated

import typer

from ich_mil.arguments import Model, app, check_model, check_predictions, examples


@app.command(
    epilog=examples(
        "ich-mil subtype validations/site --kinds kinds.csv --out checkpoints/kinds",
        "ich-mil subtype checkpoints/rsna --model checkpoints/rsna --kinds stage_2_train.csv --out kinds",
    )
)
def subtype(
    folder: Annotated[
        Path, typer.Argument(help="The folder of 'predict' or 'validate'; or RUN, for its held-out scans.")
    ],
    kinds: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="CSV: column scan, and a 0/1 column per kind of bleed; or stage_2_train.csv of RSNA 2019.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write, for 'predict --kinds'.")],
    model: Model = Path("headct-base"),
) -> None:
    """Fit models of the kinds of bleed to predicted scans, or of the six targets of RSNA 2019 to slices."""
    check_model(model)

    from ich_mil.sets.layouts.rsna_labels import is_rsna_table

    if is_rsna_table(kinds):
        from ich_mil.model.site.slice_kinds import train_slice_kinds

        train_slice_kinds(folder, kinds=kinds, model=model, out=out)
        return
    check_predictions(folder)

    from ich_mil.model.site.subtype import train_kinds

    train_kinds(folder, kinds=kinds, model=model, out=out)
