"""Several seeds: means, spreads and intervals against the single-seed numbers and by hand."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import of_error, of_proportion, patient_bootstrap
from ich_mil.evaluate.calibration_line import calibration_line
from ich_mil.evaluate.metrics import auc_inside, predictive_values, scan_metrics, slice_ranking
from ich_mil.evaluate.model_metrics import INSIDE, SCAN, SLICE, Repeat
from ich_mil.evaluate.resampled_metrics import resampled_scan_metrics
from ich_mil.reproduce.statistics.over_seeds import over_seeds

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
    return over_seeds(
        repeats, **({"name": "GP", "slice_is_probability": True, "seed": 3, "resamples": 50} | changes)
    )


def test_one_seed_gives_the_single_numbers_and_their_interval():
    one = repeat(0)
    table = rows(measured([one]), SCAN)
    single = scan_metrics(one.labels, one.scan) | predictive_values(one.labels, one.scan)
    single |= calibration_line(one.labels, one.scan)
    assert table["mean"].to_dict() == pytest.approx(single, nan_ok=True)
    assert table["std"].isna().all()
    intervals = patient_bootstrap(
        lambda counts: resampled_scan_metrics(one.labels, one.scan, counts), PATIENTS, resamples=50, seed=3
    )
    auc = of_proportion(intervals["auc"], single["auc"], patients=7)
    assert (table.low["auc"], table.high["auc"]) == (auc.low, auc.high)
    assert table.high["log_loss"] == intervals["log_loss"].high
    ece = of_error(intervals["ece"], single["ece"])  # what chance adds is taken off
    assert (table.low["ece"], table.high["ece"]) == (ece.low, ece.high)


def test_mean_and_spread_over_seeds():
    many = [repeat(seed) for seed in range(4)]
    table = measured(many)
    every = [scan_metrics(one.labels, one.scan)["auc"] for one in many]
    assert rows(table, SCAN)["mean"]["auc"] == pytest.approx(np.mean(every))
    assert rows(table, SCAN)["std"]["auc"] == pytest.approx(np.std(every, ddof=1))
    slices = [slice_ranking(one.slice_labels, one.slice)["ap"] for one in many]
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
    table = measured([repeat(0, slice=None), repeat(1, slice=None)])
    for level in (SLICE, INSIDE):
        assert rows(table, level).note["auc"] == "gives no slice score"
    assert rows(table, SCAN).note["auc"] == ""
    unknown = np.full(150, UNKNOWN)
    assert rows(measured([repeat(0, slice_labels=unknown)]), SLICE).note["auc"] == "no slice labels"
    assert rows(measured([repeat(0, scan=None)]), SCAN).note["auc"] == "gives no scan score"
    assert rows(measured([repeat(0, labels=np.full(30, UNKNOWN))]), SCAN).note["auc"] == "no scan labels"


def test_a_model_gives_scores_with_every_seed_or_with_none():
    with pytest.raises(ValueError, match="all give scores or none, got 1 of 2"):
        measured([repeat(0), repeat(1, scan=None)])
    with pytest.raises(ValueError, match="all give scores or none, got 1 of 2"):
        measured([repeat(0, slice=None), repeat(1)])


def test_a_score_that_is_no_number_names_the_model():
    scan = np.where(np.arange(30) == 7, np.nan, 0.5)
    with pytest.raises(DataError, match=r"model 'GP', scan scores: 1 of 30 scores are NaN or infinite"):
        measured([repeat(0), repeat(1, scan=scan)])


def test_one_class_is_not_defined_and_said_so():
    table = rows(measured([repeat(0, labels=np.zeros(30, int)), repeat(1)]), SCAN)
    assert np.isnan(table["mean"]["auc"])
    assert table.note["auc"] == "not defined for 1 of 2 seeds: one class only"


def test_calls_that_are_all_right_rest_on_the_seed_with_the_fewest():
    """What is called positive is so, of 15 patients with one seed and of 4 with the other."""
    many, few = 0.2 + 0.6 * LABELS, 0.2 + 0.6 * (LABELS & (np.arange(30) < 8))
    table = rows(measured([repeat(0, scan=many), repeat(0, scan=few)]), SCAN)
    assert (table["mean"]["ppv"], table.high["ppv"]) == (1, 1)
    assert table.low["ppv"] == pytest.approx(0.025 ** (1 / 4))  # (Clopper and Pearson 1934)


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


def scattered():
    """Three seeds on patients of unequal size; the first scans are negative or without a label."""
    patients = [f"p{min(b, 20)}" for b in range(30)]
    labels = np.where(np.arange(30) < 4, 0, LABELS)
    labels[[0, 7]] = UNKNOWN
    slice_labels = repeat(0).slice_labels.copy()
    slice_labels[:10] = 0
    slice_labels[[3, 31, 36, 90]] = UNKNOWN
    return [repeat(s, labels=labels, patients=patients, slice_labels=slice_labels) for s in range(3)]


def test_intervals_are_of_the_mean_over_seeds_and_resample_patients():
    many = scattered()
    table, first = measured(many), many[0]
    patients = np.array(first.patients)
    scans, slices = first.labels != UNKNOWN, first.slice_labels != UNKNOWN
    pieces = [range(5 * b, 5 * b + 5) for b in range(30)]
    mixed = [b for b in range(30) if {0, 1} <= set(first.slice_labels[pieces[b]])]

    def inside(one, b):
        rows = [n for n in pieces[b] if slices[n]]
        return roc_auc_score(one.slice_labels[rows], one.slice[rows])

    wanted = {  # a number a row, and whose rows they are: all three metrics are plain means over rows
        (SCAN, "brier"): ([((one.scan - one.labels) ** 2)[scans] for one in many], patients[scans]),
        (SLICE, "brier"): (
            [((one.slice - one.slice_labels) ** 2)[slices] for one in many],
            np.repeat(patients, 5)[slices],
        ),
        (INSIDE, "auc"): ([[inside(one, b) for b in mixed] for one in many], patients[mixed]),
    }
    for (level, metric), (values, owner) in wanted.items():
        row = rows(table, level).loc[metric]
        mean = np.mean(values, axis=0)
        expected = patient_bootstrap(
            lambda counts, mean=mean: {"value": mean @ counts / counts.sum(axis=0)},
            owner,
            resamples=50,
            seed=3,
        )["value"]
        if metric == "auc":
            expected = of_proportion(expected, mean.mean(), len(set(owner)))
        assert (row["mean"], row["low"], row["high"]) == pytest.approx(
            (mean.mean(), expected.low, expected.high), rel=1e-12
        )
        assert (row["n"], row["patients"]) == (len(owner), len(set(owner)))


def test_seeds_with_other_labels_are_each_measured_by_their_own():
    """Bags that are drawn by the seed, as those of digits, have other labels in each."""
    turned = repeat(1, labels=1 - LABELS)
    table = rows(measured([repeat(0), turned]), SCAN)
    every = [np.mean((one.scan - one.labels) ** 2) for one in (repeat(0), turned)]
    assert table["mean"]["brier"] == pytest.approx(np.mean(every))


def test_seeds_that_differ_in_their_positive_scans_have_no_number_inside():
    other = repeat(1, slice_labels=np.roll(repeat(0).slice_labels, 5))
    table = rows(measured([repeat(0), other]), INSIDE)
    assert table.note["auc"] == "seeds differ in their positive scans"


@pytest.mark.parametrize("what", ["labels", "slice_labels", "offsets"])
def test_repeats_whose_rows_do_not_match_are_refused(what):
    one = repeat(0)
    changed = getattr(one, what).copy()
    if what == "offsets":
        changed[1] += 1
    else:
        changed[3] = UNKNOWN
    messages = {"labels": "same scans labelled", "slice_labels": "same slices labelled"}
    with pytest.raises(ValueError, match=messages.get(what, "same number of slices")):
        measured([one, repeat(1, **{what: changed})])
