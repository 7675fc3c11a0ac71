from dataclasses import replace

import numpy as np
import pytest

from ich_mil.evaluate.deployment.triage import DECISIONS
from ich_mil.ledger import CORRECTED, INCOMPLETE, REFUSED, Code, LedgerEntry
from ich_mil.report.words import CODES, MARK, PLAIN, PROBLEMS, PROMISED, drivers, problems, routine, span
from ich_mil.runs.predictions import Run
from tests.results import LEDGER, scan_of


def plain(lines):
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


@pytest.fixture
def scan():
    return scan_of(np.pad(np.ones((6, 4, 4), bool), ((12, 2), (0, 0), (0, 0))))


def test_every_result_and_every_code_has_words():
    for words in (PROMISED, PLAIN):
        assert set(words) == set(MARK) == set(DECISIONS)
        assert len(set(words.values())) == len(set(MARK.values())) == 3
    assert set(CODES) == set(Code)
    assert len(set(CODES.values())) == len(CODES)


def test_slices_are_counted_from_one():
    assert span(12, 12) == "slice 13"
    assert span(12, 17) == "slices 13–18"


def test_runs_are_told_with_the_scan_without_them(scan):
    assert plain(drivers(scan)) == ["Without slices 13–18 the scan's probability would be 21 %."]


def test_the_run_that_matters_most_comes_first_and_only_some_are_named(scan):
    runs = tuple(Run(2 * i, 2 * i, p) for i, p in enumerate([0.8, 0.3, 0.7, 0.6, 0.5, 0.4]))
    lines = plain(drivers(replace(scan, runs=runs)))
    assert [line.split(" the")[0] for line in lines[:4]] == [
        "Without slice 3",
        "Without slice 11",
        "Without slice 9",
        "Without slice 7",
    ]
    assert lines[4:] == ["2 more runs: see the chart of slices."]


def test_a_run_of_all_slices_has_no_rest(scan):
    assert plain(drivers(replace(scan, runs=(Run(0, 19, None),)))) == ["All slices reach 50 %."]


def test_without_a_run_the_highest_slice_is_told(scan):
    slices = tuple(replace(one, probability=0.01 * one.slice, scan_without=0.2) for one in scan.slices)
    calm = replace(scan, probability=0.2, runs=(), slices=slices)
    highest = "No slice reaches 50 %; the highest is slice 20 at 19 %."
    assert plain(drivers(calm)) == [highest]
    pulled = replace(calm, slices=(replace(slices[0], scan_without=0.05), *slices[1:]))
    assert plain(drivers(pulled)) == [highest, "Without slice 1 the scan's probability would be 5 %."]
    alike = replace(calm, slices=tuple(replace(one, scan_without=0.3) for one in slices))
    assert plain(drivers(alike)) == [highest]  # none of them raises the probability
    single = replace(calm, slices=(replace(slices[4], slice=0, scan_without=None),))
    assert plain(drivers(single)) == ["No slice reaches 50 %; the highest is slice 1 at 4 %."]


def test_problems_are_what_a_reader_must_know_and_the_rest_is_routine():
    assert problems(LEDGER) == [
        "Refused: a repeated slice",
        "Not a plain axial head series",
    ]
    assert routine(LEDGER) == ["Refused: a localizer"]
    gaps = [LedgerEntry("s", "f", Code.GAP, "")] * 3
    assert problems(gaps) == ["Gap between slices (3 times)"]
    stretched = [LedgerEntry("s", "", Code.PIXELS_NOT_SQUARE, "")]
    assert problems(stretched) == ["Pixels are not square: images are stretched, also for the model"]
    clipped = [LedgerEntry("s", "f", Code.HU_CLIPPED, "")]
    assert problems(clipped) == ["Corrected: extreme values cut"]
    turned = [LedgerEntry("s", "", code, "") for code in (Code.FLIPPED, Code.SEVERAL_PATIENTS)]
    assert problems(turned) == [
        "Rows or columns stored in reverse order; images are shown as stored",
        "Several patient identifiers in one study",
    ]
    assert INCOMPLETE <= PROBLEMS  # why a scan is not called negative
    for code in Code:
        one = [LedgerEntry("s", "f", code, "")]
        assert bool(problems(one)) != bool(routine(one))
        assert bool(problems(one)) == (code in PROBLEMS)
    assert PROBLEMS & REFUSED
    assert PROBLEMS & CORRECTED


def test_no_text_of_a_file_gets_into_the_words():
    entries = [LedgerEntry("s", "DOE^JANE.dcm", code, "DOE^JANE") for code in Code]
    assert "DOE" not in " ".join(problems(entries) + routine(entries))
