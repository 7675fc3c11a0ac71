"""Patient and study of a result: what cannot be kept is told by its name alone."""

import pytest
from pydicom.dataset import Dataset

from ich_mil.dicom.files.elements import Elements
from ich_mil.report.dicom.patient import patient_and_study


def made_of(**values: str) -> tuple[Dataset, list[str]]:
    """Patient and study of an image with these values, and what is told of them."""
    first = Elements("", "", values, -1, -1, 0, has_character_set=True)
    notes: list[str] = []
    return patient_and_study(first, "1.2.3", notes), notes


def test_a_value_that_is_not_valid_is_not_told_in_words():
    elements, notes = made_of(PatientID="DOE-" + 70 * "7", PatientBirthDate="yesterday", StudyDate="20261121")
    assert (elements.PatientID, elements.PatientBirthDate, elements.StudyDate) == ("", "", "20261121")
    told = "\n".join(notes)
    assert "PatientID of the source images is not valid: empty here." in told
    assert "PatientBirthDate of the source images is not valid: empty here." in told
    assert "DOE" not in told
    assert "yesterday" not in told


def test_a_number_that_is_too_long_is_left_out_for_cut_off_it_could_be_anothers():
    elements, notes = made_of(AccessionNumber="12345678901234567", StudyID="12345678901234567")
    assert (elements.AccessionNumber, elements.StudyID) == ("", "")
    assert len([note for note in notes if note.endswith("is not valid: empty here.")]) == 2


@pytest.mark.parametrize(
    ("accession", "valid", "order"),
    [
        ("1234567890123456", "1234567890123456", None),
        ("12345678901234567", "", "12345678901234567"),
        ("7" * 64, "", "7" * 64),
        ("7" * 65, "", None),
        ("HOSP\\12345678901234567", "", None),
    ],
)
def test_an_accession_number_that_is_too_long_keeps_the_link_to_the_order(accession, valid, order):
    elements, notes = made_of(AccessionNumber=accession)
    assert elements.AccessionNumber == valid
    assert elements.get("FillerOrderNumberImagingServiceRequest") == order
    assert len([note for note in notes if "(0040,2017)" in note]) == (order is not None)


@pytest.mark.parametrize(
    ("keyword", "valid", "invalid"),
    [("PatientSex", "M F O", "m male"), ("PatientIdentityRemoved", "YES NO", "yes Y")],
)
def test_enumerated_values(keyword, valid, invalid):
    for text in (*valid.split(), *invalid.split()):
        elements, _ = made_of(**{keyword: text})
        assert elements.get(keyword, "") == (text if text in valid.split() else "")


def test_blanks_around_a_value_are_no_part_of_it():
    elements, notes = made_of(AccessionNumber=" 123 ", PatientID="P1\0")
    assert (elements.AccessionNumber, elements.PatientID) == ("123", "P1")
    assert not any("not valid" in note for note in notes)


def test_what_an_image_says_beyond_what_it_must_is_carried_over():
    carried = {"StudyDescription": "Head", "IssuerOfPatientID": "Clinic", "PatientAge": "045Y"}
    elements, notes = made_of(**carried)
    assert {keyword: elements[keyword].value for keyword in carried} == carried
    assert not any(keyword in " ".join(notes) for keyword in carried)
    assert not any(keyword in " ".join(made_of()[1]) for keyword in carried), "it need not be there"


def test_how_an_identity_was_removed_is_stated_where_it_was():
    elements, _ = made_of(PatientIdentityRemoved="YES ")
    assert elements.DeidentificationMethod == "not stated in the source images"
    assert "DeidentificationMethod" not in made_of(PatientIdentityRemoved="NO")[0]
    elements, _ = made_of(PatientIdentityRemoved="YES ", DeidentificationMethod="by hand ")
    assert elements.DeidentificationMethod == "by hand"
