"""`ich-mil predict`."""

from pathlib import Path
from typing import Annotated

import typer

from ich_mil.arguments import (
    ContrastWords,
    Covariates,
    Dicom,
    Jobs,
    Model,
    Names,
    Reports,
    Requests,
    Studies,
    app,
    check_model,
    check_out,
    examples,
    extra_sources,
    workers,
)


@app.command(
    epilog=examples(
        "ich-mil predict /path/to/head_ct", "ich-mil predict export --model checkpoints/demo --dicom"
    )
)
def predict(
    root: Studies,
    model: Model = Path("headct-base"),
    out: Annotated[Path | None, typer.Option(help="Default: predictions/<name of the folder>.")] = None,
    triage: Annotated[
        Path | None,
        typer.Option(exists=True, metavar="T.json", help="Apply the thresholds of 'ich-mil triage'."),
    ] = None,
    kinds: Annotated[
        Path | None,
        typer.Option(exists=True, metavar="DIR", help="Add the kinds of bleed of 'ich-mil subtype'."),
    ] = None,
    dicom: Dicom = False,
    names: Names = False,
    jobs: Jobs = 0,
    contrast_words: ContrastWords = None,
    requests: Requests = None,
    reports: Reports = None,
    covariates: Covariates = None,
) -> None:
    """Predict new studies: probabilities, pages, DICOM results."""
    out = check_out(out or Path("predictions") / root.resolve().name, root)
    extras = extra_sources(requests, reports, covariates)
    check_model(model)

    from ich_mil.commands.steps.predict import predict_folder

    predict_folder(
        root,
        model=model,
        out=out,
        jobs=workers(jobs),
        triage=triage,
        contrast_words=contrast_words,
        kinds=kinds,
        extras=extras,
        dicom=dicom,
        names=names,
    )
