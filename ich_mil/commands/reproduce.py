"""`ich-mil reproduce`."""

import typer

from ich_mil.arguments import SETTINGS, app, examples
from ich_mil.progress import say


@app.command(
    context_settings=SETTINGS,
    epilog=examples("ich-mil reproduce", "ich-mil reproduce digits --jobs 2"),
)
def reproduce(context: typer.Context) -> None:
    """Run a benchmark protocol, given by name or file; without one, list the protocols."""
    from ich_mil.reproduce.protocol import list_protocols, read_protocol

    if not context.args:
        say(*list_protocols().split("\n"))
        return
    protocol = read_protocol(context.args)

    from ich_mil.reproduce.run import reproduce as run_protocol

    run_protocol(protocol)
