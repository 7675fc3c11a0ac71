"""`ich-mil serve`."""

from typing import Annotated

import typer

from ich_mil.arguments import SETTINGS, app, examples


@app.command(context_settings=SETTINGS, epilog=examples("ich-mil serve --config node.yaml"))
def serve(
    context: typer.Context,
    config: Annotated[str, typer.Option(metavar="FILE", help="YAML file, or a shipped configuration.")],
) -> None:
    """Run a DICOM node that predicts received studies."""
    from ich_mil.serve.settings import ServeSettings
    from ich_mil.settings import read_settings

    settings = read_settings(ServeSettings, ["--config", config, *context.args])

    from ich_mil.serve.judging import ModelJudge
    from ich_mil.serve.node import serve as run_node

    run_node(settings, ModelJudge(settings.model, settings.triage, settings.contrast_words))
