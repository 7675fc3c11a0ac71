"""Patient and study elements of a result, copied from its source images.

A value that is not valid for its element is left out, with a note that does not contain it. An
AccessionNumber of more than 16 characters is invalid (SH, PS3.5 6.2): Filler Order Number / Imaging Service
Request (0040,2017), which identifies the same order in up to 64 characters (LO), then holds it.
"""

from copy import deepcopy

from pydicom.datadict import dictionary_VR
from pydicom.dataset import Dataset

from ich_mil.dicom_results.values import valid_or_empty, valid_uid
from ich_mil.study.files.elements import Elements

REQUIRED = (
    "StudyDate",
    "StudyTime",
    "AccessionNumber",
    "ReferringPhysicianName",
    "PatientName",
    "PatientID",
    "PatientBirthDate",
    "PatientSex",
    "StudyID",
)
"""Patient and study elements of type 2: required in every object, may be empty."""
CARRIED = (
    "StudyDescription",
    "IssuerOfPatientID",
    "PatientAge",
    "PatientIdentityRemoved",
    "DeidentificationMethod",
)
"""Optional elements, copied where they are present."""
SEQUENCES = (
    "OtherPatientIDsSequence",
    "IssuerOfPatientIDQualifiersSequence",
    "IssuerOfAccessionNumberSequence",
)
"""Optional sequences on the identity of patient and order, copied where they are present."""
ORDER = "FillerOrderNumberImagingServiceRequest"
_ENUMERATED = {"PatientSex": ("M", "F", "O"), "PatientIdentityRemoved": ("YES", "NO")}


def patient_and_study(first: Elements, study_uid: str, notes: list[str]) -> Dataset:
    """Dataset of the patient and study elements; differences from the image are appended to `notes`."""
    elements = Dataset()
    elements.StudyInstanceUID = valid_uid(study_uid)
    absent = []
    for keyword in (*REQUIRED, *CARRIED):
        text = first.text(keyword)
        value = valid_or_empty(text, dictionary_VR(keyword))
        if text not in _ENUMERATED.get(keyword, (text,)):
            value = ""
        if value and dictionary_VR(keyword) in ("LO", "SH"):  # archives tell "  12" and "12" apart
            value = valid_or_empty(first.leading(keyword) + text, dictionary_VR(keyword)) or value
        if value or keyword in REQUIRED:
            setattr(elements, keyword, value)
        if not text and keyword in REQUIRED:
            absent.append(keyword)
        elif value.strip() != text:
            notes.append(f"{keyword} of the source images is not valid: empty here.")
    for keyword in SEQUENCES:
        if items := first.values.get(keyword):
            setattr(elements, keyword, deepcopy(items))
    if absent:
        notes.append(f"The source images have no {', '.join(absent)}: empty here.")
    order = valid_or_empty(first.text("AccessionNumber"), "LO")
    if order and not elements.AccessionNumber:
        setattr(elements, ORDER, order)
        notes.append(
            f"AccessionNumber has {len(order)} characters, 16 are valid: it is whole in Filler Order "
            "Number / Imaging Service Request (0040,2017)."
        )
    if elements.get("PatientIdentityRemoved") == "YES" and not elements.get("DeidentificationMethod"):
        elements.DeidentificationMethod = "not stated in the source images"
        notes.append("The source images do not say how the patient's identity was removed.")
    return elements


def link_order(dataset: Dataset) -> None:
    """Copy the order number (`ORDER`) of a report to its Referenced Request Sequence (PS3.3 C.17.2)."""
    if ORDER not in dataset or dataset.Modality not in ("SR", "KO"):
        return
    request = Dataset()
    request.StudyInstanceUID = dataset.StudyInstanceUID
    setattr(request, ORDER, dataset[ORDER].value)
    for keyword in ("AccessionNumber", "PlacerOrderNumberImagingServiceRequest", "RequestedProcedureID"):
        setattr(request, keyword, "")
    request.RequestedProcedureDescription = ""
    request.ReferencedStudySequence, request.RequestedProcedureCodeSequence = [], []
    dataset.ReferencedRequestSequence = [request]
