"""Detailed analyses of a scored set: numbers against counts by hand, and reasons for missing ones."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from ich_mil.evaluate.deployment.triage import fit_triage
from ich_mil.evaluate.scores import Scores
from ich_mil.sets.features import bare_features
from research.reproduce.analyses import _recalibrated, analyse
from research.reproduce.protocol import BenchmarkSet, ProtocolConfig
from research.reproduce.scored_set import ScoredSet
from research.reproduce.statistics import drift_rates

MAIN, OTHER = "H, M=100", "CNN alone"
AWAY, HOME = 121, 60
SLICES = 3


def features(n_scans, name, place):
    """Scans of 3 slices, each of a patient of its own; those of odd number bleed in their lowest slice."""
    generator = np.random.default_rng(n_scans)
    scans = [f"{name}{b}" for b in range(n_scans)]
    labels = np.arange(n_scans) % 2
    x = generator.normal(place, 1.0, (SLICES * n_scans, 2))
    slices = [str(n) for n in range(len(x))]
    made = bare_features(x, np.full(n_scans, SLICES), scans, labels, slices)
    slice_labels = np.column_stack([labels, 0 * labels, 0 * labels]).ravel()
    return replace(made, patients=[f"P-{one}" for one in scans], slice_labels=torch.tensor(slice_labels))


def scores(name, n_scans, std, *, seed, shift=0.0):
    """Probabilities that know something of the labels, and deviations about `std`."""
    generator = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(-generator.normal(3.0 * (np.arange(n_scans) % 2) - 1.5 + shift)))
    each = std + 0.01 * generator.random(n_scans)
    slices = generator.random(SLICES * n_scans)
    return Scores(name, p, slices, scan_std=each)


def config(out, **changes):
    sets = [BenchmarkSet(name="S", kind="features", root="x", external="y")]
    given = {"sensitivity": 0.8, "specificity": 0.8, "confidence": 0.8, "resamples": 20, "simulations": 5}
    return ProtocolConfig(
        title="A test", out=out, sets=sets, heads={"H": {}}, main="H", **(given | {"seeds": [3]} | changes)
    )


def made_set(folder, **changes):
    models = {MAIN: scores(MAIN, AWAY, 0.2, seed=0, shift=1.0), OTHER: scores(OTHER, AWAY, 0.1, seed=1)}
    home = features(HOME, "h", 0.0), scores(MAIN, HOME, 0.1, seed=2)
    away = features(AWAY, "a", 3.0)
    made = ScoredSet("away", MAIN, models, away, home, None, None, folder, config(folder))
    return replace(made, **changes)


@pytest.fixture(scope="module")
def away(tmp_path_factory):
    return made_set(tmp_path_factory.mktemp("away"))


@pytest.fixture(scope="module")
def chapter(away):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift_rates, "DRAWS", 5)
        yield analyse(away)


@pytest.fixture
def table(away, chapter):
    return lambda name: pd.read_csv(away.folder / f"away_{name}.csv")


def test_models_are_compared_with_the_main_head(away, table):
    rows = table("comparison").set_index("metric")
    assert set(rows.model) == {OTHER}
    value, reference = (roc_auc_score(away.labels, away.scores[name].scan) for name in (OTHER, MAIN))
    found = rows.loc["auc", ["value", "reference_value", "difference"]].tolist()
    assert found == pytest.approx([value, reference, value - reference], rel=1e-12)


def test_slices_are_ranked_inside_positive_scans(away, table):
    inside = {}
    for name, one in away.scores.items():
        scores = one.slice.reshape(-1, SLICES)[1::2]  # (60, 3), the lowest bleeds
        inside[name] = (scores[:, :1] > scores[:, 1:]).mean()
    row = table("slices").iloc[0]
    assert (row.value, row.reference_value) == pytest.approx((inside[OTHER], inside[MAIN]), rel=1e-12)
    assert row.n == 60


def test_random_order_area_is_the_error_rate(away, table):
    wrong = (away.probability >= 0.5) != (away.labels == 1)
    assert 0.1 < wrong.mean() < 0.4
    rows = table("uncertainty").groupby("probabilities").random.unique()
    assert rows["as given"] == pytest.approx([wrong.mean()])
    moved, _ = _recalibrated(away.labels, away.probability, away.std)
    right = ((moved >= 0.5) != (away.labels == 1)).mean()
    assert right < wrong.mean() - 0.02
    assert rows["recalibrated on these scans"] == pytest.approx([right])
    assert table("deciles").wrong.sum() == wrong.sum()


def test_triage_is_fitted_to_half_the_patients(away, table):
    patients = np.unique(away.bags.patients)
    fitted_to = np.random.default_rng(3).permutation(patients)[:60]
    inside = np.isin(away.bags.patients, fitted_to)
    shares = {"sensitivity": 0.8, "specificity": 0.8, "confidence": 0.8}
    triage = fit_triage(away.labels[inside], away.probability[inside], **shares)
    labels, p = away.labels[~inside], away.probability[~inside]
    missed, alarms = (labels == 1) & (p < triage.low), (labels == 0) & (p >= triage.high)
    rows = table("triage").set_index("metric")
    for metric, count, n in (
        ("cleared", p < triage.low, 61),
        ("called_positive", p >= triage.high, 61),
        ("missed", missed, (labels == 1).sum()),
        ("false_alarms", alarms, (labels == 0).sum()),
    ):
        assert (rows["count"][metric], rows.n[metric]) == (count.sum(), n)


def test_drift_compares_with_the_training_site(away, chapter, table):
    home, there = away.home
    rows = table("drift").set_index("name")
    means = [one.x[:, 0].reshape(-1, SLICES).mean(1) for one in (home, away.bags)]
    row = rows.loc["mean of feature 0"]
    assert (row.reference, row.batch) == pytest.approx(tuple(np.median(one) for one in means), rel=1e-6)
    scores = np.median(there.scan), np.median(away.probability)
    assert (rows.reference["score"], rows.batch["score"]) == pytest.approx(scores, rel=1e-12)
    rates = drift_rates.alarm_rates(home.x.numpy(), home.offsets.numpy(), there.scan, home.patients, seed=3)
    pd.testing.assert_frame_equal(table("drift_rates"), rates, rtol=1e-12)


def test_impossible_analyses_state_the_reason(tmp_path):
    some = 80  # 20 of each label to calibrate on: 22 are needed
    scored = made_set(
        tmp_path,
        bags=features(some, "a", 0.0),
        scores={MAIN: scores(MAIN, some, 0.2, seed=0), OTHER: Scores(OTHER, None, None)},
        home=None,
        config=config(tmp_path, sensitivity=0.9, specificity=0.9, confidence=0.9),
    )
    sections = {one.title: one for one in analyse(scored).sections}
    assert sections["Does the uncertainty find the errors?"].table is not None
    assert "20 patients with positive calibration scans are too few" in sections["Three-way triage"].text
    (only,) = analyse(replace(scored, bags=replace(scored.bags, labels=torch.zeros(some)))).sections
    assert "[0.0]" in only.text or "[0]" in only.text
