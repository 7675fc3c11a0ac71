"""Patient and study of a result: what cannot be kept is told by its name alone."""

from types import SimpleNamespace

import pytest
from pydicom.dataset import Dataset

from ich_mil.report.dicom.patient import patient_and_study


def made_of(character_sets: str = "", **values: bytes) -> tuple[Dataset, list[str]]:
    """Patient and study of an image with these values, and what is told of them."""
    first = SimpleNamespace(values=values, text=lambda keyword: character_sets)
    notes: list[str] = []
    return patient_and_study(first, "1.2.3", notes), notes


def test_a_value_that_is_not_valid_is_not_told_in_words():
    elements, notes = made_of(
        PatientID=b"DOE-" + 70 * b"7", PatientBirthDate=b"yesterday", StudyDate=b"20261121"
    )
    assert (elements.PatientID, elements.PatientBirthDate, elements.StudyDate) == ("", "", "20261121")
    told = "\n".join(notes)
    assert "PatientID of the source images is not valid: empty here." in told
    assert "PatientBirthDate of the source images is not valid: empty here." in told
    assert "DOE" not in told
    assert "yesterday" not in told


def test_a_number_that_is_too_long_is_left_out_for_cut_off_it_could_be_anothers():
    elements, notes = made_of(AccessionNumber=b"12345678901234567", StudyID=b"12345678901234567")
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
    elements, notes = made_of(AccessionNumber=accession.encode())
    assert elements.AccessionNumber == valid
    assert elements.get("FillerOrderNumberImagingServiceRequest") == order
    assert len([note for note in notes if "(0040,2017)" in note]) == (order is not None)


@pytest.mark.parametrize(
    ("keyword", "valid", "invalid"),
    [("PatientSex", "M F O", "m male"), ("PatientIdentityRemoved", "YES NO", "yes Y")],
)
def test_enumerated_values(keyword, valid, invalid):
    for text in (*valid.split(), *invalid.split()):
        elements, _ = made_of(**{keyword: text.encode()})
        assert elements.get(keyword, "") == (text if text in valid.split() else "")


def test_blanks_around_a_value_are_no_part_of_it():
    elements, notes = made_of(AccessionNumber=b" 123 ", PatientID=b"P1\0")
    assert (elements.AccessionNumber, elements.PatientID) == ("123", "P1")
    assert not any("not valid" in note for note in notes)


def test_what_an_image_says_beyond_what_it_must_is_carried_over():
    carried = {"StudyDescription": "Head", "IssuerOfPatientID": "Clinic", "PatientAge": "045Y"}
    elements, notes = made_of(**{keyword: text.encode() for keyword, text in carried.items()})
    assert {keyword: elements[keyword].value for keyword in carried} == carried
    assert not any(keyword in " ".join(notes) for keyword in carried)
    assert not any(keyword in " ".join(made_of()[1]) for keyword in carried), "it need not be there"


def test_a_name_in_several_character_sets():
    name = b"Yamada^Tarou=\x1b$B;3ED\x1b(B^\x1b$BB@O:\x1b(B"
    elements, notes = made_of("\\ISO 2022 IR 87", PatientName=name)
    assert elements.PatientName == "Yamada^Tarou=山田^太郎"
    assert not any("not valid" in note for note in notes)


def test_how_an_identity_was_removed_is_stated_where_it_was():
    elements, _ = made_of(PatientIdentityRemoved=b"YES ")
    assert elements.DeidentificationMethod == "not stated in the source images"
    assert "DeidentificationMethod" not in made_of(PatientIdentityRemoved=b"NO")[0]
    elements, _ = made_of(PatientIdentityRemoved=b"YES ", DeidentificationMethod=b"by hand ")
    assert elements.DeidentificationMethod == "by hand"
