"""`ich-mil drift`."""

from pathlib import Path
from typing import Annotated

import typer

from ich_mil.arguments import Predictions, app, check_model, check_predictions, examples, share


@app.command(epilog=examples("ich-mil drift predictions/new --reference headct-base"))
def drift(
    folder: Predictions,
    reference: Annotated[Path, typer.Option(metavar="RUN", help="The model that predicted the scans.")],
    rate: Annotated[float, typer.Option(callback=share, help="Largest false-alarm rate.")] = 0.05,
) -> None:
    """Test whether predicted scans differ from the training scans."""
    check_predictions(folder)
    check_model(reference)

    from ich_mil.commands.steps.drift import drift_of

    drift_of(folder, reference=reference, rate=rate)
