"""Study pages, worklist and DICOM results of predictions, written without a model.

In: a folder of `ich-mil predict`, with `predictions.json`, `maps/` and `prepared/`. Out: a page `scan-*.html`
per study or per chosen study, `index.html`, and on request `dicom/<scan>/*.dcm`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from ich_mil.errors import ConfigError, DataError
from ich_mil.files import write_text
from ich_mil.model.assembly import check_judged
from ich_mil.model.maps import ScanMaps, read_maps
from ich_mil.model.predictions import Results, ScanPrediction, read_results
from ich_mil.pages.page import study_file_name
from ich_mil.pages.worklist_page import neighbours, render_worklist
from ich_mil.prediction import study_page
from ich_mil.progress import progress, say
from ich_mil.sets.labels import name_some
from ich_mil.sets.preparation.identifying_texts import study_texts
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.sets.scan_names import Name, ScanNames, folder_names, short_name
from ich_mil.sets.store import PreparedSet, open_prepared
from ich_mil.settings import did_you_mean
from ich_mil.study.study import Study

STALE = (
    *("scan-*.html", "studies/*.html", "index.html", "maps/*.safetensors"),
    *("decisions.csv", "drift.json", "metrics.csv", "metrics.html", "submission.csv"),
)
"""Files of a folder of predictions that depend on them."""


@dataclass(frozen=True)
class Shown:
    """Options of the output.

    Attributes:
        heatmaps: make heatmaps of predicted studies.
        dicom: write DICOM results.
        names: show names and other DICOM texts on the pages.
        replaced: earlier DICOM results of the same study, which the new ones replace.
    """

    heatmaps: bool = True
    dicom: bool = False
    names: bool = False
    replaced: tuple[Path, ...] = ()


class StudyPages:
    """Pages and DICOM results of predictions, written scan by scan into the folder of `predictions.json`.

    Attributes:
        written: paths of the DICOM results so far.
    """

    def __init__(
        self, results: Results, prepared: PreparedSet, folder: Path, shown: Shown, scans: Collection[str]
    ) -> None:
        """Check the prepared set; `scans`: those to be added. Pages that are there stay linked.

        `DataError`: the prepared slices are not those of the predictions.
        """
        check_judged(results, prepared)
        self.written: list[Path] = []
        self._results, self._folder, self._shown = results, folder, shown
        names, added = {scan.scan: study_file_name(scan.scan) for scan in results.scans}, {*scans}
        self._links = {
            scan: name for scan, name in names.items() if scan in added or (folder / name).is_file()
        }
        self._neighbours = neighbours(results, self._links)
        self._texts: dict[str, dict[str, str]] = {}
        self._failed: list[DataError] = []

    def add(self, scan: ScanPrediction, study: Study, maps: ScanMaps | None) -> None:
        """Write the page of a scan and its DICOM results; unreadable DICOM files are reported by `finish`."""
        if self._shown.names:
            try:
                self._texts[scan.scan] = study_texts(study)
            except DataError as error:
                self._failed.append(error)
        path = self._folder / self._links[scan.scan]
        texts, around = self._texts.get(scan.scan, {}), self._neighbours[scan.scan]
        model, rule = self._results.model, self._results.decided_by
        write_text(path, study_page(scan, model, rule, study, maps, texts=texts, neighbours=around))
        if self._shown.dicom:
            from ich_mil.dicom_results.write import write_dicom_results  # imports highdicom

            folder = self._folder / "dicom" / path.stem
            try:
                with study.on_disk() as read:
                    self.written += write_dicom_results(
                        scan, self._results, read, maps, folder, replaced=self._shown.replaced
                    )
            except DataError as error:
                self._failed.append(error)

    def finish(self) -> list[Path]:
        """Write the worklist and return the paths of the DICOM results.

        Raises:
            DataError: DICOM texts or results of some scans have failed; everything else is written.
        """
        title = "Intracranial hemorrhage: head CT worklist"
        if self._shown.names:
            title = f"{title} {self._folder.resolve().name}"
        page = render_worklist(self._results, self._links, title=title, texts=self._texts)
        write_text(self._folder / "index.html", page)
        if self._failed:
            more = f" (and {len(self._failed) - 1} more)" if len(self._failed) > 1 else ""
            raise DataError(f"{self._failed[0]}{more}; everything else is in {self._folder}")
        return self.written


def show_folder(folder: Path, shown: Shown, scans: Collection[str] = ()) -> None:
    """Write the pages and DICOM results of a folder of predictions again.

    Args:
        folder: folder of `ich-mil predict`.
        shown: options of pages and DICOM results.
        scans: names of the scans (`_named`); empty: all scans.

    Raises:
        ConfigError: a name that fits no scan or several.
        DataError: the folder holds no predictions or no prepared scans, or its prepared slices or maps cannot
            be read or are not those of the predictions; DICOM texts or results of some scans have failed.
    """
    results = read_results(folder)
    if not (folder / "prepared" / "prepared.json").is_file():
        raise DataError(
            f"{folder}: holds no prepared scans and has no pages; 'ich-mil report RUN' writes those of a run"
        )
    prepared = open_prepared(folder / "prepared")
    chosen = _named([*scans], results.scans, prepared, folder) if scans else results.scans
    pages = StudyPages(results, prepared, folder, shown, [scan.scan for scan in chosen])
    for scan in progress(chosen, total=len(chosen), what="write pages", unit="page"):
        pages.add(scan, prepared_study(prepared, scan.scan), read_maps(folder, scan, results.model))
    pages.finish()
    say(f"{folder / 'index.html'}")


def _named(
    names: Sequence[str], scans: Sequence[ScanPrediction], prepared: PreparedSet, folder: Path
) -> list[ScanPrediction]:
    """The scans of these names: id or its last part, a folder as path or last part, title, or short id.

    Raises:
        ConfigError: a name that fits no scan or several; the line lists candidates.
    """
    by_id = {scan.scan: scan for scan in scans}
    known = [*folder_names(pair for pair in prepared.in_folders if pair[0] in by_id)]
    for scan in scans:
        titles = (scan.title, short_name(scan.scan), PurePath(scan.scan).name)
        known += [Name(scan.scan, title) for title in titles]
    scan_names, chosen = ScanNames(known), list[str]()
    for name in names:
        typed = name.replace("...", "\N{HORIZONTAL ELLIPSIS}")  # the sign that `short_name` writes
        fits = {name} & by_id.keys() or scan_names.find(name) or scan_names.find(typed)
        candidates = name_some([scan.title for scan in scans if not fits or scan.scan in fits], most=5)
        if not fits:
            near = did_you_mean(name, (other.name for other in known))
            raise ConfigError(f"--scan {name}: {folder} has no such scan{near}; its scans: {candidates}")
        if len(fits) > 1:
            raise ConfigError(f"--scan {name}: fits {len(fits)} scans of {folder}; name one of {candidates}")
        chosen += fits
    return [by_id[scan] for scan in dict.fromkeys(chosen)]


def remove_shown(folder: Path) -> None:
    """Remove what depends on earlier predictions from `folder`: the files `STALE` and DICOM results."""
    for pattern in STALE:
        for path in folder.glob(pattern):
            path.unlink()
    for scan_folder in folder.glob("dicom/scan-*"):
        from ich_mil.dicom_results.write import remove_dicom_results

        remove_dicom_results(scan_folder)
