"""Identifying texts of a study, read from its DICOM files: patient name, dates, descriptions.

In: a prepared set and a scan. Out: the texts by DICOM keyword, from the lowest slice of the scan. The texts
are untrusted and may identify the patient, so reports show them only on request.
"""

import zlib
from pathlib import Path

from ich_mil.data.preparation.record import read_record
from ich_mil.data.store import PreparedSet
from ich_mil.dicom.files.elements import NotDicomError, read_elements
from ich_mil.dicom.files.header import slice_file
from ich_mil.errors import DataError

KEYWORDS = (
    "PatientName",
    "PatientID",
    "PatientBirthDate",
    "PatientSex",
    "PatientAge",
    "StudyDate",
    "AccessionNumber",
    "StudyDescription",
    "SeriesDescription",
    "InstitutionName",
)
"""DICOM keywords (PS3.6), in display order."""


def source_files(prepared: PreparedSet, scan: str) -> list[Path]:
    """DICOM files of a scan, lowest slice first; a multi-frame file is listed once.

    Raises:
        DataError: the record of the scan cannot be read.
    """
    record = read_record(prepared.folder, scan)
    if record is None:
        raise DataError(f"{prepared.folder}: the record of scan {scan!r} cannot be read; run prepare again")
    names = [name for one in record.slices for name in one["sources"]]
    return list(dict.fromkeys(slice_file(prepared.root, name)[0] for name in names))


def study_texts(prepared: PreparedSet, scan: str) -> dict[str, str]:
    """Non-empty texts of a scan by DICOM keyword. They are unchanged: escape them before display.

    Raises:
        DataError: the record or the DICOM file of the scan cannot be read.
    """
    path = source_files(prepared, scan)[0]
    try:
        elements = read_elements(path, KEYWORDS)
    except (OSError, NotDicomError, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); put the DICOM files back, or show the page without names"
        ) from error
    texts = {keyword: elements.text(keyword) for keyword in KEYWORDS}
    return {keyword: text for keyword, text in texts.items() if text}
