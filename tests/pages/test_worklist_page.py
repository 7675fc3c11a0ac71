from dataclasses import replace

import pytest

from ich_mil.ledger import LOOK, NEGATIVE, POSITIVE, Code, LedgerEntry
from ich_mil.model.predictions import Provenance, Run, worklist
from ich_mil.pages.page import study_file_name
from ich_mil.pages.worklist_page import render_worklist
from tests.html_page import HOSTILE, check_offline
from tests.results import cohort

RESULTS = cohort(9)
LINKS = {scan.scan: study_file_name(scan.scan) for scan in RESULTS.scans}


def said(page):
    return page.text.replace("\N{NO-BREAK SPACE}", " ")


def test_positive_scans_come_first_then_all_by_probability():
    some = [
        replace(RESULTS.scans[0], scan=name, decision=decision, probability=p)
        for name, decision, p in (
            ("a", NEGATIVE, 0.9),
            ("b", LOOK, 0.2),
            ("c", POSITIVE, 0.1),
            ("d", POSITIVE, 0.3),
            ("f", LOOK, 0.4),
            ("e", LOOK, 0.4),
        )
    ]
    listed = worklist(replace(RESULTS, scans=tuple(some)))
    assert [scan.scan for scan in listed] == ["d", "c", "a", "e", "f", "b"]


def test_every_scan_is_listed():
    html = render_worklist(RESULTS, LINKS, title="Studies")
    page = check_offline(html)
    text = said(page)
    assert set(LINKS.values()) <= set(page.addresses)
    for scan in RESULTS.scans:
        assert text.count(scan.scan) == 1
    for decision in (POSITIVE, LOOK, NEGATIVE):
        count = sum(scan.decision == decision for scan in RESULTS.scans)
        assert html.count(f'<tr data-decision="{decision}">') == count
        assert f"</span> {count}</b>" in html
    assert "<b>2</b>with input problems" in html
    assert text.count("Refused: a repeated slice") == 2
    assert "PAT-0071" not in html
    kept = sum(scan.decision == LOOK and len(scan.ledger) > 1 for scan in RESULTS.scans)
    assert text.count("never called negative: see input") == kept > 0
    first = worklist(RESULTS)[0]
    assert text.index(first.scan) < text.index(worklist(RESULTS)[1].scan)
    runs = (Run(11, 16, 0.213), Run(3, 3, 0.5), Run(20, 21, 0.6))
    learned = LedgerEntry(first.scan, "", Code.LEARNED_FROM, "")
    one = replace(first, probability=0.873, interval_95=(0.712, 0.951), runs=runs, ledger=(learned,))
    page = check_offline(render_worklist(replace(RESULTS, scans=(one,), ledger=()), {}, title="One"))
    assert "a" not in page.tags  # no link to a page that does not exist
    text = said(page)
    assert "not analysed" not in text
    assert "1scan 0with input problems" in " ".join(text.split())  # the patient of the model is none
    for expected in ("87 %", "71 % to 95 %", "slices 12–17 (21 %)", "slice 4 (50 %)", "1 more"):
        assert expected in text, expected
    assert "slices 21–22" not in text


def test_a_study_without_a_prediction_has_its_reasons():
    lost = [
        LedgerEntry("lost", "", Code.SCAN_EMPTY, "DOE"),
        LedgerEntry("lost", "DOE1.dcm", Code.UNREADABLE, "DOE"),
        LedgerEntry("lost", "DOE2.dcm", Code.UNREADABLE, "DOE"),
        LedgerEntry("", "DOE.txt", Code.NOT_DICOM, "DOE"),
    ]
    results = replace(RESULTS, scans=(), ledger=tuple(lost))
    text = said(check_offline(render_worklist(results, {}, title="Studies")))
    assert "1 study was not analysed" in text
    assert "lost: Refused: damaged (2 times)" in text
    assert "Not related to one of these scans: Refused: not a DICOM file." in text
    assert "DOE" not in text


def test_folders_stand_beside_the_ids():
    one = replace(RESULTS.scans[0], folder="site/001")
    lost = LedgerEntry("1.2.3", "002", Code.SCAN_EMPTY, "")
    html = render_worklist(replace(RESULTS, scans=(one,), ledger=(lost,)), LINKS, title="Studies")
    link = (
        f'<a href="{LINKS[one.scan]}"><bdi>site/001</bdi></a><div class="quiet"><bdi>{one.scan}</bdi></div>'
    )
    assert link in html
    assert "<bdi>002</bdi> <bdi>1.2.3</bdi>" in html


def test_names_stand_with_their_scans():
    one, other = RESULTS.scans[:2]
    texts = {
        one.scan: {"AccessionNumber": "A-1", "PatientName": "Doe^Jane", "InstitutionName": "St. Elsewhere"}
    }
    html = render_worklist(replace(RESULTS, scans=(one, other)), {}, title="Studies", texts=texts)
    who = '<div class="who"><bdi>Doe, Jane</bdi> <bdi>A-1</bdi> </div>'
    assert html.count(who) == html.count("Doe") == 1
    assert f"<bdi>{one.scan}</bdi>{who}" in html
    assert "Elsewhere" not in html


def test_files_of_no_known_study_are_not_lost():
    """A study whose files lost their StudyInstanceUID has no row in the list."""
    nameless = [LedgerEntry("", f"DOE{i}.dcm", Code.NO_UID, "DOE") for i in range(3)]
    others = [LedgerEntry("", "a.txt", Code.NOT_DICOM, ""), LedgerEntry("lost", "b", Code.UNREADABLE, "")]
    html = render_worklist(replace(RESULTS, ledger=(*nameless, *others)), LINKS, title="Studies")
    text = said(check_offline(html))
    assert "3 files belong to no known study and were not analysed; see prepared/ledger.csv." in text
    assert "Refused: identifiers missing (3 times)" in text
    assert "Not related to one of these scans: Refused: damaged; Refused: not a DICOM file." in text
    assert "DOE" not in html
    assert "no known study" not in render_worklist(
        replace(RESULTS, ledger=tuple(others)), {}, title="Studies"
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_only_text(text):
    lost = LedgerEntry(text, text, Code.SCAN_EMPTY, text)
    scans = (replace(RESULTS.scans[0], scan=text, patient=text, folder=text), RESULTS.scans[1])
    model = Provenance(text, text, text, text, text, text)
    hostile = replace(RESULTS, scans=scans, ledger=(lost,), model=model, decided_by=text)
    texts = {text: {"PatientName": text}}
    page = check_offline(render_worklist(hostile, {text: study_file_name(text)}, title=text, texts=texts))
    name = RESULTS.scans[0].scan
    ordinary = check_offline(
        render_worklist(
            replace(
                RESULTS,
                scans=(replace(RESULTS.scans[0], folder="001"), RESULTS.scans[1]),
                ledger=(replace(RESULTS.ledger[0], file="002"),),
            ),
            {name: "a.html"},
            title="Studies",
            texts={name: {"PatientName": "Doe"}},
        )
    )
    assert sorted(page.tags) == sorted(ordinary.tags)
    assert page.attributes == ordinary.attributes
    if text.isprintable():
        assert page.text.count(text) >= 9


def test_a_link_that_leaves_the_folder_is_refused():
    with pytest.raises(ValueError, match="must be relative"):
        render_worklist(RESULTS, dict.fromkeys(LINKS, "//evil.example"), title="Studies")
