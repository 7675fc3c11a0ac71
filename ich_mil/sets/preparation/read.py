"""Read one study, DICOM or NIfTI, into memory; `prepare` writes the same for a whole data set."""

from dataclasses import replace
from pathlib import Path

from ich_mil.errors import DataError
from ich_mil.ledger import Code
from ich_mil.sets.layouts.folder import FolderCollection
from ich_mil.sets.preparation.index import HeaderIndex
from ich_mil.sets.preparation.scan import ScanTask, read_scan
from ich_mil.sets.scan_names import folder_of, own_folders
from ich_mil.study.contrast import SitePhrases, read_site_phrases
from ich_mil.study.files.archive import unpacked
from ich_mil.study.series import AVERAGE_TO_MM
from ich_mil.study.study import Study


def read_study(
    folder: str | Path, *, thickness_mm: float = AVERAGE_TO_MM, contrast_words: Path | None = None
) -> Study:
    """Read the head CT of the one study in a folder, at any depth, in a ZIP file, or in one file.

    The series that shows a plain axial head is chosen; its slices are ordered, converted to Hounsfield units,
    and averaged where they are thin.

    Args:
        folder: folder with the DICOM files of one study or one NIfTI file (`.nii`, `.nii.gz`), a ZIP file of
            it, or one such file.
        thickness_mm: thin slices are averaged to about this thickness in mm; 0 leaves them unchanged.
        contrast_words: a CSV file with contrast words of the site (`ich_mil.study.contrast`).

    Raises:
        ConfigError: the contrast words cannot be used.
        DataError: no such folder, a ZIP that cannot be unpacked, no CT slice, several studies, no series that
            shows a head, or files that change while they are read.
    """
    site = read_site_phrases(contrast_words)
    with unpacked(Path(folder)) as source:
        study = _read(FolderCollection(source, labelled=False), Path(folder), thickness_mm, site)
    return study if source == Path(folder) else replace(study, root=Path(folder).absolute())


def _read(collection: FolderCollection, folder: Path, thickness_mm: float, site: SitePhrases) -> Study:
    with HeaderIndex(None, collection, layout="unlabelled") as index:
        n_files = index.update(jobs=1)
        collection.check((scan.scan, scan.sources) for scan in index.scans())
        scans = list(index.scans())
        refused = list(index.refused())
        if not scans:
            reason = f"none of its {n_files} files is a CT slice; the first: {refused[0].detail}"
            raise DataError(f"{folder}: {reason}")
        if len(scans) > 1:
            raise DataError(
                f"{folder}: holds {len(scans)} studies; name the folder or file of one, or use 'ich-mil "
                "predict'"
            )
        (scan,) = scans
        root = collection.root.absolute()
        record, hu = read_scan(ScanTask(scan.scan, index.headers(scan.scan), thickness_mm, root, site))
        if index.changed():
            raise DataError(f"{folder}: its files have changed while they were read; read it again")
        # those of another study count for it alone; a study without a usable slice has a line here
        others = [line for line in (*refused, *index.lost_slices()) if line.scan in (scan.scan, "")]
        ledger = (*others, *index.empty_scans(), *record.entries, *collection.entries)
    if hu is None:
        reason = next(entry.detail for entry in record.entries if entry.code == Code.SCAN_EMPTY)
        raise DataError(f"{folder}: no slice can be used; {reason}")
    folders = own_folders((scan.scan, folder_of(source.path)) for source in scan.sources)
    return Study(
        scan.scan, record.patient, hu, record.slices, record.pixel_mm, ledger, root, folders[scan.scan]
    )
