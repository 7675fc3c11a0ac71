"""`ich-mil serve`."""

from pathlib import Path
from typing import Annotated

import typer

from ich_mil import arguments as arg
from ich_mil.errors import ConfigError, check_installed


@arg.app.command(
    epilog=arg.examples(
        "ich-mil serve --folder /data/incoming --out /data/results",
        "ich-mil serve --orthanc http://127.0.0.1:8042 --login login.txt --out results --send PACS",
    )
)
def serve(
    out: Annotated[Path, typer.Option(help="Folder of the results and their states.")],
    folder: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Folder that studies are written to.")
    ] = None,
    orthanc: Annotated[
        str | None, typer.Option(metavar="URL", help="Orthanc server, such as http://127.0.0.1:8042.")
    ] = None,
    model: arg.Model = Path("headct-base"),
    triage: Annotated[
        Path | None,
        typer.Option(exists=True, metavar="T.json", help="Apply the thresholds of 'ich-mil triage'."),
    ] = None,
    contrast_words: arg.ContrastWords = None,
    silence: Annotated[
        float, typer.Option(min=0, help="Seconds without a new file after which a study is complete.")
    ] = 30.0,
    seconds: Annotated[float, typer.Option(min=1, help="Time limit of a study.")] = 600.0,
    login: Annotated[
        Path | None,
        typer.Option(exists=True, metavar="FILE", help="user:password; default: $ICH_MIL_ORTHANC_LOGIN."),
    ] = None,
    send: Annotated[
        str | None, typer.Option(metavar="NAME", help="Modality of Orthanc to send results to.")
    ] = None,
    stow: Annotated[
        str | None, typer.Option(metavar="NAME", help="DICOMweb server of Orthanc to send results to.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Prometheus metrics on 127.0.0.1.")
    ] = None,
) -> None:
    """Predict studies as they arrive in a folder or in Orthanc."""
    if (folder is None) == (orthanc is None):
        raise ConfigError("serve needs --folder DIR or --orthanc URL, one of them")
    check_installed("highdicom", "serve", "ich-mil serve")
    if folder is not None:
        arg.check_out(out, folder)
    arg.check_model(model)

    from ich_mil.serve.start import serve as start

    start(
        folder=folder,
        orthanc=orthanc,
        out=out,
        model=model,
        triage=triage,
        contrast_words=contrast_words,
        silence=silence,
        seconds=seconds,
        login=login,
        send=send,
        stow=stow,
        metrics_port=metrics_port,
    )
