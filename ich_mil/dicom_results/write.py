"""Export of the results of one scan as DICOM files for the archive of its images.

Pictures (Secondary Capture), maps (Parametric Map), measurements (Structured Report) and key slices (Key
Object Selection) are separate series in the study of the source images, with the patient of the source
images: nothing is de-identified.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path

from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.filewriter import dcmwrite

from ich_mil.dicom_results.capture import secondary_captures
from ich_mil.dicom_results.context import read_context
from ich_mil.dicom_results.identity import Kind, identify
from ich_mil.dicom_results.key_objects import key_objects
from ich_mil.dicom_results.parametric_map import parametric_maps
from ich_mil.dicom_results.structured_report import structured_report
from ich_mil.files import whole_file
from ich_mil.model.maps import ScanMaps
from ich_mil.model.predictions import Results, ScanPrediction
from ich_mil.study.study import Study


def write_dicom_results(
    scan: ScanPrediction,
    results: Results,
    study: Study,
    maps: ScanMaps | None,
    folder: Path,
    *,
    replaced: Sequence[Path] = (),
) -> list[Path]:
    """Write all DICOM results of one scan.

    Args:
        scan: a scan of `results.scans`.
        results: provenance of the model and decision rule.
        study: the study; the headers of its source files are read again.
        maps: heatmaps of some slices of the scan; None writes no Parametric Map.
        folder: output folder; files of an earlier call are replaced, other files are kept.
        replaced: files of earlier calls for the same study; the report names the reports among them as its
            predecessors.

    Returns:
        Paths of the files: pictures, maps, report, key objects.

    Raises:
        DataError: a source file is missing or has changed, or the scan differs from that of the set.
    """
    context, hu = read_context(scan, study), study.hu
    identity = identify(scan, results, context, maps, datetime.now())
    fine = None if maps is None or not len(maps.slices) else maps.on_grid(*hu.shape[1:])
    older = [dcmread(path) for path in replaced if path.match(Kind.REPORT.file_name("*"))]
    datasets: dict[Kind, list[Dataset]] = {
        Kind.CAPTURE: [*secondary_captures(scan, results, hu, fine, context, identity)],
        Kind.MAP: [] if fine is None else [*parametric_maps(fine, context, identity)],
        Kind.REPORT: [structured_report(scan, results.decided_by, context, identity, older)],
        Kind.KEY: [key_objects(scan, context, identity)],
    }
    paths = []
    for kind, of_kind in datasets.items():
        for number, dataset in enumerate(of_kind, start=1):
            paths.append(folder / kind.file_name(number))
            with whole_file(paths[-1]) as temporary:
                dcmwrite(temporary, dataset, enforce_file_format=True)
    remove_dicom_results(folder, but=paths)  # an earlier result may have had more files
    return paths


def remove_dicom_results(folder: Path, *, but: Collection[Path] = ()) -> None:
    """Delete the files of `write_dicom_results` from `folder`, except `but`.

    A folder that is then empty is deleted too.
    """
    for kind in Kind:
        for path in folder.glob(kind.file_name("*")):
            if path not in but:
                path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
