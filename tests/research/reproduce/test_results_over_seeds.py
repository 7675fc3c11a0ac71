"""Metrics over several seeds: means, spreads and intervals against the single-seed numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import patient_bootstrap, proportion_interval
from ich_mil.evaluate.metrics import INSIDE, SCAN, SLICE, auc_inside, scan_metrics
from ich_mil.evaluate.result_table import evaluate
from ich_mil.evaluate.scores import Scores
from ich_mil.sets.features import bare_features
from ich_mil.sets.labels import UNKNOWN
from research.reproduce.tables import metrics_over_seeds

LABELS = np.array([0, 1] * 15)
BAGS = np.repeat(np.arange(30), 5)
PATIENTS = [f"p{min(b // 2, 12)}" for b in range(30)]


@pytest.fixture
def bags():
    """Scans of five slices; one scan and some slices have no label."""
    labels = np.where(np.arange(30) == 7, UNKNOWN, LABELS)
    slices = ((np.arange(150) % 5 < 2) & (LABELS[BAGS] == 1)).astype(int)
    slices[[3, 31, 36, 90]] = UNKNOWN
    made = bare_features(
        np.zeros((150, 1)), [5] * 30, [f"s{b}" for b in range(30)], labels, [f"{n}" for n in range(150)]
    )
    return replace(made, patients=PATIENTS, slice_labels=torch.tensor(slices))


def scores(seed, **changes):
    generator = np.random.default_rng(seed)
    scan = np.clip(0.3 * LABELS + generator.uniform(0.1, 0.6, 30), 0, 1)
    slices = np.clip(0.2 * LABELS[BAGS] + generator.uniform(0.1, 0.6, 150), 0, 1)
    return replace(Scores("GP", scan, slices, slice_is_probability=True), **changes)


def measured(runs, bags):
    return metrics_over_seeds(runs, bags, seed=3, resamples=50).set_index(["level", "metric"])


def test_equal_seeds_give_the_result_table(bags):
    single = evaluate([scores(0)], bags, seed=3, resamples=50)
    for n in (1, 3):
        table = measured([scores(0)] * n, bags)
        for ours, theirs in (("mean", "value"), ("low", "low"), ("high", "high")):
            np.testing.assert_allclose(table[ours], single[theirs], rtol=1e-12)
        np.testing.assert_allclose(table["std"].fillna(0), 0, atol=1e-15)
        assert set(table.seeds) == {n}


def test_mean_spread_and_interval_over_seeds(bags):
    many = [scores(seed) for seed in range(4)]
    table = measured(many, bags)
    labels, slice_labels = bags.labels.numpy(), bags.slice_labels.numpy()
    wanted = {
        (SCAN, "auc"): [scan_metrics(labels, one.scan)["auc"] for one in many],
        (INSIDE, "auc"): [auc_inside(slice_labels, one.slice, BAGS)[1].mean() for one in many],
    }
    for place, every in wanted.items():
        assert table["mean"][place] == pytest.approx(np.mean(every))
        assert table["std"][place] == pytest.approx(np.std(every, ddof=1))
    scans, slices, owner = labels != UNKNOWN, slice_labels != UNKNOWN, np.array(PATIENTS)
    mixed = auc_inside(slice_labels, many[0].slice, BAGS)[0]
    rows = {  # a number a row, and whose rows they are: all three metrics are plain means over rows
        (SCAN, "brier"): ([((one.scan - labels) ** 2)[scans] for one in many], owner[scans]),
        (SLICE, "brier"): ([((one.slice - slice_labels) ** 2)[slices] for one in many], owner[BAGS][slices]),
        (INSIDE, "auc"): ([auc_inside(slice_labels, one.slice, BAGS)[1] for one in many], owner[mixed]),
    }
    for place, (values, patients) in rows.items():
        mean = np.mean(values, axis=0)
        ends = patient_bootstrap(
            lambda counts, mean=mean: {"m": mean @ counts / counts.sum(axis=0)},
            patients,
            resamples=50,
            seed=3,
        )["m"]
        if place[1] == "auc":
            ends = proportion_interval(ends, mean.mean(), len(set(patients)))
        found = table.loc[place, ["mean", "low", "high"]].tolist()
        assert found == pytest.approx([mean.mean(), ends.low, ends.high], rel=1e-12)
        assert (table.n[place], table.patients[place]) == (len(patients), len(set(patients)))


def test_missing_values_of_some_seeds_are_noted(bags):
    table = measured([scores(0, slice=None), scores(1, slice=None)], bags)
    assert table.note[INSIDE, "auc"] == table.note[SLICE, "auc"] == "gives no slice score"
    timid = measured([scores(0), scores(1, scan=np.linspace(0.1, 0.4, 30))], bags)
    assert np.isnan(timid["mean"][SCAN, "ppv"])
    assert timid.note[SCAN, "ppv"].startswith("not defined for 1 of 2 seeds")
    ranked = measured([scores(0, slice=scores(0).slice * 9, slice_is_probability=False)], bags)
    assert ranked.loc[SLICE].index.tolist() == ["auc", "ap"]
    with pytest.raises(DataError, match="model 'GP', scan scores: 1 of 30"):
        measured([scores(0), scores(1, scan=np.where(np.arange(30) == 7, np.nan, 0.5))], bags)


def test_exact_intervals_use_the_fewest_calls(bags):
    bags = replace(bags, labels=torch.tensor(LABELS), patients=[f"p{b}" for b in range(30)])
    many, few = 0.2 + 0.6 * LABELS, 0.2 + 0.6 * (LABELS & (np.arange(30) < 8))
    row = measured([scores(0, scan=many), scores(0, scan=few)], bags).loc[SCAN, "ppv"]
    assert (row["mean"], row.high) == (1, 1)
    assert row.low == pytest.approx(0.025 ** (1 / 4))  # (Clopper and Pearson 1934)
