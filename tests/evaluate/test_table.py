import numpy as np
import pandas as pd
import pytest

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import patient_bootstrap
from ich_mil.evaluate.metrics import auc_inside, scan_metrics, slice_metrics, slice_probability_metrics
from ich_mil.evaluate.table import (
    COLUMNS,
    INSIDE,
    SCAN,
    SLICE,
    Scores,
    evaluate,
    format_table,
    format_value,
    known_or_none,
    read_table,
    table_blocks,
    table_notes,
)


@pytest.fixture
def truth():
    rng = np.random.default_rng(0)
    sizes = rng.integers(3, 8, 40)
    labels = np.arange(40) % 2
    bags = np.repeat(np.arange(40), sizes)
    return {
        "labels": labels,
        "patients": [f"p{i // 2 % 15}" for i in range(40)],
        "offsets": np.concatenate([[0], sizes.cumsum()]),
        "slice_labels": labels[bags] * rng.integers(0, 2, len(bags)),
    }


@pytest.fixture
def model(truth):
    rng = np.random.default_rng(1)
    scan = np.clip(0.3 * truth["labels"] + rng.uniform(0, 0.7, 40), 0, 1)
    slices = np.clip(0.2 * truth["slice_labels"] + rng.uniform(0, 0.8, truth["offsets"][-1]), 0, 1)
    return Scores("GP", scan, slices, slice_is_probability=True)


def number(frame, model, level, metric):
    rows = frame[(frame.model == model) & (frame.level == level) & (frame.metric == metric)]
    assert len(rows) == 1
    return rows.iloc[0]


def test_values_are_those_of_the_metrics_with_intervals_around_them(truth, model):
    frame = evaluate([model], **truth, seed=0, resamples=200)
    assert list(frame.columns) == COLUMNS
    for metric, value in scan_metrics(truth["labels"], model.scan).items():
        row = number(frame, "GP", SCAN, metric)
        assert (row.value, row.n, row.positives, row.patients, row.note) == (value, 40, 20, 15, "")
        assert row.low < row.high
    bags = np.repeat(np.arange(40), np.diff(truth["offsets"]))
    expected = slice_metrics(truth["slice_labels"], model.slice, bags)
    assert number(frame, "GP", SLICE, "auc").value == expected["slice_auc"]
    assert number(frame, "GP", SLICE, "ap").value == expected["slice_ap"]
    inside = number(frame, "GP", INSIDE, "auc")
    assert (inside.value, inside.n) == (expected["slice_auc_inside"], expected["slice_scans_inside"])
    assert inside.low < inside.value < inside.high
    scans, values = auc_inside(truth["slice_labels"], model.slice, bags)
    owners = [truth["patients"][b] for b in scans]
    interval = patient_bootstrap(
        lambda c: {"auc": values @ c / c.sum(axis=0)}, owners, resamples=200, seed=0
    )["auc"]
    assert (inside.patients, inside.low, inside.high) == (len(set(owners)), interval.low, interval.high)
    losses = slice_probability_metrics(truth["slice_labels"], model.slice)
    assert number(frame, "GP", SLICE, "brier").value == losses["brier"]
    assert number(frame, "GP", SLICE, "log_loss").value == losses["log_loss"]


def test_unlabelled_are_left_out_and_counted(truth, model):
    kept = np.arange(40) >= 6
    part = {**truth, "labels": np.where(kept, truth["labels"], -1)}
    row = number(evaluate([model], **part, seed=0, resamples=50), "GP", SCAN, "auc")
    assert (row.n, row.unlabelled) == (34, 6)
    assert row.value == scan_metrics(truth["labels"][kept], model.scan[kept])["auc"]
    notes = table_notes(evaluate([model], **part, seed=0, resamples=50))
    assert notes[0] == "34 scans (17 positive) of 15 patients; 6 without a label left out"


def test_models_share_the_resamples_so_equal_scores_have_equal_intervals(truth, model):
    twin = Scores("twin", model.scan, model.slice, slice_is_probability=True)
    frame = evaluate([model, twin], **truth, seed=0, resamples=60)
    first, second = (frame[frame.model == name].drop(columns="model") for name in ("GP", "twin"))
    np.testing.assert_array_equal(first.to_numpy(), second.to_numpy())


def test_what_is_missing_is_said_with_its_reason(truth, model):
    silent = Scores("CNN", model.scan, None)
    ranker = Scores("ranks", 5 * model.scan, 7 * model.slice, scan_is_probability=False)
    position = Scores("position", None, model.slice)
    frame = evaluate([model, silent, ranker, position], **truth, seed=0, resamples=60)
    assert number(frame, "CNN", SLICE, "auc").note == "gives no slice score"
    assert number(frame, "position", SCAN, "auc").note == "gives no scan score"
    assert number(frame, "ranks", SCAN, "auc").value == pytest.approx(number(frame, "GP", SCAN, "auc").value)
    assert number(frame, "ranks", SCAN, "brier").note == "its scan score is not a probability"
    text = format_table(frame)
    assert "Not available for CNN: Slices AUC inside scans" in text.replace("\n  ", " ")
    unlabelled = evaluate([model, silent], **{**truth, "slice_labels": None}, seed=0, resamples=60)
    assert set(unlabelled[unlabelled.level != SCAN].note) == {"no slice labels"}
    assert [block.title for block in table_blocks(unlabelled)] == ["Scans", "Scan probabilities"]
    assert "Slices AUC all, Slices AP all (no slice labels)" in format_table(unlabelled)


def test_one_class_and_no_label_at_all(truth, model):
    ones = {**truth, "labels": np.ones(40, int), "slice_labels": np.ones(len(model.slice), int)}
    frame = evaluate([model], **ones, seed=0, resamples=60)
    auc = number(frame, "GP", SCAN, "auc")
    assert np.isnan([auc.value, auc.low, auc.high]).all()
    assert auc.note == "one class only"
    assert number(frame, "GP", SCAN, "brier").low < number(frame, "GP", SCAN, "brier").high
    assert number(frame, "GP", INSIDE, "auc").note == "no scan has slices of both kinds"
    assert "(one class only)" in format_table(frame)
    none = {**truth, "labels": np.full(40, -1), "slice_labels": np.full(len(model.slice), -1)}
    frame = evaluate([model], **none, seed=0, resamples=60)
    assert frame.value.isna().all()
    assert "(no scan labels)" in format_table(frame)


def test_nan_scores_name_the_model(truth, model):
    broken = Scores("diverged", np.where(np.arange(40) == 3, np.nan, model.scan), None)
    with pytest.raises(DataError, match=r"model 'diverged', scan scores: 1 of 40 scores are NaN"):
        evaluate([model, broken], **truth, seed=0, resamples=10)
    broken = Scores("diverged", None, np.full_like(model.slice, np.nan))
    with pytest.raises(DataError, match=r"model 'diverged', slice scores"):
        evaluate([broken], **truth, seed=0, resamples=10)


def test_sizes_and_names_must_fit(truth, model):
    with pytest.raises(ValueError, match="own name"):
        evaluate([model, model], **truth, seed=0)
    with pytest.raises(ValueError, match="39 patients"):
        evaluate([model], **{**truth, "patients": truth["patients"][:39]}, seed=0)
    with pytest.raises(ValueError, match="slice labels"):
        evaluate([model], **{**truth, "slice_labels": np.zeros(3)}, seed=0)


def test_text_is_readable_in_110_columns(truth, model):
    long = Scores("G-VGPMIL α=1 β=2.5 with a name far too long for a table", model.scan, model.slice)
    frame = evaluate([model, long], **truth, seed=0, resamples=60)
    lines = format_table(frame).splitlines()
    rows = [line for line in lines if "[" in line]
    assert len(rows) == 7  # two models in three blocks, one in the fourth
    assert max(map(len, lines)) <= 110
    row = number(frame, "GP", SCAN, "auc")
    assert f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]" in lines[1]
    assert any("10 equal-mass bins" in line for line in lines)
    assert any("Few patients (" in line for line in lines)


def test_a_table_written_as_csv_comes_back_the_same(truth, model, tmp_path):
    frame = evaluate(
        [model, Scores("NA", None, None)], **{**truth, "slice_labels": None}, seed=0, resamples=60
    )
    frame.to_csv(tmp_path / "metrics.csv", index=False)
    again = read_table(tmp_path / "metrics.csv")
    pd.testing.assert_frame_equal(again, frame, check_dtype=False)
    assert format_table(again) == format_table(frame)
    with pytest.raises(DataError, match=r"nothing\.csv"):
        read_table(tmp_path / "nothing.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"other\.csv: cannot be read as a result table"):
        read_table(tmp_path / "other.csv")


def test_format_value():
    assert format_value(0.9114, 0.8861, 0.9) == "0.911 [0.886, 0.900]"
    assert format_value(0.5, np.nan, np.nan) == "0.500"
    assert format_value(np.nan, np.nan, np.nan) == "–"


def test_known_or_none():
    assert known_or_none(np.full(3, np.nan)) is None
    np.testing.assert_array_equal(known_or_none(np.array([np.nan, 1.0])), [np.nan, 1.0])
