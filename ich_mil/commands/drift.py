"""`ich-mil drift`."""

from dataclasses import asdict
from typing import Annotated

import typer

from ich_mil.arguments import Model, Predictions, app, check_model, check_predictions, examples, share
from ich_mil.errors import ConfigError, named
from ich_mil.progress import say


@app.command(epilog=examples("ich-mil drift predictions/new --model headct-base"))
def drift(
    folder: Predictions,
    model: Model,
    rate: Annotated[float, typer.Option(callback=share, help="Largest false-alarm rate.")] = 0.05,
) -> None:
    """Test whether predicted scans differ from the training scans."""
    check_predictions(folder)
    check_model(model)

    from ich_mil.files import write_json
    from ich_mil.ledger import NOTICE
    from ich_mil.model.site.drift import columns_of, read_reference
    from ich_mil.model.storage import load_model

    trained = load_model(model)
    try:
        alarm = read_reference(trained.members[0].folder, rate=rate, seed=trained.seed)
    except ValueError as error:
        raise ConfigError(f"--rate: {error}") from error
    features = trained.predicted_features(folder).members[0]
    with named(folder):
        result = alarm.test(*columns_of(features), features.patients)
    write_json(folder / "drift.json", {"notice": NOTICE, "model": str(model), **asdict(result)})
    say(*result.text().split("\n"), str(folder / "drift.json"))
