"""Patient and study of a result: what cannot be kept is told by its name alone."""

from types import SimpleNamespace

from ich_mil.dicom.elements import tag_of
from ich_mil.report.dicom.patient import patient_and_study


def test_a_value_that_is_not_valid_is_not_told_in_words():
    values = {
        "PatientID": b"DOE-" + 70 * b"7",
        "PatientBirthDate": b"yesterday",
        "StudyDate": b"20261121",
    }
    first = SimpleNamespace(
        values={tag_of(keyword): raw for keyword, raw in values.items()}, text=lambda tag: ""
    )
    notes: list[str] = []
    elements = patient_and_study(first, "1.2.3", notes)
    assert (elements.PatientID, elements.PatientBirthDate, elements.StudyDate) == ("", "", "20261121")
    told = "\n".join(notes)
    assert "PatientID of the source images is not valid: empty here." in told
    assert "PatientBirthDate of the source images is not valid: empty here." in told
    assert "DOE" not in told
    assert "yesterday" not in told
