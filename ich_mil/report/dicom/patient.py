"""Patient and study elements of a result, copied from its source images and made valid.

The elements in `REQUIRED` are empty where the image has no value; those in `CARRIED` are copied where the
image has them. Each difference from the image is recorded as a note.

An AccessionNumber of more than 16 characters is invalid (SH, PS3.5 6.2), and truncated it would identify
another order. It is left empty, and Filler Order Number / Imaging Service Request (0040,2017), which
identifies the same order in up to 64 characters (LO), holds the full number: `link_order`.
"""

from collections.abc import Callable, Collection
from functools import partial

from pydicom.dataset import Dataset

from ich_mil.dicom.files.elements import Elements
from ich_mil.report.dicom.values import (
    SH,
    age,
    clock,
    day,
    identifier,
    line,
    person_name,
    valid_uid,
)


def _one_of(text: str, values: Collection[str]) -> str:
    """An enumerated value; '' for any other text."""
    return text if text in values else ""


REQUIRED: dict[str, Callable[[str], str]] = {
    "StudyDate": day,
    "StudyTime": clock,
    "AccessionNumber": partial(identifier, most=SH),
    "ReferringPhysicianName": person_name,
    "PatientName": person_name,
    "PatientID": identifier,
    "PatientBirthDate": day,
    "PatientSex": partial(_one_of, values=("M", "F", "O")),
    "StudyID": partial(identifier, most=SH),
}
"""Patient and study elements of type 2 with their validators: required in every object, may be empty."""
ORDER = "FillerOrderNumberImagingServiceRequest"
CARRIED: dict[str, Callable[[str], str]] = {
    "StudyDescription": line,
    "IssuerOfPatientID": identifier,
    "PatientAge": age,
    "PatientIdentityRemoved": partial(_one_of, values=("YES", "NO")),
    "DeidentificationMethod": line,
}
"""Optional elements, copied where they are present, with their validators."""


def patient_and_study(first: Elements, study_uid: str, notes: list[str]) -> Dataset:
    """Dataset of the patient and study elements; differences from the image are appended to `notes`."""
    elements = Dataset()
    elements.StudyInstanceUID = valid_uid(study_uid)
    absent = []
    for keyword, valid in (REQUIRED | CARRIED).items():
        text = first.text(keyword)
        value = valid(text)
        if value or keyword in REQUIRED:
            setattr(elements, keyword, value)
        if not text and keyword in REQUIRED:
            absent.append(keyword)
        elif value != text:
            here = "changed" if value else "empty"  # no value here: it may name the patient
            notes.append(f"{keyword} of the source images is not valid: {here} here.")
    if absent:
        notes.append(f"The source images have no {', '.join(absent)}: empty here.")
    order = identifier(first.text("AccessionNumber"))
    if order and not elements.AccessionNumber:
        setattr(elements, ORDER, order)
        notes.append(
            f"AccessionNumber has {len(order)} characters, {SH} are valid: it is whole in Filler Order "
            "Number / Imaging Service Request (0040,2017)."
        )
    if elements.get("PatientIdentityRemoved") == "YES" and not elements.get("DeidentificationMethod"):
        elements.DeidentificationMethod = "not stated in the source images"
        notes.append("The source images do not say how the patient's identity was removed.")
    return elements


def link_order(made: Dataset) -> None:
    """Copy the order number (`ORDER`) of a report to its Referenced Request Sequence (PS3.3 C.17.2)."""
    if ORDER not in made or made.Modality not in ("SR", "KO"):
        return
    request = Dataset()
    request.StudyInstanceUID = made.StudyInstanceUID
    setattr(request, ORDER, made[ORDER].value)
    for keyword in ("AccessionNumber", "PlacerOrderNumberImagingServiceRequest", "RequestedProcedureID"):
        setattr(request, keyword, "")
    request.RequestedProcedureDescription = ""
    request.ReferencedStudySequence, request.RequestedProcedureCodeSequence = [], []
    made.ReferencedRequestSequence = [request]
