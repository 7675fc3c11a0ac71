"""Derived UIDs, and values valid for their representation; patient and study of a result."""

from uuid import UUID

import pytest
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.uid import UID

from ich_mil.dicom_results.patient import patient_and_study
from ich_mil.dicom_results.values import derived_uid, line, paragraph, valid_or_empty, valid_uid
from ich_mil.study.files.elements import Elements


def test_a_derived_uid_is_a_stable_uuid():
    uid = derived_uid("not a UID", "ID_000012eaf")
    # what archives hold by now: a changed rule would make all results appear twice
    assert uid == valid_uid("ID_000012eaf") == "2.25.290852179067405458798620605455486318691"
    assert UUID(int=int(uid.removeprefix("2.25."))).version == 5
    assert UID(uid).is_valid
    uids = {derived_uid("ab", "c"), derived_uid("a", "bc"), derived_uid("abc"), derived_uid("c", "ab")}
    assert len(uids) == 4


@pytest.mark.parametrize("uid", ["ID_000012eaf", "1.02.3", "1..2", "1." * 40 + "1", "", "1.2\n", "١.2"])
def test_an_invalid_uid_is_replaced(uid):
    assert valid_uid(uid) == valid_uid(uid) != uid
    assert UID(valid_uid(uid)).is_valid


def test_valid_values_are_kept_whole():
    texts = {
        "DA": ("20200229", "2020.02.29", "yesterday"),
        "TM": ("101530.123456", "10:15:30", "noon"),
        "AS": ("045Y", "45Y"),
        "SH": ("x" * 16, "x" * 17, "a\\b"),
        "LO": ("P-1 é", "x" * 65, "a\nb", "a\x07b", "a\u202eb"),
        "PN": ("Doe^Jane^^Dr^MD", "x" * 65, "a\\b"),
    }
    for vr, (valid, *invalid) in texts.items():
        assert valid_or_empty(valid, vr) == valid
        assert {valid_or_empty(text, vr) for text in invalid} == {""}, vr


def test_texts_of_the_model_are_converted():
    assert line("a\\b\tc\n\x01d") == "a/b c �d"
    assert line("y" * 63 + " z") == "y" * 63
    assert paragraph("a\tb\nc\x02" + "z" * 9999 + " \n") == "a b\nc�" + "z" * 9999


def patient(**values: object) -> tuple[Dataset, str]:
    """Patient and study of an image with these values, and the notes."""
    notes: list[str] = []
    first = Elements("", "", values, -1, -1, 0, True)
    return patient_and_study(first, "1.2.3", notes), "\n".join(notes)


def test_valid_values_of_the_image_are_copied():
    values = {
        "StudyDescription": "Head",
        "IssuerOfPatientID": "Clinic",
        "PatientAge": "045Y",
        "PatientSex": "F",
    }
    elements, notes = patient(**values)
    assert {keyword: elements[keyword].value for keyword in values} == values
    assert not any(keyword in notes for keyword in values)
    assert "no StudyDate, StudyTime, AccessionNumber" in notes


def test_identifiers_keep_their_leading_blanks_and_issuers():
    issuer = Dataset()
    issuer.UniversalEntityID = "1.2.840"
    values = {"PatientID": "   1234", "IssuerOfPatientIDQualifiersSequence": Sequence([issuer])}
    elements, notes = patient(**values)
    assert elements.PatientID == "   1234"
    assert elements.IssuerOfPatientIDQualifiersSequence[0] == issuer
    assert "PatientID" not in notes


def test_invalid_values_are_left_out_and_not_repeated():
    elements, notes = patient(
        PatientID="DOE-" + 70 * "7", StudyID="1" * 17, PatientSex="m", StudyDate="20261121"
    )
    assert (elements.PatientID, elements.StudyID, elements.PatientSex) == ("", "", "")
    assert elements.StudyDate == "20261121"
    for keyword in ("PatientID", "StudyID", "PatientSex"):
        assert f"{keyword} of the source images is not valid: empty here." in notes
    assert "DOE" not in notes


@pytest.mark.parametrize(
    ("accession", "valid", "order"),
    [("1" * 16, "1" * 16, None), ("1" * 17, "", "1" * 17), ("7" * 65, "", None), ("HOSP\\1", "", None)],
)
def test_a_long_accession_number_becomes_the_order_number(accession, valid, order):
    elements, notes = patient(AccessionNumber=accession)
    assert elements.AccessionNumber == valid
    assert elements.get("FillerOrderNumberImagingServiceRequest") == order
    assert ("(0040,2017)" in notes) == (order is not None)


def test_removal_of_the_identity_is_described():
    assert (
        patient(PatientIdentityRemoved="YES")[0].DeidentificationMethod == "not stated in the source images"
    )
    assert "DeidentificationMethod" not in patient(PatientIdentityRemoved="NO")[0]
    elements, _ = patient(PatientIdentityRemoved="YES", DeidentificationMethod="by hand")
    assert elements.DeidentificationMethod == "by hand"
