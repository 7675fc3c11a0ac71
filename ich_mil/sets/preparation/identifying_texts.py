"""Identifying texts of a study, read from its DICOM files: patient name, dates, descriptions.

The texts are untrusted and may identify the patient, so reports show them only on request.
"""

from collections.abc import Sequence
from pathlib import Path

from ich_mil.errors import DataError
from ich_mil.sets.preparation.record import need_record
from ich_mil.sets.store import PreparedSet
from ich_mil.study.files.elements import read_elements
from ich_mil.study.files.header import slice_file

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
    """DICOM files of a scan, lowest slice first; a multi-frame file is listed once."""
    names = [name for row in need_record(prepared.folder, scan).slices for name in row["sources"]]
    return list(dict.fromkeys(slice_file(prepared.root, name)[0] for name in names))


def accession_number(path: Path) -> str:
    """AccessionNumber of a DICOM file; '' if it has none or cannot be read."""
    try:
        return read_elements(path, ("AccessionNumber",)).text("AccessionNumber")
    except Exception:  # malformed input can raise any exception in the parser
        return ""


def study_texts(prepared: PreparedSet, scan: str, keywords: Sequence[str] = KEYWORDS) -> dict[str, str]:
    """Non-empty texts of the lowest slice of a scan by DICOM keyword; escape them before display.

    Raises:
        DataError: the record or the DICOM file of the scan cannot be read.
    """
    path = source_files(prepared, scan)[0]
    try:
        elements = read_elements(path, keywords)
    except Exception as error:  # malformed input can raise any exception in the parser
        raise DataError(
            f"{path}: cannot be read ({error}); put the DICOM files back, or show the page without names"
        ) from error
    return {keyword: text for keyword in keywords if (text := elements.text(keyword))}
