"""The closer look at a scored set: its numbers, against counts by hand, and what stands where one is not."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from ich_mil.data.features import bare_features
from ich_mil.evaluate.deployment.drift import DriftAlarm, column_names, summarise
from ich_mil.evaluate.deployment.triage import fit_triage
from ich_mil.reproduce.analyses import _set_right, look_closely
from ich_mil.reproduce.look import Look
from ich_mil.reproduce.protocol import BenchmarkSet, ProtocolConfig
from ich_mil.reproduce.scoring import Scored
from ich_mil.reproduce.statistics.drift_rates import alarm_rates

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


def said(n_scans, std, *, seed, shift=0.0):
    """Probabilities that know something of the labels, and deviations about `std`."""
    generator = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(-generator.normal(3.0 * (np.arange(n_scans) % 2) - 1.5 + shift)))
    each = std + 0.01 * generator.random(n_scans)
    return Scored(p, each, each / 2, generator.random(SLICES * n_scans), np.full(SLICES * n_scans, 0.1))


def config(out, **changes):
    sets = [BenchmarkSet(name="S", kind="features", root="x", external="y")]
    given = {"sensitivity": 0.8, "specificity": 0.8, "confidence": 0.8, "resamples": 20, "simulations": 5}
    return ProtocolConfig(
        title="A test", out=out, sets=sets, heads={"H": {}}, main="H", **(given | {"seeds": [3]} | changes)
    )


def made_look(folder, **changes):
    scored = {MAIN: said(AWAY, 0.2, seed=0, shift=1.0), OTHER: said(AWAY, np.nan, seed=1)}
    home = features(HOME, "h", 0.0), said(HOME, 0.1, seed=2)
    away = features(AWAY, "a", 3.0)
    look = Look("away", MAIN, scored, away, home, None, None, folder, config(folder))
    return replace(look, **changes)


@pytest.fixture(scope="module")
def look(tmp_path_factory):
    return made_look(tmp_path_factory.mktemp("look"))


@pytest.fixture(scope="module")
def chapter(look):
    return look_closely(look)


@pytest.fixture
def table(look, chapter):
    return lambda name: pd.read_csv(look.folder / f"away_{name}.csv")


def test_models_are_compared_with_the_main_head(look, table):
    rows = table("comparison").set_index("metric")
    assert set(rows.model) == {OTHER}
    value, reference = (roc_auc_score(look.labels, look.scored[name].scan) for name in (OTHER, MAIN))
    found = rows.loc["auc", ["value", "reference_value", "difference"]].tolist()
    assert found == pytest.approx([value, reference, value - reference], rel=1e-12)


def test_slices_are_ranked_inside_positive_scans(look, table):
    inside = {}
    for name, one in look.scored.items():
        scores = one.slice.reshape(-1, SLICES)[1::2]  # (60, 3), the lowest bleeds
        inside[name] = (scores[:, :1] > scores[:, 1:]).mean()
    row = table("slices").iloc[0]
    assert (row.value, row.reference_value) == pytest.approx((inside[OTHER], inside[MAIN]), rel=1e-12)
    assert row.n == 60


def test_groups_and_calibration_count_every_scan_once(look, table):
    (row,) = table("groups").itertuples()  # all have 3 slices
    assert (row.n, row.positives) == (AWAY, 60)
    assert row.sensitivity == pytest.approx((look.probability[1::2] >= 0.5).mean())
    bins = table("calibration")
    assert (bins.n.sum(), bins.positives.sum()) == (AWAY, 60)
    assert (bins.probability * bins.n).sum() == pytest.approx(look.probability.sum())
    assert bins.patients.tolist() == bins.n.tolist()


def test_a_random_order_of_scans_has_the_share_of_wrong_calls_for_its_area(look, table):
    wrong = (look.probability >= 0.5) != (look.labels == 1)
    assert 0.1 < wrong.mean() < 0.4
    rows = table("uncertainty").groupby("probabilities").random.unique()
    assert rows["as given"] == pytest.approx([wrong.mean()])
    moved, _ = _set_right(look.labels, look.probability, look.scored[MAIN].scan_std)
    right = ((moved >= 0.5) != (look.labels == 1)).mean()
    assert right < wrong.mean() - 0.02
    assert rows["recalibrated on these scans"] == pytest.approx([right])
    assert table("deciles").wrong.sum() == wrong.sum()
    row = table("joint").iloc[0]
    assert (row.n, row.slices_low, row.slices_high, row.ratio) == (AWAY, SLICES, SLICES, pytest.approx(0.5))


def test_probabilities_are_set_right_by_their_mean_and_deviations_by_the_slope():
    p, std = np.array([0.2, 0.6, 0.7, 0.9]), np.array([0.1, 0.02, 0.03, 0.04])
    moved, spread = _set_right(np.array([0, 0, 0, 1]), p, std)
    # Platt's targets of one positive and three negative scans are 2/3 and 1/5
    assert moved.mean() == pytest.approx((2 / 3 + 3 / 5) / 4, rel=1e-6)
    odds = moved / (1 - moved) / (p / (1 - p))
    assert odds == pytest.approx(np.full(4, odds[0]), rel=1e-6)
    step = 1e-6
    near = (p + step) / (1 - p - step) * odds[0]
    assert spread == pytest.approx(std * (near / (1 + near) - moved) / step, rel=1e-4)


def test_this_site_is_held_against_the_training_site(table):
    rows = table("higher").set_index(["group", "compared"]).loc["this site against the training site"]
    row = rows.loc["all"]
    assert (row.n_there, row.n_elsewhere, row.auc) == (AWAY, HOME, 1.0)
    assert 0.2 < row.median_there < 0.21
    assert 0.1 < row.median_elsewhere < 0.11


def test_triage_is_fitted_to_half_of_the_patients_and_counted_on_the_others(look, table):
    patients = np.unique(look.bags.patients)
    fitted_to = np.random.default_rng(3).permutation(patients)[:60]
    inside = np.isin(look.bags.patients, fitted_to)
    shares = {"sensitivity": 0.8, "specificity": 0.8, "confidence": 0.8}
    triage = fit_triage(look.labels[inside], look.probability[inside], **shares)
    labels, p = look.labels[~inside], look.probability[~inside]
    missed, alarms = (labels == 1) & (p < triage.low), (labels == 0) & (p >= triage.high)
    rows = table("triage").set_index("metric")
    for metric, count, n in (
        ("cleared", p < triage.low, 61),
        ("called_positive", p >= triage.high, 61),
        ("missed", missed, (labels == 1).sum()),
        ("false_alarms", alarms, (labels == 0).sum()),
    ):
        assert (rows["count"][metric], rows.n[metric]) == (count.sum(), n)
    waits = table("worklist")
    groups = waits.drop_duplicates("group").set_index("group").scans
    assert groups["positive"] == (labels == 1).sum()
    assert groups["missed"] == missed.sum()


def test_the_promise_is_checked_by_every_method(table):
    rows = table("promise")
    assert rows.method.tolist() == np.repeat(["risk_control", "next_scans", "conformal"], 2).tolist()
    assert rows.promise.tolist() == ["sensitivity", "specificity"] * 3
    assert set(rows.splits) == {5}


def test_recalibration_mends_probabilities_that_are_too_high_at_the_site(look, table):
    rows = table("recalibration")
    assert sorted(set(rows.n)) == [10, 20, 50]
    row = rows[(rows.n == 50) & (rows.way == "intercept")].set_index("metric").loc["log_loss"]
    p, y = look.probability, look.labels
    assert row.own == pytest.approx(-np.log(np.where(y == 1, p, 1 - p)).mean(), abs=0.05)  # of part of them
    assert row.value < row.own - 0.02


def test_drift_is_looked_for_in_this_site_against_the_training_site(look, chapter, table):
    home, there = look.home
    rows = table("drift").set_index("name")
    means = [one.x[:, 0].reshape(-1, SLICES).mean(1) for one in (home, look.bags)]
    row = rows.loc["mean of feature 0"]
    assert (row.reference, row.batch) == pytest.approx(tuple(np.median(one) for one in means), rel=1e-6)
    scores = np.median(there.scan), np.median(look.probability)
    assert (rows.reference["score"], rows.batch["score"]) == pytest.approx(scores, rel=1e-12)
    alarm = DriftAlarm.fit(
        summarise(home.x.numpy(), home.offsets.numpy()),
        there.scan,
        home.patients,
        names=column_names(2),
        seed=3,
    )
    batch = summarise(look.bags.x.numpy(), look.bags.offsets.numpy())
    found = alarm.test(batch, look.probability, look.bags.patients)
    assert found.p_features == 0.001  # no deal of 999 sets the sites as far apart
    (section,) = [one for one in chapter.sections if one.title == "Drift against the training site"]
    assert section.text == found.text()
    rates = alarm_rates(home.x.numpy(), home.offsets.numpy(), there.scan, home.patients, seed=3)
    pd.testing.assert_frame_equal(table("drift_rates"), rates, rtol=1e-12)


def test_what_cannot_be_made_says_so_in_its_own_place(tmp_path):
    some = 104  # 26 of each label to calibrate on: `risk_control` needs 22, `next_scans` 29
    main = said(some, 0.2, seed=0)
    main.scan_std[5] = 0.0
    look = made_look(
        tmp_path,
        bags=features(some, "a", 0.0),
        scored={MAIN: main, OTHER: said(some, np.nan, seed=1)},
        home=None,
        config=config(tmp_path, sensitivity=0.9, specificity=0.9, confidence=0.9),
    )
    sections = {}
    for one in look_closely(look).sections:
        assert one.title not in sections
        sections[one.title] = one
    assert sections["Does the uncertainty find the errors?"].table is not None
    assert sections["Joint against independent samples"].text == (
        "Not available: standard deviations must be above 0, got 0; predict with more samples."
    )
    assert sections["Triage in three"].table is not None
    promise = sections["The promise, on 5 random splits"].table
    assert promise.method.tolist() == [*["risk_control"] * 2, "next_scans", *["conformal"] * 2]
    assert promise.splits.tolist() == [5, 5, 0, 5, 5]
    assert promise.kept.notna().tolist() == [True, True, False, True, True]
    assert "26 patients with positive calibration scans are too few to promise" in promise.note[2]
    assert "(next_scans): 29 are needed" in promise.note[2]
