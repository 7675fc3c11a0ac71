"""Result table: values against the metrics, intervals by patient, blocks and notes of the printed table."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import patient_bootstrap, proportion_interval
from ich_mil.evaluate.metrics import INSIDE, METRICS, SCAN, SLICE, auc_inside, measured, metrics_of
from ich_mil.evaluate.result_table import (
    METRIC_COLUMNS,
    evaluate,
    format_table,
    format_value,
    table_blocks,
    table_notes,
)
from ich_mil.evaluate.scores import Scores
from ich_mil.sets.features import bare_features


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


def made(models, truth, *, seed=0, resamples=50, **changes):
    known = truth | changes
    sizes, n = np.diff(known["offsets"]), int(known["offsets"][-1])
    names = [str(number) for number in range(n)]
    features = bare_features(np.zeros((n, 1)), sizes, names[: len(sizes)], known["labels"], names)
    if (slice_labels := known.get("slice_labels")) is not None:
        features = replace(features, slice_labels=torch.tensor(slice_labels))
    features = replace(features, patients=known["patients"])
    return evaluate(models, features, seed=seed, resamples=resamples)


def row_of(frame, model, level, metric):
    (row,) = frame[(frame.model == model) & (frame.level == level) & (frame.metric == metric)].itertuples()
    return row


def test_values_and_intervals_by_patient(truth, model):
    frame = made([model], truth, resamples=200)
    assert list(frame.columns) == METRIC_COLUMNS
    labels, slice_labels = truth["labels"], truth["slice_labels"]
    bags = np.repeat(np.arange(40), np.diff(truth["offsets"]))
    scans, aucs = auc_inside(slice_labels, model.slice, bags)
    wanted = {
        SCAN: measured(metrics_of(SCAN), labels, model.scan),
        SLICE: measured(metrics_of(SLICE), slice_labels, model.slice),
        INSIDE: {"auc": aucs.mean()},
    }
    for level, metrics in wanted.items():
        assert frame[frame.level == level].metric.tolist() == list(metrics)
        for metric, value in metrics.items():
            row = row_of(frame, "GP", level, metric)
            assert (row.value, row.note) == (pytest.approx(value, rel=1e-12), "")
            assert row.low < row.high
    row = row_of(frame, "GP", SCAN, "auc")
    assert (row.n, row.positives, row.patients) == (40, 20, 15)
    owners = np.array(truth["patients"])
    means = {  # metrics that are means over rows, and the patients of the rows
        (SCAN, "brier"): ((model.scan - labels) ** 2, owners),
        (SLICE, "brier"): ((model.slice - slice_labels) ** 2, owners[bags]),
        (INSIDE, "auc"): (aucs, owners[scans]),
    }
    for place, (values, owner) in means.items():
        ends = patient_bootstrap(
            lambda c, values=values: {"m": values @ c / c.sum(axis=0)}, owner, resamples=200, seed=0
        )["m"]
        if place[1] == "auc":
            ends = proportion_interval(ends, values.mean(), len(set(owner)))
        row = row_of(frame, "GP", *place)
        assert (row.low, row.high) == pytest.approx((ends.low, ends.high), rel=1e-12)
        assert (row.n, row.patients) == (len(owner), len(set(owner)))


def test_unlabelled_scans_are_left_out_and_counted(truth, model):
    kept = np.arange(40) >= 6
    frame = made([model], truth, labels=np.where(kept, truth["labels"], -1))
    row = row_of(frame, "GP", SCAN, "auc")
    assert (row.n, row.unlabelled) == (34, 6)
    assert row.value == measured(metrics_of(SCAN), truth["labels"][kept], model.scan[kept])["auc"]
    assert "34 scans (17 positive) of 15 patients; 6 without" in table_notes(frame)[0]


def test_missing_scores_have_a_reason(truth, model):
    silent, position = Scores("CNN", model.scan, None), Scores("position", None, model.slice)
    frame = made([model, silent, position], truth)
    assert row_of(frame, "CNN", SLICE, "auc").note == "gives no slice score"
    assert row_of(frame, "position", SCAN, "auc").note == "gives no scan score"
    metrics = frame[frame.level == SCAN].groupby("model").metric.agg(list)
    assert metrics["GP"] == metrics["position"]  # every model has every scan metric
    shown = {block.title: [name for name, _ in block.rows] for block in table_blocks(frame)}
    assert shown["Slices"] == ["GP", "position"]
    assert shown["Slice probabilities"] == ["GP"]
    assert shown["Scans"] == ["GP", "CNN"]
    text = format_table(frame).replace("\n  ", " ")
    assert "Not available for CNN: Slices AUC inside scans" in text
    unlabelled = made([model, silent], truth, slice_labels=None)
    assert set(unlabelled[unlabelled.level != SCAN].note) == {"no slice labels"}
    assert {block.title.split()[0] for block in table_blocks(unlabelled)} == {"Scans", "Scan"}


def test_one_class_and_no_label_at_all(truth, model):
    ones = made([model], truth, labels=np.ones(40, int), slice_labels=np.ones(len(model.slice), int))
    for metric in ("auc", "balanced_accuracy", "sensitivity_at_90", "specificity_at_95"):
        row = row_of(ones, "GP", SCAN, metric)
        assert np.isnan([row.value, row.low, row.high]).all()
        assert row.note == "one class only"
    assert row_of(ones, "GP", SCAN, "brier").low < row_of(ones, "GP", SCAN, "brier").high
    assert row_of(ones, "GP", INSIDE, "auc").note == "no scan has slices of both kinds"
    assert "optimistic" not in format_table(ones)  # no operating point is shown
    none = made([model], truth, labels=np.full(40, -1), slice_labels=np.full(len(model.slice), -1))
    assert none.value.isna().all()
    assert set(none[none.level == SCAN].note) == {"no scan labels"}


def test_perfect_scores_have_exact_intervals(truth):
    perfect = Scores("perfect", truth["labels"] * 0.6 + 0.2, None)
    # each positive scan is of a patient of its own, negative ones share some
    patients = np.array([f"p{i}" if label else f"n{i // 8}" for i, label in enumerate(truth["labels"])])
    frame = made([perfect], truth, patients=patients)
    positive, negative = (len(np.unique(patients[truth["labels"] == kind])) for kind in (1, 0))
    assert positive > negative  # and pairs of one of each are as many as the negative ones
    behind = {"sensitivity": positive, "specificity": negative, "f1": (positive + 1) // 2}
    behind |= {"auc": negative, "ap": negative, "ppv": positive, "npv": negative}
    # the threshold rests on the other class
    behind |= {f"{kind}_at_{x}": negative for kind in ("sensitivity", "specificity") for x in (90, 95)}
    for metric, n in {**behind, "accuracy": positive + negative}.items():
        row = row_of(frame, "perfect", SCAN, metric)
        assert (row.value, row.high) == (1, 1)
        assert row.low == pytest.approx(0.025 ** (1 / n))  # (Clopper and Pearson 1934)
    balanced = row_of(frame, "perfect", SCAN, "balanced_accuracy").low
    ends = [1 - 0.025 ** (1 / n) for n in (positive, negative)]
    assert balanced == pytest.approx(1 - np.hypot(*ends) / 2)
    assert "one threshold tells the classes apart" in row_of(frame, "perfect", SCAN, "calibration_slope").note


def test_ece_interval_reaches_0(truth):
    constant = Scores("prevalence", np.full(40, truth["labels"].mean()), None)
    frame = made([constant], truth, resamples=200)
    right = row_of(frame, "prevalence", SCAN, "ece")  # resamples of another prevalence alone lie above 0
    assert (right.value, right.low) == (0, 0)


@pytest.mark.parametrize("absent", [None, float("nan")])
def test_scans_without_patient_are_refused(truth, model, absent):
    with pytest.raises(DataError, match=r"2 of 40 are (None|nan), the first is number 0"):
        made([model], truth, patients=[absent, *truth["patients"][1:-1], absent])
    numbered = made([model], truth, patients=np.arange(40))
    assert set(numbered[numbered.level == SCAN].patients) == {40}


def test_invalid_scores_name_the_model(truth, model):
    broken = {
        "scan scores: 1 of 40": Scores("x", np.where(np.arange(40) == 3, np.nan, model.scan), None),
        "slice scores": Scores("x", None, np.full_like(model.slice, np.nan)),
        "slice scores: a probability": Scores("x", None, 2 + model.slice, slice_is_probability=True),
    }
    for message, scores in broken.items():
        with pytest.raises(DataError, match=f"model 'x', {message}"):
            made([model, scores], truth)


def test_blocks_show_each_metric(truth, model):
    frame = made([model], truth)
    blocks = {block.title: block for block in table_blocks(frame)}
    for title, block in blocks.items():
        rows = [row_of(frame, "GP", metric.level, metric.name) for metric in METRICS if metric.block == title]
        assert block.rows == [("GP", [format_value(row.value, row.low, row.high) for row in rows])]
    assert len(blocks) == 9
    assert blocks["Scan calls"].columns == ["accuracy", "balanced", "F1"]
    assert blocks["Slices"].columns == ["AUC inside scans", "AUC all", "AP all"]


def test_small_samples_are_noted(truth, model):
    number, labels = np.arange(200), np.resize(truth["labels"], 200)
    score = Scores("GP", np.resize(model.scan, 200), None)

    def table(known):
        names = [f"p{i}" for i in number]
        return format_table(
            made([score], {}, labels=np.where(known, labels, -1), patients=names, offsets=np.arange(201))
        )

    assert "Few" not in table(number >= 0)
    assert "Few positive scans (5)" in table((labels == 0) | (number < 10))
    notes = " ".join(table_notes(made([model], truth, patients=["ANONYMOUS"] * 40)))
    assert "same PatientID" in notes
    assert "Few" not in notes
