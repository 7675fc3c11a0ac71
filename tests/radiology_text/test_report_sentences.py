"""Reports as sentences: breaks, sections, and what is no break."""

import pytest

from ich_mil.radiology_text.language.markup import plain_text
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
        ("There is a 4.5 mm subdural hematoma along the tentorium.", "FINDINGS", True),
        ("No midline shift.", "FINDINGS", True),
        ("- Ventricles are normal", "FINDINGS", True),
        ("1. Small SDH, see image no. 7.", "IMPRESSION", True),
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
        ("No infarct\nBlood, right", ["No infarct", "Blood, right"]),
        ("No acute\nInfarct", ["No acute Infarct"]),
        ("NO BLOOD\nOR MASS", ["NO BLOOD OR MASS"]),
        ("a) no shift b) blood", ["a) no shift", "b) blood"]),
        ("FINDINGS:", ["FINDINGS:"]),
    ],
)
def test_breaks(report, sentences):
    assert texts(report) == sentences
    assert " ".join(texts(report)).split() == report.split()


@pytest.mark.parametrize(
    ("report", "sentences"),
    [
        ("No CT evidence of:\n- SDH.\n- EDH\nNormal", ["No CT evidence of: SDH, or EDH", "Normal"]),
        ("Negative for:\n1. SDH\n2. There is an EDH", ["Negative for: SDH", "2. There is an EDH"]),
        ("Evidence of:\n- SDH\n- IVH", ["- SDH", "- IVH"]),
    ],
)
def test_items_of_a_denied_list(report, sentences):
    assert texts(report) == sentences


@pytest.mark.parametrize(
    ("report", "finding"),
    [
        ("Indication: bleed.\nNo bleed.", [False, True]),
        ("Indication: bleed.\nKnown SDH.\nFindings: normal.", [False, False, True]),
        ("HISTORY\nSDH\nFINDINGS\nNormal", [False, True]),
        ("?SDH. Normal.", [False, True]),
        ("Findings: Normal. Tiny SDH?", [True, True]),
        ("Clinical data - SDH. CT head: normal.", [False, True]),
    ],
)
def test_what_stands_before_the_findings(report, finding):
    assert [one.finding for one in split_report(report)] == finding


@pytest.mark.parametrize(
    ("report", "text"),
    [
        ("No&nbsp;blood<br>Mass", "No blood\nMass"),
        ("No\\.br\\blood", "No\nblood"),
        ("No\\nblood", "No\nblood"),
        (r"{\rtf1\ansi No blood.\par}", "No blood.\n"),
        ("OBX|1|TX|CT||No blood||F", "No blood"),
        ("hemor-\nrhage", "hemorrhage"),
        ("There isn't blood", "There is not blood"),
        ("Blood - none", "Blood: none"),
        ("ICH [ ] yes [x] no", "ICH: no"),
        ("SDH (+), SAH (-)", "SDH: present, SAH: negative"),
        ("Blood? No.", "Blood: No."),
    ],
)
def test_markup_and_forms(report, text):
    assert plain_text(report) == text


def test_a_heading_of_findings_ends_the_history():
    first, second = split_report("Indication: bleed. Brain: no bleed.")
    assert not first.finding
    assert second.finding
