from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ich_mil.evaluate.result_table import table_blocks
from ich_mil.model.predictions import Provenance
from ich_mil.pages.page import study_file_name
from ich_mil.pages.run_page import MOST_ERRORS, RunPage, SplitCount, render_run, worst_errors
from tests.html_page import HOSTILE, Page, check_offline
from tests.results import MODEL, cohort, evaluated_set

(SCAN,) = cohort(1).scans


@pytest.fixture
def run():
    return RunPage(
        "Run rsna_d8",
        MODEL,
        "seed: 0\nmodel: papers",
        {"ich_mil": "4.5", "torch": "9.8+cpu"},
        splits=[SplitCount("train", 1234, 1200, 43210, 555, 7)],
        sets=[evaluated_set(np.array([0, 1] * 15))],
        links={"missed": "studies/scan-missed.html"},
        curves=pd.DataFrame({"train_loss": [0.9, 0.5], "val_loss": [0.8, np.nan], "val_auc": [np.nan, 0.7]}),
        ledger={"localizer": 33},
        limits=["Adult scans without contrast only."],
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_only_text(run, text):
    (one,) = run.sets
    in_pandas = text.replace("\udc80", "")  # strings of pyarrow hold no surrogate
    hostile = replace(
        run,
        title=text,
        model=Provenance(text, text, text, text, text, text),
        config=text,
        splits=[SplitCount(text, 1, 1, 1, 1)],
        links={text: f"studies/{study_file_name(text)}"},
        ledger={text: 3},
        limits=[text],
        versions={text: text, "torch": text},
        curves=run.curves.rename(columns={"train_loss": f"loss {in_pandas}"}),
        sets=[
            replace(
                one,
                name=text,
                table=one.table.replace({"model": {"CNN": in_pandas}}),
                curves={
                    name: {text if model == "CNN" else model: frame for model, frame in frames.items()}
                    for name, frames in one.curves.items()
                },
                scans=[
                    replace(scan, scan=text if scan.scan == "missed" else scan.scan) for scan in one.scans
                ],
            )
        ],
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
    assert f"{row.low:.3f} to {row.high:.3f}" in page.text
    for block in table_blocks(run.sets[0].table):
        for name, cells in block.rows:
            assert name in page.text
            assert all(cell in page.text for cell in cells)
    for expected in (
        "1,234",
        "43,210",
        "555",
        "3\N{NO-BREAK SPACE}%",
        "localizer",
        "33",
        "30 scans (15 positive)",
    ):
        assert expected in page.text, expected
    assert "no slice labels" in page.text
    assert "model: papers" in page.text
    assert "Adult scans without contrast only." in page.text
    assert "Begun with ich_mil 4.5, torch 9.8+cpu." in page.text
    assert "studies/scan-missed.html" in page.addresses


def test_all_but_the_first_screen_is_folded(run):
    html = render_run(run)
    first = Page(html[: html.index("<details>")])
    assert html[: html.index("<details>")].count('class="band line0"') == 1  # of the ROC curve
    assert "Worst errors" in first.text
    for part in ("Precision and recall", "Decision curve", "Calibration", "Risk and coverage", "Loss"):
        assert part in Page(html).text
        assert part not in first.text
    assert "open" not in Page(html).attributes


def test_worst_errors_are_wrong_calls_on_labelled_scans(run):
    scans = run.sets[0].scans
    assert [scan.scan for scan in worst_errors(scans)] == ["missed"]
    many = [replace(SCAN, scan=f"{i:02}", probability=i / 100, label=0) for i in range(70)]
    assert [scan.scan for scan in worst_errors(many)] == [f"{69 - i}" for i in range(MOST_ERRORS)]
    assert len(worst_errors(many[:52])) == 2  # 50 and 51 %
    assert "Worst errors" not in render_run(replace(run, sets=[replace(run.sets[0], scans=many[:50])]))


def test_other_sets_are_named_with_their_auc(run):
    other = replace(run.sets[0], name="held-out folds")
    page = Page(render_run(replace(run, sets=[*run.sets, other])))
    assert "AUC of held-out folds (30): " in page.text
    assert page.text.count("ROC curve") == 2


def test_features_are_not_said_to_have_been_checked(run):
    for ledger, checked in ((None, False), ({}, True)):
        text = Page(render_run(replace(run, ledger=ledger))).text
        assert ("Nothing was refused, corrected or noted" in text) == checked
        assert ("no image was read" in text) != checked


def test_one_class_draws_no_roc(run):
    page = Page(render_run(replace(run, sets=[evaluated_set(np.ones(30, int))])))
    assert "ROC curve" not in page.text
    assert "Risk and coverage" in page.text
    page = Page(render_run(replace(run, sets=[evaluated_set(np.full(30, -1))], curves=None)))
    assert "figure" not in page.tags
