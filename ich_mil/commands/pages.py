"""Write study pages, the worklist and DICOM results of predictions, from files alone, without a model.

In: a folder of `ich-mil predict`, with `predictions.json`, `maps/` and `prepared/`. Out: a page `scan-*.html`
per study, `index.html`, and on request `dicom/<scan>/*.dcm`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ich_mil.data.preparation.identifying_texts import study_texts
from ich_mil.data.preparation.record import read_record
from ich_mil.data.store import PreparedSet, open_prepared
from ich_mil.errors import DataError
from ich_mil.files import write_text
from ich_mil.progress import progress, say
from ich_mil.report.cohort_page import neighbours, render_cohort
from ich_mil.report.dicom.write import remove_dicom_results, write_dicom_results
from ich_mil.report.maps import read_maps
from ich_mil.report.page import study_file_name
from ich_mil.report.study_page import Neighbours, render_study
from ich_mil.runs.predictions import Results, ScanResult, check_judged, read_results


@dataclass(frozen=True)
class Shown:
    """Options of the output.

    Attributes:
        dicom: write DICOM results.
        names: show names and other DICOM texts on the pages.
    """

    dicom: bool = False
    names: bool = False


def show_folder(folder: Path, shown: Shown) -> None:
    """Write the pages and DICOM results of a folder of predictions again.

    Raises:
        DataError: the folder holds no predictions, or no prepared scans.
    """
    results = read_results(folder)
    if not (folder / "prepared" / "prepared.json").is_file():
        raise DataError(
            f"{folder}: holds no prepared scans, as 'predict' and 'validate' leave them (but for features, "
            "which have no pages); the pages of a run are made by 'ich-mil report RUN'"
        )
    show_predictions(results, open_prepared(folder / "prepared"), folder, shown)
    say(f"{folder / 'index.html'}")


def show_predictions(results: Results, prepared: PreparedSet, folder: Path, shown: Shown) -> list[Path]:
    """Write pages, worklist and DICOM results into `folder`, the folder of `predictions.json`.

    If the texts or DICOM results of a scan fail, the other scans are still written.

    Returns:
        Paths of the DICOM results.

    Raises:
        DataError: after all scans, with the first reason, if texts or DICOM results have failed; immediately,
            if prepared slices or maps cannot be read, or the slices are not those of the predictions.
    """
    check_judged(results, prepared)
    written: list[Path] = []
    failed: list[DataError] = []
    links = {scan.scan: study_file_name(scan.scan) for scan in results.scans}
    around = neighbours(results, links)
    texts: dict[str, dict[str, str]] = {}
    for scan in progress(results.scans, total=len(results.scans), what="write pages", unit="page"):
        if shown.names:
            try:
                texts[scan.scan] = study_texts(prepared, scan.scan)
            except DataError as error:
                failed.append(error)
        path = folder / links[scan.scan]
        write_study_page(
            results,
            scan,
            prepared,
            folder,
            path,
            texts=texts.get(scan.scan, {}),
            neighbours=around[scan.scan],
        )
    title = f"Head CT worklist {folder.resolve().name}" if shown.names else "Head CT worklist"
    write_text(folder / "index.html", render_cohort(results, links, title=title, texts=texts))
    for scan in results.scans if shown.dicom else ():
        maps, place = read_maps(folder, scan, results.model), folder / "dicom" / Path(links[scan.scan]).stem
        try:
            written += write_dicom_results(scan, results, prepared, maps, place)
        except DataError as error:
            failed.append(error)
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise DataError(f"{failed[0]}{more}; everything else is in {folder}")
    return written


def remove_shown(folder: Path) -> None:
    """Remove the pages, maps, decisions and DICOM results of earlier predictions from `folder`."""
    for pattern in ("scan-*.html", "index.html", "maps/*.safetensors", "decisions.csv"):
        for path in folder.glob(pattern):
            path.unlink()
    for place in folder.glob("dicom/scan-*"):
        remove_dicom_results(place)


def write_study_page(
    results: Results,
    scan: ScanResult,
    prepared: PreparedSet,
    folder: Path,
    path: Path,
    *,
    texts: Mapping[str, str] = {},
    run_link: str = "",
    neighbours: Neighbours | None = None,
) -> None:
    """Write the page of a scan to `path`, with the maps in `folder`.

    The caller must have checked the prepared set by `check_judged`.

    Raises:
        DataError: pixels or maps that cannot be read.
    """
    record = read_record(prepared.part_of(scan.scan).folder, scan.scan)
    page = render_study(
        scan,
        results.model,
        results.decided_by,
        prepared.hu(scan.scan),
        read_maps(folder, scan, results.model),
        edges=[] if record is None else record.edges,
        texts=texts,
        spacing_mm=record.pixel_mm if record is not None and min(record.pixel_mm) > 0 else None,
        run_link=run_link,
        neighbours=neighbours,
    )
    write_text(path, page)
