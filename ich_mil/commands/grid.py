"""`ich-mil grid`."""

from typing import Annotated

import typer

from ich_mil.arguments import SETTINGS, app, examples, with_settings


@app.command(
    cls=with_settings("GridConfig"),
    context_settings=SETTINGS,
    epilog=examples("ich-mil grid --config grid_features --jobs 2"),
)
def grid(
    context: typer.Context,
    config: Annotated[str, typer.Option(metavar="FILE", help="YAML file, or a shipped configuration.")],
) -> None:
    """Fit a grid of heads to one feature table."""
    from ich_mil.config import read_grid

    settings = read_grid(["--config", config, *context.args])
    settings.check_paths()

    from ich_mil.model.training.grid import grid as fit_grid

    fit_grid(settings)
