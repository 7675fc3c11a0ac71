"""What is shown of predictions: a page a study, the worklist, DICOM results. All from files, without a model.

In: a folder with `predictions.json`, `maps/` and `prepared/`, as `ich-mil predict` leaves it. Out: a page
`scan-*.html` a study, `index.html`, and `dicom/<scan>/*.dcm` where they are asked for.
"""

from dataclasses import dataclass
from pathlib import Path

from ich_mil.data.store import PreparedSet, open_prepared
from ich_mil.data.texts import study_texts
from ich_mil.predictions import Results, ScanResult, read_results
from ich_mil.progress import progress, say
from ich_mil.report.cohort_page import render_cohort
from ich_mil.report.dicom.write import write_dicom_results
from ich_mil.report.maps import read_maps
from ich_mil.report.page import study_file_name, write_page
from ich_mil.report.study_page import render_study


@dataclass(frozen=True)
class Shown:
    """What is shown beside the pages.

    Attributes:
        dicom: write DICOM results.
        names: show names and other texts of the DICOM files on the pages.
    """

    dicom: bool = False
    names: bool = False


def show_folder(folder: Path, shown: Shown) -> None:
    """Make the pages and DICOM results of a folder of predictions again.

    Raises:
        DataError: it holds no predictions, or no prepared scans.
    """
    show_predictions(read_results(folder), open_prepared(folder / "prepared"), folder, shown)
    say(f"{folder / 'index.html'}")


def show_predictions(results: Results, prepared: PreparedSet, folder: Path, shown: Shown) -> list[Path]:
    """Write pages, worklist and DICOM results into `folder`, that of `predictions.json`.

    Returns:
        The DICOM results.
    """
    written: list[Path] = []
    links = {}
    for scan in progress(results.scans, total=len(results.scans), what="write pages", unit="page"):
        links[scan.scan] = study_file_name(scan.scan)
        write_study_page(results, scan, prepared, folder, folder / links[scan.scan], names=shown.names)
        if shown.dicom:
            maps = read_maps(folder, scan.scan)
            place = folder / "dicom" / Path(links[scan.scan]).stem
            written += write_dicom_results(scan, results, prepared, maps, place)
    write_page(render_cohort(results, links, title=folder.resolve().name), folder / "index.html")
    return written


def write_study_page(
    results: Results,
    scan: ScanResult,
    prepared: PreparedSet,
    folder: Path,
    path: Path,
    *,
    names: bool = False,
    run_link: str = "",
) -> None:
    """Write the page of one scan to `path`; its maps lie in `folder`."""
    texts = study_texts(prepared, scan.scan) if names else {}
    page = render_study(
        scan,
        results.model,
        results.decided_by,
        prepared.hu(scan.scan),
        read_maps(folder, scan.scan),
        texts=texts,
        run_link=run_link,
    )
    write_page(page, path)
