"""Patient and study of a result: those of its source images, in values that are valid.

In: the elements of one source image. Out: a data set of the elements in `REQUIRED`, empty where the image
says nothing, and of those in `CARRIED` that it has. What is not as the image has it is told, line by line.

An AccessionNumber of more than 16 characters is not valid (SH, PS3.5 6.2), and cut off it would name another
order. It is empty then, and Filler Order Number / Imaging Service Request (0040,2017), which names the same
order in up to 64 characters (LO), holds all of it: `link_order`.
"""

from collections.abc import Callable
from functools import partial

from pydicom.dataset import Dataset

from ich_mil.dicom.elements import CHARACTER_SET, Elements, tag_of
from ich_mil.report.dicom.values import (
    SH,
    age,
    clock,
    day,
    decoded,
    identifier,
    line,
    person_name,
    sex,
    valid_uid,
    yes_or_no,
)

REQUIRED: dict[str, Callable[[str], str]] = {
    "StudyDate": day,
    "StudyTime": clock,
    "AccessionNumber": partial(identifier, most=SH),
    "ReferringPhysicianName": person_name,
    "PatientName": person_name,
    "PatientID": identifier,
    "PatientBirthDate": day,
    "PatientSex": sex,
    "StudyID": partial(identifier, most=SH),
}
"""Elements of patient and study that every object must hold, may be empty (type 2)."""
ORDER = "FillerOrderNumberImagingServiceRequest"
CARRIED: dict[str, Callable[[str], str]] = {
    "StudyDescription": line,
    "IssuerOfPatientID": identifier,
    "PatientAge": age,
    "PatientIdentityRemoved": yes_or_no,
    "DeidentificationMethod": line,
}
"""Elements that are carried over where they are."""


def patient_and_study(first: Elements, study_uid: str, notes: list[str]) -> Dataset:
    """Patient and study as the first image has them, made valid."""
    elements = Dataset()
    elements.StudyInstanceUID = valid_uid(study_uid)
    character_sets = first.text(CHARACTER_SET).split("\\")
    absent = []
    for keyword, valid in (REQUIRED | CARRIED).items():
        raw = first.values.get(tag_of(keyword), b"")
        text = decoded(raw, character_sets).strip(" \0")
        value = valid(text)
        if value or keyword in REQUIRED:
            setattr(elements, keyword, value)
        if not text and keyword in REQUIRED:
            absent.append(keyword)
        elif value != text:
            here = "changed" if value else "empty"  # the value itself may name the patient
            notes.append(f"{keyword} of the source images is not valid: {here} here.")
    if absent:
        notes.append(f"The source images say nothing of {', '.join(absent)}: empty here.")
    raw = first.values.get(tag_of("AccessionNumber"), b"")
    order = identifier(decoded(raw, character_sets).strip(" \0"))
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
    """Name the order of a report in its Referenced Request Sequence (PS3.3 C.17.2), where `ORDER` holds it.

    Other objects have `ORDER` at the top alone: no sequence of theirs has this element.
    """
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
