"""Results: what is decided, what is written is what is read, and both files say the same."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.triage import fit_triage
from ich_mil.files import digest
from ich_mil.heads.counterfactual import Counterfactuals, SliceRun
from ich_mil.ledger import (
    BY_INTERVAL,
    LOOK,
    NEGATIVE,
    NOTICE,
    POSITIVE,
    WHOLE_ONLY,
    Code,
    LedgerEntry,
    has_guarantee,
    incomplete,
)
from ich_mil.model.assembly import make_results, unlike_scans
from ich_mil.model.predictions import (
    SCAN_COLUMNS,
    SLICE_COLUMNS,
    read_results,
    scan_table,
    write_results,
)
from ich_mil.sets.labels import UNKNOWN
from tests.results import MODEL

NAN = float("nan")


def parts():
    """Three scans of 2, 1 and 2 slices: certainly positive, undecided, certainly negative."""
    features = SimpleNamespace(
        scans=["a", "b", "c"],
        patients=["p", "q", "q"],
        offsets=torch.tensor([0, 2, 3, 5]),
        labels=torch.tensor([1, UNKNOWN, 0]),
        slice_labels=torch.tensor([UNKNOWN, 1, UNKNOWN, 0, 0]),
        slice_names=["1.1", "1.2", "2.1", "3.1", "3.2"],
    )
    predictions = SimpleNamespace(
        scan_mean=torch.tensor([0.9, 0.5, 0.123456789]).double(),
        scan_std=torch.tensor([0.05, 0.2, 0.01]).double(),
        scan_low=torch.tensor([0.8, 0.2, 0.1]).double(),
        scan_high=torch.tensor([0.95, 0.8, 0.2]).double(),
        slice_mean=torch.tensor([0.2, 0.9, 0.4, 0.1, 0.05]).double(),
        slice_std=torch.full((5,), 0.01).double(),
        slice_low=torch.full((5,), 0.01).double(),
        slice_high=torch.full((5,), 0.99).double(),
    )
    explained = Counterfactuals(
        torch.tensor([0.9, 0.3, NAN, 0.1, 0.12]).double(), ((SliceRun(1, 1, 0.3),), (), ()), ((), (), ())
    )
    lines = {
        "a": [{"scan": "a", "file": "x.dcm", "code": "padding", "detail": "air"}],
        "": [{"scan": "", "file": "readme.txt", "code": "not-dicom", "detail": "no header"}],
    }
    tables = {
        "a": pd.DataFrame({"position_mm": [0.0, 5.0], "corrections": ["padding|already-hu", ""]}),
        "b": pd.DataFrame({"position_mm": [1.0], "corrections": [""]}),
        "c": pd.DataFrame({"position_mm": [0.0, 2.0004], "corrections": ["", ""]}),
    }
    tables = {
        scan: table.assign(content=[f"{scan}{n}" for n in range(len(table))])
        for scan, table in tables.items()
    }
    scans = pd.DataFrame({"content": ["c1", "c2", ""]}, index=["a", "b", "c"])
    prepared = SimpleNamespace(
        ledger_by_scan=lines,
        slices=tables.__getitem__,
        scans=scans,
        folders={"a": "001", "b": "", "lost": "004"},
    )
    return features, predictions, explained, prepared


def made(*parts, unlikeness=(0.4, 0.4, 0.4), **others):
    return make_results(*parts, unlikeness=np.array(unlikeness), **others)


@pytest.fixture
def results():
    return made(*parts(), set_name="new", model=MODEL)


def test_each_scan_knows_its_pixels_from_below(results):
    assert [scan.pixels for scan in results.scans] == [
        digest(b"a0", b"a1"),
        digest(b"b0"),
        digest(b"c0", b"c1"),
    ]


def test_each_slice_has_its_own_numbers_and_place():
    features, predictions, explained, prepared = parts()
    predictions.slice_std = torch.arange(5).double() / 100
    predictions.slice_low = torch.arange(5).double() / 10
    found = made(features, predictions, explained, prepared, set_name="new", model=MODEL)
    assert [
        (one.slice, one.name, one.position_mm, one.probability, one.std, one.interval_95[0], one.corrections)
        for scan in found.scans
        for one in scan.slices
    ] == [
        (0, "1.1", 0.0, 0.2, 0.0, 0.0, ("padding", "already-hu")),
        (1, "1.2", 5.0, 0.9, 0.01, 0.1, ()),
        (0, "2.1", 1.0, 0.4, 0.02, 0.2, ()),
        (0, "3.1", 0.0, 0.1, 0.03, 0.3, ()),
        (1, "3.2", 2.0, 0.05, 0.04, 0.4, ()),
    ]
    assert {one.interval_95[1] for scan in found.scans for one in scan.slices} == {0.99}


def test_what_is_written_is_what_is_read(results, tmp_path):
    write_results(results, tmp_path)
    assert read_results(tmp_path) == results
    tree = json.loads((tmp_path / "predictions.json").read_text())
    assert tree["notice"] == NOTICE
    scan = tree["scans"][0]
    assert (scan["probability"], scan["interval_95"], scan["decision"]) == (0.9, [0.8, 0.95], "positive")
    assert scan["runs"] == [{"first": 2, "last": 2, "scan_without": 0.3}]
    assert [one["slice"] for one in scan["slices"]] == [1, 2]
    assert scan["slices"][0]["corrections"] == ["padding", "already-hu"]
    assert scan["slices"][0]["label"] is None
    assert tree["scans"][1]["slices"][0]["scan_without"] is None
    assert tree["scans"][2]["probability"] == 0.123457
    assert results.scans[0].ledger == (LedgerEntry("a", "x.dcm", Code.PADDING, "air"),)
    assert [line.file for line in results.ledger] == ["readme.txt"]


def test_the_tables_say_what_json_says(results, tmp_path):
    write_results(results, tmp_path)
    scans, slices = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("scans", "slices"))
    assert scans.probability.tolist() == [scan.probability for scan in results.scans]
    assert scans.decision.tolist() == ["positive", "look", "negative"]
    assert scans.corrections.tolist()[0] == "already-hu|padding"
    assert slices.scan.tolist() == ["a", "a", "b", "c", "c"]
    assert slices.slice.tolist() == [1, 2, 1, 1, 2]
    assert slices.scan_without.tolist()[:2] == [0.9, 0.3]
    assert slices.scan_without.isna().tolist() == [False, False, True, False, False]
    assert slices.label.tolist()[1] == 1
    assert [*scans.columns] == SCAN_COLUMNS
    assert [*slices.columns] == SLICE_COLUMNS


def test_the_folder_of_a_scan_stands_beside_its_id(results, tmp_path):
    assert [scan.title for scan in results.scans] == ["001 (a)", "b", "c"]
    write_results(results, tmp_path)
    assert read_results(tmp_path) == results
    table = pd.read_csv(tmp_path / "scans.csv", dtype=str, keep_default_na=False)
    assert table.groupby("scan").folder.unique().map(list).to_dict() == {"a": ["001"], "b": [""], "c": [""]}


def test_a_study_without_a_prediction_has_its_folder():
    features, predictions, explained, prepared = parts()
    line = {"scan": "lost", "file": "", "code": "scan-empty", "detail": "no slice"}
    prepared.ledger_by_scan["lost"] = [line]
    found = made(features, predictions, explained, prepared, set_name="new", model=MODEL)
    assert [(one.scan, one.file) for one in found.ledger] == [("", "readme.txt"), ("lost", "004")]


def test_ledger_lines_of_other_scans_of_the_prepared_set_are_left_out():
    features, predictions, explained, prepared = parts()
    prepared.scans.loc["d"] = ["c4"]
    prepared.ledger_by_scan |= {
        scan: [{"scan": scan, "file": f"{scan}.dcm", "code": "padding", "detail": ""}]
        for scan in ("d", "refused")
    }
    found = made(features, predictions, explained, prepared, set_name="test", model=MODEL)
    assert [line.scan for line in found.ledger] == ["", "refused"]
    assert [len(scan.ledger) for scan in found.scans] == [1, 0, 0]


def test_without_pictures_there_are_no_positions_pixels_and_ledger():
    found = made(*parts()[:3], None, set_name="external", model=MODEL)
    assert {one.position_mm for scan in found.scans for one in scan.slices} == {None}
    assert {scan.pixels for scan in found.scans} == {""}
    assert found.ledger == ()


def test_scans_of_training_patients_are_marked():
    features, *others = parts()
    features.patients[0] = "p = r"
    cases = (({"r"}, "a"), ({"q"}, "bc"), ({"a"}, "a"), ({"p", "c"}, "ac"), ({"c2"}, "b"), ((), ""))
    for learned, wanted in cases:
        found = made(features, *others, set_name="new", model=MODEL, learned=learned)
        marked = [scan.scan for scan in found.scans if Code.LEARNED_FROM in {e.code for e in scan.ledger}]
        assert marked == list(wanted)
        assert found.scans[2].decision == "negative"  # it was seen whole


def test_a_scan_unlike_the_training_scans_is_marked_in_both_files_and_never_negative(tmp_path):
    for last, decision in ((0.9, NEGATIVE), (1.01, LOOK)):
        found = made(*parts(), unlikeness=(1.0, np.nan, last), set_name="new", model=MODEL)
        assert [scan.unlikeness for scan in found.scans] == [1.0, None, last]
        marked = [Code.UNLIKE in {entry.code for entry in scan.ledger} for scan in found.scans]
        assert marked == [False, False, last > 1]
        assert [scan.decision for scan in found.scans] == [POSITIVE, LOOK, decision]
    write_results(found, tmp_path)
    assert read_results(tmp_path) == found
    table = pd.read_csv(tmp_path / "scans.csv")
    assert table.unlikeness.tolist() == pytest.approx([1.0, np.nan, 1.01], nan_ok=True)
    assert set(table.trained_on) == {MODEL.trained_on}
    assert table.prevalence.isna().all()
    assert unlike_scans(found) == f"1 of 2 scans are {Code.UNLIKE.text}"
    unchecked = made(*parts(), unlikeness=(np.nan,) * 3, set_name="new", model=MODEL)
    assert unlike_scans(unchecked) == ""


def test_scans_of_the_table_have_the_assumed_prevalence():
    found = made(*parts(), set_name="new", model=replace(MODEL, prevalence=0.05))
    assert set(scan_table(found).prevalence) == {0.05}


@pytest.mark.parametrize(
    ("low", "high", "decision"),
    [(0.5, 0.9, "positive"), (0.499999, 0.9, "look"), (0.1, 0.5, "look"), (0.1, 0.499999, "negative")],
)
def test_the_interval_decides_without_thresholds(low, high, decision):
    features, predictions, explained, prepared = parts()
    predictions.scan_low[:], predictions.scan_high[:] = low, high
    found = made(features, predictions, explained, prepared, set_name="new", model=MODEL)
    assert {scan.decision for scan in found.scans} == {decision}
    assert found.decided_by == f"{BY_INTERVAL}; {WHOLE_ONLY}"
    assert not has_guarantee(found.decided_by)
    assert set(scan_table(found).decided_by) == {"interval"}


@pytest.mark.parametrize(("high", "decision"), [(0.02, "negative"), (0.04, "look"), (0.3, "look")])
def test_a_rarer_finding_makes_no_suspicious_scan_negative(high, decision):
    features, predictions, explained, prepared = parts()
    predictions.scan_low[:], predictions.scan_high[:] = 0.01, high
    model = replace(MODEL, prevalence=0.05, cut=0.03)
    found = made(features, predictions, explained, prepared, set_name="new", model=model)
    assert {scan.decision for scan in found.scans} == {decision}
    assert "negative below 3 %, where 50 % was before" in found.decided_by
    assert set(scan_table(found).decided_by) == {"interval"}


def test_thresholds_decide_by_the_probability_that_is_written():
    labels, p = np.repeat([0, 1], 50), np.repeat([0.1, 0.3], 50)
    triage = replace(fit_triage(labels, p, sensitivity=0.9, specificity=0.9), low=0.3, high=0.7)
    features, predictions, explained, prepared = parts()
    predictions.scan_mean[:] = torch.tensor([0.69999999, 0.29999999, 0.2999991]).double()
    found = made(features, predictions, explained, prepared, set_name="new", model=MODEL, triage=triage)
    wanted = [(0.7, "positive"), (0.3, "look"), (0.299999, "negative")]
    assert [(scan.probability, scan.decision) for scan in found.scans] == wanted
    assert found.decided_by == f"{triage.guarantees} {WHOLE_ONLY.capitalize()}."
    assert has_guarantee(found.decided_by)
    assert set(scan_table(found).decided_by) == {"thresholds"}


def test_a_scan_that_was_not_seen_whole_is_not_called_negative():
    for code in (Code.GAP, Code.MULTI_FRAME, Code.UNREADABLE, Code.SEVERAL_PATIENTS):
        features, predictions, explained, prepared = parts()
        line = {"file": "x.dcm", "code": code, "detail": ""}
        prepared.ledger_by_scan |= {scan: [line | {"scan": scan}] for scan in "abc"}
        found = made(features, predictions, explained, prepared, set_name="new", model=MODEL)
        assert [scan.decision for scan in found.scans] == ["positive", "look", "look"]
        assert incomplete(found.scans[2].ledger) == [code]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "ich_mil.predictions.2"}, "of another version"),
        ({"scans": []}, "holds no scan"),
        ({"scans": [{"scan": "a"}]}, "cannot be read as predictions"),
        ({"model": {}}, "cannot be read as predictions"),
        ({"ledger": [{"scan": "", "file": "", "code": "no-such-code", "detail": ""}]}, "no-such-code"),
        ({"decision": "maybe"}, "maybe"),
        ({"probability": 1.5}, "1.5"),
        ({"probability": "hi"}, "hi"),
        ({"interval_95": [0.2]}, "unpack"),
        ({"scan": "a"}, "duplicate scans a"),
    ],
)
def test_damaged_predictions_are_refused(results, tmp_path, change, words):
    write_results(results, tmp_path)
    path = tmp_path / "predictions.json"
    tree = json.loads(path.read_text())
    (tree if {*change} <= {*tree} else tree["scans"][1]).update(change)
    path.write_text(json.dumps(tree))
    with pytest.raises(DataError, match=words) as caught:
        read_results(tmp_path)
    assert str(path) in str(caught.value)
