"""DICOM texts in words: names, dates, ages, and titles of study pages with and without names."""

from dataclasses import replace

import pytest

from ich_mil.pages.dicom_words import age_in_words, date_in_words, in_words, name_in_words, title_of
from tests.results import cohort

TEXTS = {
    "PatientName": "Doe^Jane^M",
    "PatientID": "P-7",
    "PatientBirthDate": "19600401",
    "PatientSex": "F",
    "PatientAge": "063Y",
    "StudyDate": "20240312",
    "SeriesDescription": "HEAD 5.0",
}
UID = "1.2.826.0.1.3680043.9.4245.1760717064491086528325869788156915668"


def test_texts_by_label():
    assert list(in_words({**TEXTS, "Other": "x"}).items()) == [
        ("Patient", "Doe, Jane M"),
        ("Study", "12 March 2024, 63 y, F"),
        ("Patient ID", "P-7"),
        ("Born", "1 April 1960"),
        ("Series", "HEAD 5.0"),
        ("Other", "x"),
    ]
    assert in_words({}) == {}
    assert in_words({"PatientSex": "M"}) == {"Study": "M"}


@pytest.mark.parametrize(
    ("age", "born", "words"),
    [
        ("063Y", "", "63 y"),
        ("007M", "", "7 months"),
        ("000D", "", "0 days"),
        ("old", "19600312", "old"),
        ("", "19600312", "64 y"),
        ("", "19600313", "63 y"),
        ("", "20220412", "23 months"),
        ("", "20240401", ""),  # after the study
        ("", "1960", ""),
    ],
)
def test_ages(age, born, words):
    texts = {"PatientAge": age, "PatientBirthDate": born, "StudyDate": "20240312"}
    assert age_in_words(texts) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [("20240312", "12 March 2024"), ("2024.12.01", "1 December 2024"), ("20240230", "20240230"), ("?", "?")],
)
def test_dates(text, words):
    assert date_in_words(text) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("DOE^JANE^^Dr.", "DOE, JANE"),
        ("Doe", "Doe"),
        ("^Jane", "Jane"),
        ("Yamada^Tarou=山田^太郎=", "Yamada, Tarou / 山田, 太郎"),
        ("^^^^", ""),
    ],
)
def test_names(name, words):
    assert name_in_words(name) == words


def test_titles():
    scan = replace(cohort(2).scans[0], scan=UID, folder="2024-02/CT_085_HEAD")
    assert title_of(scan, {}) == "2024-02/CT_085_HEAD (…56915668)"
    assert title_of(replace(scan, folder=""), {}) == "…56915668"
    assert title_of(replace(scan, scan="CQ500-CT-7"), {}) == "2024-02/CT_085_HEAD (CQ500-CT-7)"
    assert title_of(scan, TEXTS) == "Doe, Jane M, 12 March 2024, HEAD 5.0"
    assert title_of(scan, {"StudyDate": "20240312"}) == "2024-02/CT_085_HEAD (…56915668), 12 March 2024"
