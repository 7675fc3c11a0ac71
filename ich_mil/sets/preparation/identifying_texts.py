"""Identifying texts of a study, read from its DICOM files: patient name, dates, descriptions.

The texts are untrusted and may identify the patient, so reports show them only on request.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ich_mil.errors import DataError
from ich_mil.study.files.elements import read_elements
from ich_mil.study.files.nifti import is_nifti
from ich_mil.study.study import Study

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


def accession_number(path: Path) -> str:
    """AccessionNumber of a DICOM file; '' if it has none or cannot be read."""
    try:
        return read_elements(path, ("AccessionNumber",)).text("AccessionNumber")
    except Exception:  # malformed input can raise any exception in the parser
        return ""


def study_texts(study: Study, keywords: Sequence[str] = KEYWORDS) -> dict[str, str]:
    """Non-empty texts of the lowest slice of a study by DICOM keyword; escape them before display.

    A NIfTI file has none.

    Raises:
        DataError: the DICOM file cannot be read.
    """
    if is_nifti(study.files[0].name):  # it has none
        return {}
    with replace(study, hu=study.hu[:1], rows=study.rows[:1]).on_disk() as lowest:
        path = lowest.files[0]
        try:
            elements = read_elements(path, keywords)
        except Exception as error:  # malformed input can raise any exception in the parser
            raise DataError(
                f"{path}: cannot be read ({error}); put the DICOM files back, or show the page without names"
            ) from error
    return {keyword: text for keyword in keywords if (text := elements.text(keyword))}
