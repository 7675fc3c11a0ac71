from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ich_mil.evaluate.event_rates import calibration_table
from ich_mil.evaluate.result_table import evaluate, table_blocks
from ich_mil.evaluate.scores import Scores
from ich_mil.report.page import study_file_name
from ich_mil.report.run_page import MAX_SCANS, EvaluatedSet, RunPage, SplitCount, render_run
from ich_mil.runs.predictions import Provenance
from tests.html_page import HOSTILE, Page, check_offline
from tests.results import MODEL, cohort

(SCAN,) = cohort(1).scans


@pytest.fixture
def run():
    labels, patients = np.array([0, 1] * 15), [str(i) for i in range(30)]
    rng = np.random.default_rng(0)
    scores = [
        Scores(name, np.clip(labels * 0.3 + rng.random(30) * 0.7, 0, 1), None) for name in ("GP", "CNN")
    ]
    frame = evaluate(
        scores,
        labels=labels,
        patients=patients,
        offsets=np.arange(31),
        seed=0,
        resamples=50,
    )
    calibration = {one.name: calibration_table(labels, one.scan, patients, seed=0) for one in scores}
    return RunPage(
        "rsna_d8",
        MODEL,
        "seed: 0\nmodel: papers",
        {"ich_mil": "4.5", "torch": "9.8+cpu"},
        splits=[SplitCount("train", 1234, 1200, 43210, 555, 7)],
        sets=[EvaluatedSet("CQ500", frame, labels, scores, calibration)],
        scans=[
            replace(SCAN, scan="low", probability=0.1234, std=0.0567, interval_95=(0.02, 0.3), label=0),
            replace(SCAN, scan="high", probability=0.9876, label=1),
        ],
        links={"high": "studies/scan-high.html"},
        curves=pd.DataFrame({"train_loss": [0.9, 0.5], "val_loss": [0.8, 0.7]}),
        ledger={"localizer": 33},
        limits=["Adult scans without contrast only."],
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_only_text(run, text):
    unknown = np.full(30, -1)  # names in figures: test_figures
    run = replace(run, curves=None, sets=[replace(run.sets[0], labels=unknown, calibration={})])
    link = f"studies/{study_file_name(text)}"
    hostile = replace(
        run,
        name=text,
        model=Provenance(text, text, text, text, text, text),
        config=text,
        splits=[SplitCount(text, 1, 1, 1, 1)],
        scans=[replace(SCAN, scan=text), replace(SCAN, scan=f"{text} again")],
        links={text: link},
        ledger={text: 3},
        limits=[text],
        versions={text: text, "torch": text},
        sets=[replace(run.sets[0], name=text, table=run.sets[0].table.replace({"model": {"CNN": text}}))],
    )
    html = render_run(hostile)
    page = check_offline(html)
    assert page.tags == Page(render_run(run)).tags
    html.encode("utf-8")
    if text.isprintable():
        assert page.text.count(text) >= 10
    if "<" in text:
        assert text not in html


def test_run_shows_the_numbers_it_was_given(run):
    page = check_offline(render_run(run))
    row = run.sets[0].table.iloc[0]
    assert f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]" in page.text
    for block in table_blocks(run.sets[0].table):
        for name, cells in block.rows:
            assert name in page.text
            assert all(cell in page.text for cell in cells)
    for expected in ("1,234", "43,210", "555", "0.123", "0.057", "0.988", "0.020 – 0.300", "localizer", "33"):
        assert expected in page.text, expected
    assert "no slice labels" in page.text
    assert "model: papers" in page.text
    assert "Adult scans without contrast only." in page.text
    assert "Begun with ich_mil 4.5, torch 9.8+cpu." in page.text
    assert page.text.index("0.988") < page.text.index("0.123")
    assert "studies/scan-high.html" in page.addresses
    assert page.tags.count("img") == 3


def test_checks_and_scans_name_their_set(run):
    text = Page(render_run(replace(run, sets=[*run.sets, replace(run.sets[0], name="held-out folds")]))).text
    assert "Input checks: CQ500" in text
    assert "Scans, most probable first: CQ500" in text


def test_features_are_not_said_to_have_been_checked(run):
    for ledger, checked in ((None, False), ({}, True)):
        text = Page(render_run(replace(run, ledger=ledger))).text
        assert ("Nothing was refused, corrected or noted" in text) == checked
        assert ("no image of theirs was read" in text) != checked


def test_a_run_with_nothing_but_a_name():
    page = check_offline(render_run(RunPage("empty", MODEL, "", {})))
    assert "img" not in page.tags


def test_one_class_draws_no_roc(run):
    one = replace(run.sets[0], labels=np.ones(30, int))
    assert Page(render_run(replace(run, sets=[one]))).tags.count("img") == 2
    none = replace(run.sets[0], labels=np.full(30, -1), calibration={})
    assert Page(render_run(replace(run, sets=[none]))).tags.count("img") == 1


def test_a_long_list_is_cut_and_says_so(run):
    rows = [replace(SCAN, scan=f"scan {i}", probability=i / 3000) for i in range(3000)]
    text = check_offline(render_run(replace(run, scans=rows))).text
    assert f"The first {MAX_SCANS:,} of 3,000 scans" in text
    assert "scan 2999" in text
    assert "scan 999\n" not in text
