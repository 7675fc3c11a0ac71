"""Several seeds: means, spreads and intervals against the single-seed numbers and by hand."""

import numpy as np
import pytest

from ich_mil.data.labels import UNKNOWN
from ich_mil.evaluate.bootstrap import patient_bootstrap
from ich_mil.evaluate.metrics import auc_inside, scan_metrics, slice_metrics
from ich_mil.evaluate.over_seeds import INSIDE, SCAN, SLICE, Repeat, over_seeds
from ich_mil.evaluate.weighted import resampled_scan_metrics

LABELS = np.array([0, 1] * 15)
OFFSETS = np.arange(0, 151, 5)
PATIENTS = [f"p{i // 2}" for i in range(30)]


def repeat(seed, **changes):
    generator = np.random.default_rng(seed)
    slice_labels = ((np.arange(150) % 5 < 2) & (np.repeat(LABELS, 5) == 1)).astype(int)
    given = {
        "labels": LABELS,
        "patients": PATIENTS,
        "offsets": OFFSETS,
        "slice_labels": slice_labels,
        "scan": np.clip(0.3 * LABELS + generator.uniform(0.1, 0.6, 30), 0, 1),
        "slice": np.clip(0.3 * slice_labels + generator.uniform(0.1, 0.6, 150), 0, 1),
    }
    return Repeat(**(given | changes))


def rows(table, level):
    return table[table.level == level].set_index("metric")


def measured(repeats, **changes):
    return over_seeds(repeats, **({"slice_is_probability": True, "seed": 3, "resamples": 50} | changes))


def test_one_seed_gives_the_single_numbers_and_their_interval():
    one = repeat(0)
    table = rows(measured([one]), SCAN)
    single = scan_metrics(one.labels, one.scan)
    assert table["mean"].to_dict() == pytest.approx(single, nan_ok=True)
    assert table["std"].isna().all()
    intervals = patient_bootstrap(
        lambda counts: resampled_scan_metrics(one.labels, one.scan, counts), PATIENTS, resamples=50, seed=3
    )
    assert table.low["auc"] == intervals["auc"].low
    assert table.high["log_loss"] == intervals["log_loss"].high


def test_mean_and_spread_over_seeds():
    many = [repeat(seed) for seed in range(4)]
    table = measured(many)
    every = [scan_metrics(one.labels, one.scan)["auc"] for one in many]
    assert rows(table, SCAN)["mean"]["auc"] == pytest.approx(np.mean(every))
    assert rows(table, SCAN)["std"]["auc"] == pytest.approx(np.std(every, ddof=1))
    slices = [slice_metrics(one.slice_labels, one.slice, one.bags)["slice_ap"] for one in many]
    assert rows(table, SLICE)["mean"]["ap"] == pytest.approx(np.mean(slices))
    inside = [auc_inside(one.slice_labels, one.slice, one.bags)[1].mean() for one in many]
    assert rows(table, INSIDE)["mean"]["auc"] == pytest.approx(np.mean(inside))
    assert rows(table, INSIDE).n["auc"] == 15


def test_seeds_that_agree_have_no_spread_and_the_interval_of_one():
    one = repeat(0)
    alone, twice = measured([one]), measured([one, one])
    assert (twice["std"] == 0).all()
    for column in ("mean", "low", "high"):
        assert twice[column].tolist() == pytest.approx(alone[column].tolist())


def test_what_a_model_does_not_say_is_told():
    silent = np.full(150, np.nan)
    assert rows(measured([repeat(0, slice=silent)]), SLICE).note["auc"] == "gives no slice score"
    unknown = np.full(150, UNKNOWN)
    assert rows(measured([repeat(0, slice_labels=unknown)]), SLICE).note["auc"] == "no slice is labelled"
    table = measured([repeat(0, scan=np.full(30, np.nan))])
    assert rows(table, SCAN).note["auc"] == "gives no scan score"


def test_one_class_is_not_defined_and_said_so():
    table = rows(measured([repeat(0, labels=np.zeros(30, int)), repeat(1)]), SCAN)
    assert np.isnan(table["mean"]["auc"])
    assert table.note["auc"] == "not defined for 1 of 2 seeds"


def test_slice_scores_that_are_no_probabilities_are_only_ranked():
    one = repeat(0, slice=np.random.default_rng(1).normal(size=150) * 9)
    table = rows(measured([one], slice_is_probability=False), SLICE)
    assert table.index.tolist() == ["auc", "ap"]


def test_unlabelled_scans_are_left_out():
    labels = LABELS.copy()
    labels[:4] = UNKNOWN
    one = repeat(0, labels=labels)
    table = rows(measured([one]), SCAN)
    assert table.n["auc"] == 26
    assert table["mean"]["brier"] == pytest.approx(np.mean((one.scan[4:] - LABELS[4:]) ** 2))


def test_repeats_of_other_patients_are_refused():
    with pytest.raises(ValueError, match="same patients"):
        measured([repeat(0), repeat(1, patients=[*PATIENTS[1:], "x"])])
    with pytest.raises(ValueError, match="at least one"):
        measured([])
