"""`ich-mil predict`."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ich_mil import arguments as arg
from ich_mil.progress import say


@arg.app.command(
    epilog=arg.examples(
        "ich-mil predict /path/to/head_ct", "ich-mil predict export.zip --model checkpoints/demo --dicom"
    )
)
def predict(
    root: arg.Studies,
    model: arg.Model = Path("headct-base"),
    out: Annotated[Path | None, typer.Option(help="Default: predictions/<name of the folder>.")] = None,
    triage: Annotated[
        Path | None,
        typer.Option(exists=True, metavar="T.json", help="Apply the thresholds of 'ich-mil triage'."),
    ] = None,
    kinds: Annotated[
        Path | None,
        typer.Option(exists=True, metavar="DIR", help="Add the kinds of 'ich-mil subtype'."),
    ] = None,
    prevalence: arg.Prevalence = None,
    heatmaps: Annotated[bool, typer.Option(help="Show on pages where a bleed may be.")] = True,
    pages: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Pages and DICOM results of the first N scans alone."),
    ] = None,
    dicom: arg.Dicom = False,
    names: arg.Names = False,
    jobs: arg.Jobs = 0,
    contrast_words: arg.ContrastWords = None,
    requests: arg.Requests = None,
    reports: arg.Reports = None,
    covariates: arg.Covariates = None,
) -> None:
    """Predict new studies: probabilities, pages, DICOM results."""
    from ich_mil.study.files.archive import check_zip

    check_zip(root)
    out = arg.check_out(out or arg.default_out("predictions", root), root)
    extras = arg.extra_sources(requests, reports, covariates)
    arg.check_model(model)
    say(f"{root}: predict with {model}")

    from ich_mil.files import alone
    from ich_mil.output.prediction import predict_folder
    from ich_mil.output.study_pages import Shown
    from ich_mil.prediction import load_model
    from ich_mil.study.contrast import read_site_phrases

    read_site_phrases(contrast_words)  # an error in the file is raised before the model is loaded
    trained = load_model(model, triage=triage, kinds=kinds)
    if prevalence is not None:
        trained = trained.at_prevalence(prevalence)
    with alone(out, doing="writing"):
        predict_folder(
            trained,
            root,
            out,
            jobs=arg.workers(jobs),
            contrast_words=contrast_words,
            extras=extras,
            shown=Shown(heatmaps=heatmaps, dicom=dicom, names=names),
            pages=pages,
        )
    say(f"written: {out / 'scans.csv'}, {out / 'slices.csv'}, {out / 'index.html'}")
    say(f"next: open {out / 'index.html'}" + ("" if dicom else f"; ich-mil report {quote(str(out))} --dicom"))
