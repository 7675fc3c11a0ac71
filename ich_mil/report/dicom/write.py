"""The results of one scan as DICOM files that go back to the archive its images came from.

In: a scan's result, the prepared set it was made from, and its maps where there are any. Out: files in a
folder: pictures (Secondary Capture), maps (Parametric Map), numbers (Structured Report) and the slices to
look at first (Key Object Selection), each kind a series of its own in the study of the sources, under the
patient as the sources have them: nothing is de-identified here.
"""

from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from pydicom.dataset import Dataset
from pydicom.filewriter import dcmwrite

from ich_mil.data.store import PreparedSet
from ich_mil.files import whole_file
from ich_mil.predictions import Results, ScanResult
from ich_mil.report.dicom.capture import secondary_captures
from ich_mil.report.dicom.context import read_context
from ich_mil.report.dicom.identity import Kind, identify
from ich_mil.report.dicom.key_objects import key_objects
from ich_mil.report.dicom.parametric_map import parametric_maps
from ich_mil.report.dicom.structured_report import structured_report
from ich_mil.report.maps import ScanMaps


def write_dicom_results(
    scan: ScanResult, results: Results, prepared: PreparedSet, maps: ScanMaps | None, folder: Path
) -> list[Path]:
    """Write all DICOM results of one scan.

    Args:
        scan: one of `results.scans`.
        results: which model spoke and how it was decided.
        prepared: the set that the scan is in; its source files are read again, headers only.
        maps: of some slices of the scan; None writes no Parametric Map.
        folder: where to write; what an earlier call wrote there is replaced, other files are left alone.

    Returns:
        The files: pictures, maps, report, key objects.

    Raises:
        DataError: a source file is gone or has changed, the scan is not that of the set, a full disk.
    """
    context = read_context(scan, prepared)
    identity = identify(scan, results, context, maps, datetime.now())
    hu = prepared.hu(scan.scan)
    fine = None if maps is None or not len(maps.slices) else maps.on_grid(*hu.shape[1:])
    made: dict[Kind, list[Dataset]] = {
        Kind.CAPTURE: [*secondary_captures(scan, results, hu, fine, context, identity)],
        Kind.MAP: [] if fine is None else [*parametric_maps(fine, context, identity)],
        Kind.REPORT: [structured_report(scan, results.decided_by, context, identity)],
        Kind.KEY: [key_objects(scan, context, identity)],
    }
    paths = []
    for kind, objects in made.items():
        for number, one in enumerate(objects, start=1):
            paths.append(folder / kind.file_name(number))
            with whole_file(paths[-1]) as temporary:
                dcmwrite(temporary, one, enforce_file_format=True)
    remove_dicom_results(folder, but=paths)  # an earlier result may have had more of them
    return paths


def remove_dicom_results(folder: Path, *, but: Collection[Path] = ()) -> None:
    """Remove what `write_dicom_results` wrote into `folder`, and the folder if nothing is left in it."""
    for kind in Kind:
        for path in folder.glob(kind.file_name("*")):
            if path not in but:
                path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
