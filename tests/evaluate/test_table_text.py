import numpy as np
import pytest

from ich_mil.evaluate.model_metrics import INSIDE, SCAN, SLICE
from ich_mil.evaluate.result_table import Scores, evaluate, read_table
from ich_mil.evaluate.table_text import format_table, format_value, table_blocks, table_notes


@pytest.fixture
def truth():
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    return {
        "labels": labels,
        "patients": [f"p{i // 2 % 15}" for i in range(40)],
        "offsets": np.arange(0, 201, 5),
        "slice_labels": np.repeat(labels, 5) * rng.integers(0, 2, 200),
    }


@pytest.fixture
def model(truth):
    rng = np.random.default_rng(1)
    scan = 0.3 * truth["labels"] + rng.uniform(0, 0.7, 40)
    slices = 0.2 * truth["slice_labels"] + rng.uniform(0, 0.8, 200)
    return Scores("GP", scan, slices, slice_is_probability=True)


def test_each_number_stands_under_its_name(truth, model):
    frame = evaluate([model], **truth, seed=0, resamples=60)
    value = {(row.level, row.metric): row for row in frame.itertuples()}
    blocks = {block.title: block for block in table_blocks(frame)}
    shown = {
        (title, label): text
        for title, block in blocks.items()
        for label, text in zip(block.columns, block.rows[0][1], strict=True)
    }
    expected = {
        ("Scans", "AUC"): (SCAN, "auc"),
        ("Scans", "AP"): (SCAN, "ap"),
        ("Scan calls", "F1"): (SCAN, "f1"),
        ("Scan calls", "balanced"): (SCAN, "balanced_accuracy"),
        ("Scan calls by class", "sensitivity"): (SCAN, "sensitivity"),
        ("Scan calls by class", "specificity"): (SCAN, "specificity"),
        ("Scan calls that are right", "PPV"): (SCAN, "ppv"),
        ("Scan calls that are right", "NPV"): (SCAN, "npv"),
        ("Scan operating points", "sens. at 95 % spec."): (SCAN, "sensitivity_at_95"),
        ("Scan operating points", "spec. at 95 % sens."): (SCAN, "specificity_at_95"),
        ("Scan probabilities", "ECE"): (SCAN, "ece"),
        ("Scan calibration", "intercept"): (SCAN, "calibration_intercept"),
        ("Scan calibration", "slope"): (SCAN, "calibration_slope"),
        ("Slice probabilities", "ECE"): (SLICE, "ece"),
    }
    for place, name in expected.items():
        row = value[name]
        assert shown[place] == format_value(row.value, row.low, row.high), place
    assert len({shown[place] for place in expected}) == len(expected)  # no two alike, so none can stand in


def test_text_is_readable_in_110_columns(truth, model):
    long = Scores("G-VGPMIL α=1 β=2.5 with a name far too long for a table", model.scan, model.slice)
    frame = evaluate([model, long], **truth, seed=0, resamples=60)
    lines = format_table(frame).splitlines()
    rows = [line for line in lines if "[" in line]
    assert len(rows) == 17  # two models in eight blocks, one in the ninth
    assert max(map(len, lines)) <= 110
    row = frame[(frame.model == "GP") & (frame.level == SCAN) & (frame.metric == "auc")].iloc[0]
    assert f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]" in lines[1]
    text = " ".join(line.strip() for line in lines)
    for note in (
        "where other than 50 % of scans are positive",
        "10 equal-mass bins",
        "Few patients (15)",
        "chosen on these very scans, so optimistic",
    ):
        assert note in text


def test_what_is_missing_is_said_with_its_reason(truth, model):
    silent = Scores("CNN", model.scan, None)
    frame = evaluate([model, silent], **truth, seed=0, resamples=60)
    shown = {block.title: [name for name, _ in block.rows] for block in table_blocks(frame)}
    assert shown.pop("Slices") == shown.pop("Slice probabilities") == ["GP"]
    assert shown
    assert all(names == ["GP", "CNN"] for names in shown.values())
    text = format_table(frame)
    assert "Not available for CNN: Slices AUC inside scans" in text.replace("\n  ", " ")
    unlabelled = evaluate([model, silent], **{**truth, "slice_labels": None}, seed=0, resamples=60)
    titles = [block.title for block in table_blocks(unlabelled)]
    assert titles == [
        "Scans",
        "Scan calls",
        "Scan calls by class",
        "Scan calls that are right",
        "Scan operating points",
        "Scan probabilities",
        "Scan calibration",
    ]
    assert "Slices AUC all, Slices AP all (no slice labels)" in format_table(unlabelled).replace("\n  ", " ")
    ones = {**truth, "labels": np.ones(40, int)}
    text = format_table(evaluate([silent], **ones, seed=0, resamples=60)).replace("\n  ", " ")
    assert "Scans AUC, Scans AP, Scan calls balanced, Scan calls by class specificity, Scan operating" in text
    assert "(one class only)" in text
    assert "so optimistic" not in text  # no operating point is shown
    assert "where other than" not in text
    none = {**truth, "labels": np.full(40, -1)}
    assert "(no scan labels)" in format_table(evaluate([silent], **none, seed=0, resamples=60))


def test_notes_count_what_was_left_out(truth, model):
    part = {**truth, "labels": np.where(np.arange(40) >= 6, truth["labels"], -1)}
    notes = table_notes(evaluate([model], **part, seed=0, resamples=50))
    assert notes[0] == "34 scans (17 positive) of 15 patients; 6 without a label left out"


def test_right_calls_are_counted(truth, model):
    known = np.arange(40) >= 7
    part = {**truth, "labels": np.where(known, truth["labels"], -1)}
    right = known & ((model.scan >= 0.5) == truth["labels"])
    found = [int((right & (truth["labels"] == kind)).sum()) for kind in (1, 0)]
    assert 0 < found[1] < 16
    assert 0 < found[0] < 17
    silent = Scores("silent", None, model.slice)
    wrong = Scores("wrong", 1.0 - truth["labels"], None)
    notes = table_notes(evaluate([model, silent, wrong], **part, seed=0, resamples=50))
    assert (
        f"Right calls of scans: GP {found[0]} of 17 positive and {found[1]} of 16 negative; "
        "wrong 0 of 17 positive and 0 of 16 negative"
    ) in notes
    ones = {**part, "labels": np.where(truth["labels"] == 1, 1, -1)}
    (one,) = [
        note for note in table_notes(evaluate([model], **ones, seed=0, resamples=50)) if "Right" in note
    ]
    assert one == f"Right calls of scans: GP {int((model.scan[1::2] >= 0.5).sum())} of 20 positive"


def table_of(truth, model, scans):
    """The table of so many copies of the scans, each of a patient of its own, without slice labels."""
    labels = np.resize(truth["labels"], scans)
    score = Scores("GP", np.resize(model.scan, scans), None)
    names = [f"p{i}" for i in range(scans)]
    whole = {"labels": labels, "patients": names, "offsets": np.arange(scans + 1)}
    return lambda known: format_table(
        evaluate([score], **{**whole, "labels": np.where(known, labels, -1)}, seed=0, resamples=50)
    )


def test_few_patients_or_scans_of_a_class_are_told(truth, model):
    table, number = table_of(truth, model, 200), np.arange(200)
    labels = np.resize(truth["labels"], 200)
    assert "Few" not in table(number >= 0)
    assert "Few positive scans (5)" in table((labels == 0) | (number < 10))
    assert "Few negative scans (5)" in table((labels == 1) | (number < 10))
    assert "Few" not in table(labels == 1)  # of one class: nothing ranks them
    part = {**truth, "slice_labels": np.where(np.arange(200) < 25, truth["slice_labels"], -1)}
    frame = evaluate([model], **part, seed=0, resamples=50)
    few = frame[(frame.n > 0) & (frame.level != INSIDE)].patients.min()
    inside = frame[frame.level == INSIDE].n.min()
    assert 0 < inside < few < 30
    told = format_table(frame)
    assert f"Few patients ({few}): " in told
    assert f"Few scans with slices of both kinds ({inside}): " in told


def test_one_patient_has_no_intervals_and_that_is_told(truth, model):
    alike = {**truth, "patients": ["ANONYMOUS"] * 40}
    notes = " ".join(table_notes(evaluate([model], **alike, seed=0, resamples=50)))
    assert "of one patient, by PatientID: there are no intervals" in notes
    assert "Few patients" not in notes


def test_what_resamples_did_is_told_where_they_did_it(truth, model):
    frame = evaluate([model], **truth, seed=0, resamples=50).assign(ignored=0)
    notes = " ".join(table_notes(frame[frame.metric != "ece"]))
    assert "ECE: never negative" not in notes
    assert "were ignored" not in notes
    frame.loc[frame.metric == "ece", "ignored"] = 1
    notes = " ".join(table_notes(frame))
    assert "ECE: never negative" in notes
    assert "Up to 1 resamples in which a number is not defined were ignored: one class only" in notes


# one scan of 60 is called positive: a third of the resamples have none, and both classes
def test_resamples_without_a_call_are_told():
    labels = np.arange(60) % 2
    model = Scores("timid", np.where(np.arange(60) == 1, 0.9, np.linspace(0.1, 0.4, 60)), None)
    patients = [f"p{i}" for i in range(60)]
    frame = evaluate([model], labels=labels, patients=patients, offsets=np.arange(61), seed=0, resamples=50)
    assert frame[frame.metric != "ppv"].ignored.max() == 0 < frame.ignored.max()
    assert "one class only, for PPV and NPV no such call, for" in " ".join(table_notes(frame))


def test_a_table_read_from_csv_reads_the_same(truth, model, tmp_path):
    frame = evaluate([model, Scores("NA", None, None)], **truth, seed=0, resamples=60)
    frame.to_csv(tmp_path / "metrics.csv", index=False)
    assert format_table(read_table(tmp_path / "metrics.csv")) == format_table(frame)


def test_a_table_from_before_the_operating_points_still_shows(truth, model):
    frame = evaluate([model], **truth, seed=0, resamples=60)
    old = frame[frame.metric.isin(["auc", "accuracy", "f1", "log_loss", "brier"])]
    titles = [block.title for block in table_blocks(old)]
    assert titles == ["Scans", "Scan calls", "Scan probabilities", "Slices", "Slice probabilities"]
    assert "nan" not in format_table(old)


def test_format_value():
    assert format_value(0.9114, 0.8861, 0.9) == "0.911 [0.886, 0.900]"
    assert format_value(0.5, np.nan, np.nan) == "0.500"
    assert format_value(np.nan, np.nan, np.nan) == "–"
