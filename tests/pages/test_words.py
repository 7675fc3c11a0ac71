from dataclasses import replace

import numpy as np
import pytest

from ich_mil.ledger import BY_INTERVAL, LOOK, Code, LedgerEntry
from ich_mil.model.predictions import KindResult, Run
from ich_mil.pages.page import interval
from ich_mil.pages.words import MAX_DRIVERS, drivers, kinds, ranking, span, why_look
from ich_mil.sets.extras import ExtraInstance
from tests.results import scan_of


def plain(lines):
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


@pytest.fixture
def scan():
    return scan_of(np.pad(np.ones((6, 4, 4), bool), ((12, 2), (0, 0), (0, 0))))


def test_slices_are_counted_from_one():
    assert span(12, 12) == "slice 13"
    assert span(12, 17) == "slices 13–18"


def test_runs_are_told_with_the_scan_without_them(scan):
    assert plain(drivers(scan)) == ["Without slices 13–18 the scan's probability would be 21 %."]


def test_the_most_influential_runs_are_named(scan):
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
    clear = replace(calm, slices=tuple(replace(one, probability=0.009) for one in slices), probability=0.02)
    assert plain(drivers(clear)) == ["No slice reaches 1 %."]
    single = replace(calm, slices=(replace(slices[4], slice=0, scan_without=None),))
    assert plain(drivers(single)) == ["No slice reaches 50 %; the highest is slice 1 at 4 %."]


def test_an_undecided_scan_has_its_reason(scan):
    blank = (LedgerEntry("s", "f", Code.FLAT, ""),)
    crosses = "The 95 % interval crosses 50 %."
    for ledger, ends, rule, expected in (
        (blank, (0.1, 0.2), BY_INTERVAL, "Never called negative: a blank image."),
        (blank, (0.1, 0.6), BY_INTERVAL, f"Never called negative: a blank image. {crosses}"),
        ((), (0.1, 0.6), BY_INTERVAL, crosses),
        (blank, (0.1, 0.6), "thresholds", "Never called negative: a blank image."),
        ((), (0.1, 0.6), "thresholds", "The probability lies between the thresholds."),
        ((), (0.1, 0.2), BY_INTERVAL, "The 95 % interval reaches the limit of negative scans."),
    ):
        undecided = replace(scan, decision=LOOK, ledger=ledger, interval_95=ends)
        assert plain([why_look(undecided, rule)]) == [expected]
    assert why_look(replace(scan, ledger=blank), BY_INTERVAL) == ""


def test_kinds_have_names_and_the_rest_is_not_judged(scan):
    some = [
        KindResult(n, p, 0.1, (0.3, 0.9), "network 0", 0.51, 0.77) for n, p in (("iph", 0.5), ("EDH", 0.7))
    ]
    assert plain(kinds(replace(scan, kinds=tuple(some)))) == [
        "epidural: 70 % (95 % interval 30 % to 90 %); held-out AUC 0.77",
        "intraparenchymal: 50 % (95 % interval 30 % to 90 %); held-out AUC 0.77",
        "Not judged: intraventricular, subarachnoid, subdural",
    ]
    assert len(kinds(replace(scan, kinds=(replace(some[0], name="fracture"),)))) == 1


def test_an_interval_below_one_percent():
    assert plain([interval((0.001, 0.002)), interval((0.001, 0.12))]) == ["< 1 %", "< 1 % to 12 %"]


def test_ranking_of_slices_and_sentences(scan):
    extras = (
        ExtraInstance("sentence", "Fall.", 0.4, 0.9),
        ExtraInstance("sentence", "On warfarin.", 0.8, 0.1),
        ExtraInstance("covariates", "age 80", 0.9, 0.8),
    )
    mixed = replace(scan, extras=extras)  # of a probability of 0.873
    names = [name for _, name in ranking(mixed)]
    assert names == ["sentence 2", "slices 13–18", "the covariates", "sentence 1"]
    assert plain(drivers(mixed))[0] == "Without sentence 2 the scan's probability would be 10 %."
    calm = replace(mixed, runs=(), extras=extras[:1])
    assert ranking(calm)[0][1] == "sentence 1"  # no slice matters as much
    assert len(drivers(calm)) == MAX_DRIVERS
    same = tuple(replace(one, scan_without=scan.probability) for one in scan.slices)
    still = replace(calm, slices=same, extras=(replace(extras[0], scan_without=scan.probability),))
    assert plain(drivers(still)) == ["No slice, sentence or covariate alone changes the scan's probability."]
