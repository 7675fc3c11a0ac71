"""Scan labels: what decides, what leaves a scan out, and corrections."""

import pytest

from ich_mil.errors import DataError
from ich_mil.radiology_text.labels import (
    MEASURED,
    PROBABILITY,
    correct,
    label_scans,
    least_sure,
    read_corrections,
    read_sentences,
)
from ich_mil.radiology_text.read import Report


def labelled(*reports):
    """Labels of reports, given as scan and text."""
    named = [Report(f"r{i}", scan, text) for i, (scan, text) in enumerate(reports)]
    return label_scans(read_sentences(named))


@pytest.mark.parametrize(
    ("text", "outcome", "decided"),
    [
        ("Small subdural hematoma. No midline shift.", "positive", "stated"),
        ("Small subdural hematoma. No acute hemorrhage.", "positive", "stated"),
        ("Small subdural hematoma. No new hemorrhage.", "positive", "stated"),
        ("Small subdural hematoma. No intracranial hemorrhage.", "uncertain", "contradiction"),
        ("No acute hemorrhage. Scalp hematoma.", "negative", "denied"),
        ("No hemorrhage. No new hemorrhage.", "negative", "denied"),
        ("No hemorrhage. Possible subdural hematoma.", "uncertain", "hedged"),
        ("No new hemorrhage.", "uncertain", "implied"),
        ("No subarachnoid hemorrhage.", "uncertain", "part"),
        ("The subdural hematoma has resolved.", "uncertain", "gone"),
        ("No acute intracranial abnormality.", "negative", "normal"),
        ("Ventricles are normal. Scalp hematoma.", "uncertain", "silent"),
        ("HISTORY: subdural hematoma. FINDINGS: No hemorrhage.", "negative", "denied"),
        ("INDICATION: bleed?", "uncertain", "silent"),
        ("SDH.", "uncertain", "named"),
        ("SDH. No acute hemorrhage.", "uncertain", "named"),
        ("Left SDH. Normal head CT.", "uncertain", "contradiction"),
        ("Parenchyma: No hemorrhage. Extra-axial: Left SDH.", "positive", "stated"),
        ("Ventricles: No blood.", "uncertain", "part"),
        ("Ventricles: No blood. Cisterns: No blood.", "negative", "denied"),
        ("No hemorrhage. ADDENDUM: Small left SDH.", "positive", "stated"),
        ("No hemorrhage. Hemorrhage flumox.", "uncertain", "unread"),
        ("Keine ICH. Kein Infarkt.", "uncertain", "language"),
        ("MRI lumbar spine: epidural hematoma.", "uncertain", "examination"),
        ("MRI BRAIN: No intracranial hemorrhage.", "uncertain", "examination"),
        ("EXAM: CT of the sinuses\nBlood in the maxillary sinus.", "uncertain", "examination"),
        ("CT CERVICAL SPINE: No fracture. CT HEAD: Left SDH, 6 mm.", "positive", "stated"),
        ("CT head and cervical spine. Small SDH.", "positive", "stated"),
        ("MRI is advised after this CT. Small SDH.", "positive", "stated"),
        ("FINDINGS:", "uncertain", "silent"),
        ("INTRACRANIAL HEMORRHAGE:\n\nEXTRA-AXIAL SPACES:\n\nVENTRICLES:", "uncertain", "unread"),
        ("Thin left SDH on 12 April. It has resolved.", "uncertain", "unread"),
        ("The left SDH has resolved. The right one has not.", "uncertain", "unread"),
        ("Blood along the tentorium. There is none.", "uncertain", "unread"),
        ("Small SDH. This is unchanged. The ventricles have cleared.", "positive", "stated"),
        ('Outside report reads: "SAH". FINDINGS: No hemorrhage.', "negative", "denied"),
        ("The preliminary report describes a small SDH. No hemorrhage.", "uncertain", "unread"),
        ("SDH. ADDENDUM: There is no hemorrhage.", "uncertain", "contradiction"),
        ("CT head: Acute left SDH. WRONG PATIENT - DISREGARD.", "uncertain", "unread"),
        ("NEONATAL HEAD ULTRASOUND\nBilateral IVH.", "uncertain", "examination"),
        ("Haemorrhages: 0. Infarcts: 1.", "negative", "denied"),
        ("Fails to show any resolution of the left frontal haematoma.", "positive", "stated"),
        ("SDH left 5 mm; SAH, EDH: none.", "positive", "stated"),
        ("Drain after haematoma evacuation.", "uncertain", "silent"),
        ("<del>Small left SDH.</del> <ins>No hemorrhage.</ins>", "negative", "denied"),
        ("Scalp: Left frontal hematoma, 14 mm. Brain: normal.", "negative", "normal"),
        ("Orbits: hemorrhage on the left.", "uncertain", "silent"),
        ("CHEST: Pulmonary contusion in left lower lobe.", "uncertain", "silent"),
        ("ABDOMEN: No hemorrhage.", "uncertain", "silent"),
        ("CERVICAL SPINE: Epidural hematoma at C4.", "uncertain", "silent"),
        ("Scalp: Normal. Small left subdural hematoma.", "positive", "stated"),
        ("Scalp: Normal. Hemorrhage in the left thalamus.", "positive", "stated"),
        ("Head and neck: Left thalamic hemorrhage.", "positive", "stated"),
        ("Left acute SDH of 4 mm. IMPRESSION: No acute hemorrhage.", "uncertain", "contradiction"),
        ("Left chronic SDH of 4 mm. IMPRESSION: No acute hemorrhage.", "positive", "stated"),
        ("Acute SDH on the right. No subarachnoid or epidural hemorrhage.", "positive", "stated"),
        ("Ventricles: No acute hemorrhage.", "uncertain", "part"),
        ("Chronic SDH of 4 mm, no hyperacute blood.", "positive", "stated"),
        ("Absence of intraventricular blood and hematoma has been confirmed.", "negative", "denied"),
        ("Fluid of 4 mm along the falx, effusion or subacute hematoma.", "uncertain", "hedged"),
        ("This could be thickening, calcification or a small hemorrhage.", "uncertain", "hedged"),
        ("Subdural or epidural hematoma, 8 mm.", "positive", "stated"),
        ("A dense dot, DDx: petechial hemorrhage, calcification.", "uncertain", "hedged"),
        ("A dense dot - ? calcification ? small hemorrhage.", "uncertain", "silent"),
        ("There may be small subdural collections or hematomas.", "uncertain", "hedged"),
        ("Brain,1\nBleed,0\nScalp hematoma,1", "negative", "denied"),
        ("Infarct: No\nHemorrhage: Yes", "positive", "stated"),
        ("No bleed on the pictures sent. Not a formal report.", "uncertain", "unread"),
        ("Bleed of 7 mm in the left thalamus. No extra-axial hematoma.", "positive", "stated"),
        ("No extra-axial hematoma.", "uncertain", "part"),
        ("No intra- or extra-axial hematoma.", "negative", "denied"),
        ("Absent are shift, fracture and blood.", "negative", "denied"),
        ("Site | Present | Size\nSDH | N | -\nSAH | N | -\nIVH | N | -", "negative", "denied"),
        ("The left subdural has gone.", "uncertain", "gone"),
        ("Nothing is left of the contusion.", "uncertain", "gone"),
        ("The scan fails to show any of the hemorrhage that was suspected.", "negative", "denied"),
        ("There is not a single cistern that contains blood.", "uncertain", "unread"),
        ("These findings are not diagnostic of a small subdural hematoma.", "uncertain", "hedged"),
        ("1 May: SDH 9 mm. 8 May (today): gone, no new bleed.", "uncertain", "unread"),
        ("3 Jan, left EDH 18 mm. 29 Jan (today), no residual, no other bleed.", "uncertain", "dates"),
        ("Follow up after left SDH. The subdural has resolved. No new bleed.", "uncertain", "implied"),
        ("Resident: Left SAH. Attending: I am not convinced.", "uncertain", "unread"),
        ("12/3: right SDH of 4 mm. No shift.", "positive", "stated"),
        ("Preliminary (on call): small SDH. Final: fat along the falx.", "uncertain", "silent"),
        ("Comparison: 3/2021\n\nChronic SDH, 9 mm.\n\nSummary: No acute injury.", "positive", "stated"),
        ("History: Fall.\nKnown SDH.\n\nFindings: Normal brain.", "negative", "normal"),
    ],
)
def test_one_report(text, outcome, decided):
    (label,) = labelled(("S", text))
    assert label.outcome == outcome
    assert label.reason == ("" if decided in PROBABILITY else decided)
    assert label.probability == PROBABILITY.get(decided, PROBABILITY["uncertain"])


@pytest.mark.parametrize(
    ("first", "second", "outcome", "reason"),
    [
        ("Left SDH.", "No hemorrhage.", "uncertain", "disagree"),
        ("Left SDH.", "Possible hemorrhage.", "positive", ""),
        ("SDH.", "No hemorrhage.", "uncertain", "named"),
        ("The SDH has resolved.", "No hemorrhage.", "negative", ""),
        ("No hemorrhage.", "Possible hemorrhage.", "uncertain", "hedged"),
        ("No hemorrhage.", "No new hemorrhage.", "negative", ""),
        ("No hemorrhage.", "Addendum: measured again.", "negative", ""),
        ("No hemorrhage.", "MRI brain. Small SDH.", "negative", ""),
    ],
)
def test_two_reports_of_one_scan_in_either_order(first, second, outcome, reason):
    for texts in ((first, second), (second, first)):
        (label,) = labelled(*(("S", text) for text in texts))
        assert (label.outcome, label.reason) == (outcome, reason)


def test_kinds_of_all_positive_reports():
    labels = labelled(("B", "Left SDH."), ("A", "No hemorrhage."), ("B", "Left Sylvian SAH."))
    assert [(one.scan, one.kinds) for one in labels] == [("B", ("sah", "sdh")), ("A", ())]


def test_statements_of_the_history_are_other():
    ((history, finding),) = read_sentences([Report("r", "S", "HISTORY: SDH. FINDINGS: SDH.")])
    assert (history.verdict.label, history.verdict.evidence) == ("other", ("HISTORY:", "SDH"))
    assert (finding.verdict.label, finding.verdict.kinds) == ("present", ("sdh",))


def test_probability_is_the_shrunk_accuracy():
    right, wrong = (sum(row[i] for row in MEASURED.values()) for i in (0, 1))
    normal = MEASURED["normal"]
    accuracy = (normal[0] + 10 * right / (right + wrong)) / (sum(normal) + 10)
    assert PROBABILITY["normal"] == round(1 - accuracy, 3)
    assert PROBABILITY["denied"] < PROBABILITY["normal"] < 0.5 < PROBABILITY["stated"]


def test_the_least_sure_labels_are_to_be_read():
    labels = labelled(
        *((f"{i:02}", "No SDH or SAH.") for i in range(30)), ("sure", "Left SDH."), ("out", "Possible SDH.")
    )
    first, *others = least_sure(labels)
    assert first == "sure"
    assert len(others) == 19
    assert least_sure(correct(labels, {"sure": "positive"}))[0] == "00"


def test_corrections_decide_and_others_stay(tmp_path):
    labels = labelled(("A", "SDH."), ("B", "No hemorrhage."), ("C", "Possible hemorrhage."), ("D", "SDH."))
    path = tmp_path / "corrections.csv"
    path.write_text('scan,label\n"A",0\nB,1\nC,out\n')
    a, b, c, d = correct(labels, read_corrections(path, labels))
    assert (a.outcome, a.probability, a.kinds, a.corrected) == ("negative", 0.0, (), True)
    assert (b.outcome, b.probability, b.corrected) == ("positive", 1.0, True)
    assert (c.outcome, c.reason, c.corrected) == ("uncertain", "corrected", True)
    assert d == labels[3]


@pytest.mark.parametrize(
    ("rows", "word"),
    [("A,2", "line 2"), ("A,", "line 2"), ("X,1", "X"), ("A,1\nA,0", "twice"), ("A,1,0", "line 2")],
)
def test_corrections_that_cannot_be_used(tmp_path, rows, word):
    path = tmp_path / "corrections.csv"
    path.write_text(f"scan,label\n{rows}\n")
    with pytest.raises(DataError, match=r"corrections\.csv") as caught:
        read_corrections(path, labelled(("A", "SDH.")))
    assert word in str(caught.value)
