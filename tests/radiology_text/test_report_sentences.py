"""Reports as sentences: breaks, sections, and what is no break."""

import pytest

from ich_mil.radiology_text.sentences import split_report

REPORT = """CT HEAD WITHOUT CONTRAST

CLINICAL HISTORY: Fall. Rule out subdural
hematoma. Seen by Dr. Smith.
TECHNIQUE: 5 mm axial images.

FINDINGS:
There is a 4.5 mm subdural hematoma along
the tentorium. No midline shift.
- Ventricles are normal
IMPRESSION:
1. Small SDH, see image no. 7.
2. No fracture."""


def texts(report):
    return [one.text for one in split_report(report)]


def test_a_report_with_sections_lists_and_broken_lines():
    told = [(one.text, one.section, one.finding) for one in split_report(REPORT)]
    assert told == [
        ("CT HEAD WITHOUT CONTRAST", "", True),
        ("CLINICAL HISTORY: Fall.", "CLINICAL HISTORY", False),
        ("Rule out subdural hematoma.", "CLINICAL HISTORY", False),
        ("Seen by Dr. Smith.", "CLINICAL HISTORY", False),
        ("TECHNIQUE: 5 mm axial images.", "TECHNIQUE", False),
        ("FINDINGS: There is a 4.5 mm subdural hematoma along the tentorium.", "FINDINGS", True),
        ("No midline shift.", "FINDINGS", True),
        ("- Ventricles are normal", "FINDINGS", True),
        ("IMPRESSION: 1. Small SDH, see image no. 7.", "IMPRESSION", True),
        ("2. No fracture.", "IMPRESSION", True),
    ]


@pytest.mark.parametrize(
    ("report", "sentences"),
    [
        ("a hematoma of 3 . 5 cm . no shift .", ["a hematoma of 3 . 5 cm .", "no shift ."]),
        ("Hematoma of 3.5 cm. No shift.", ["Hematoma of 3.5 cm.", "No shift."]),
        ("Blood! Where? There.", ["Blood!", "Where?", "There."]),
        ("HISTORY: fall FINDINGS: no bleed", ["HISTORY: fall", "FINDINGS: no bleed"]),
        ("no end", ["no end"]),
        ("One.\r\n\r\nTwo", ["One.", "Two"]),
        ("  \n ", []),
    ],
)
def test_breaks(report, sentences):
    assert texts(report) == sentences
    assert " ".join(texts(report)).split() == report.split()


def test_a_heading_of_findings_ends_the_history():
    first, second = split_report("Indication: bleed. Brain: no bleed.")
    assert not first.finding
    assert second.finding
