"""Drift alarm: distances against scipy, false alarms and power by simulation, real sets."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import binom, energy_distance, ks_2samp

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment import drift
from ich_mil.evaluate.deployment.drift import (
    DriftAlarm,
    column_distances,
    column_names,
    energy_distances,
    summarise,
    whitened,
)


@pytest.fixture
def few_permutations(monkeypatch):
    """Enough for simulations."""
    monkeypatch.setattr(drift, "PERMUTATIONS", 199)


def names(n, each=1):
    return [f"p{i // each}" for i in range(n)]


def fit(table, scores, patients=None, **options):
    columns = [f"column {c}" for c in range(table.shape[1])]
    return DriftAlarm.fit(
        table, scores, patients or names(len(table)), names=columns, **{"seed": 0} | options
    )


@pytest.fixture
def reference():
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 4)), rng.random(60)


def permuted(scans, n, r, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(scans) < n for _ in range(r)]).T


def test_distances_are_scipys():
    rng = np.random.default_rng(0)
    table, batch = np.column_stack([rng.normal(size=30), rng.integers(0, 4, 30)]), permuted(30, 12, 5)
    found, energy = column_distances(table, batch), energy_distances(table[:, :1], batch)
    for r in range(5):
        inside = batch[:, r]
        for c in range(2):
            expected = ks_2samp(table[inside, c], table[~inside, c]).statistic
            assert found[c, r] == pytest.approx(expected, rel=1e-12)
        square = energy_distance(table[inside, 0], table[~inside, 0]) ** 2
        assert energy[r] == pytest.approx(12 * 18 / 30 * square, rel=1e-9)
    a, b = table[batch[:, 0]], table[~batch[:, 0]]
    expected = 2 * cdist(a, b).mean() - cdist(a, a).mean() - cdist(b, b).mean()
    assert energy_distances(table, batch)[0] == pytest.approx(12 * 18 / 30 * expected, rel=1e-9)


def test_whitened_components_have_variance_1():
    rng = np.random.default_rng(3)
    table = rng.normal(size=(200, 4)) @ rng.normal(size=(4, 4)) * [1, 10, 100, 1e4]
    points = whitened(table)
    np.testing.assert_allclose(points.T @ points / 200, np.eye(4), atol=1e-9)
    moved = whitened(np.column_stack([table * [1, 50, 1e-6, 1] + [0, 7, -3, 0], np.full(200, 0.1)]))
    np.testing.assert_allclose(cdist(moved, moved), cdist(points, points), atol=1e-6)


def test_degenerate_components_are_left_out():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(100, 1))
    assert whitened(np.column_stack([x, x + 1e-6 * rng.normal(size=(100, 1))])).shape == (100, 1)
    assert whitened(rng.normal(size=(60, 40))).shape == (60, 6)
    assert whitened(rng.normal(size=(9, 4))).shape == (9, 1)
    points = whitened(np.full((20, 3), 0.1))
    assert points.shape == (20, 0)
    np.testing.assert_array_equal(energy_distances(points, permuted(20, 8, 3)), 0)


def test_summary_by_hand():
    x = np.array([[1, 10], [3, 10], [5, 20], [0, 1]])
    found = summarise(x, np.array([0, 3, 4]))
    np.testing.assert_allclose(found, [[3, 40 / 3, np.sqrt(8 / 3), np.sqrt(200 / 9), 3], [0, 1, 0, 0, 1]])
    assert column_names(1) == ["mean of feature 0", "spread of feature 0", "slices"]


def test_shifted_column_raises_the_alarm(reference):
    table, scores = reference
    rng = np.random.default_rng(1)
    batch = rng.normal(size=(25, 4)) + np.array([0, 0, 2, 0])
    found = fit(table, scores).test(batch, rng.random(25), names(25))
    assert (found.alarm, found.p_features) == (True, 0.001)
    assert found.p_scores > 0.025
    first = found.moved[0]
    assert (first.name, first.p) == ("column 2", 0.001)
    assert first.distance == pytest.approx(ks_2samp(table[:, 2], batch[:, 2]).statistic)
    assert (first.reference, first.batch) == (np.median(table[:, 2]), np.median(batch[:, 2]))
    assert all(one.p > 0.025 for one in found.moved[1:])
    assert "column 2: median" in found.text()
    assert "column 0" not in found.text()


def test_change_of_correlation_raises_the_alarm():
    rng = np.random.default_rng(3)

    def draw(n, sign):
        x = rng.normal(size=(n, 1))
        return np.column_stack([x, sign * x + 0.1 * rng.normal(size=(n, 1))])

    found = fit(draw(100, 1), rng.random(100)).test(draw(40, -1), rng.random(40), names(40))
    assert found.p_features == 0.001
    assert min(one.p for one in found.moved) > 0.025
    assert "No single column changed" in found.text()


def test_same_scans_raise_no_alarm(reference):
    table, scores = reference
    found = fit(table, scores).test(table, scores, names(60))
    assert (found.alarm, found.p_features, found.p_scores) == (False, 1, 1)
    assert found.statistic == pytest.approx(0, abs=1e-12)
    assert found.text().startswith("No drift found (60 scans")
    found = fit(table, scores, rate=0.002).test(table[:20] + 9, scores[:20], names(20))
    assert (found.p_features, found.alarm) == (0.001, True)  # half of the rate, and at most that


def alarms(draw, runs, **options):
    """Alarms among `runs` references and batches, both from `draw(generator)`."""
    raised = 0
    for seed in range(runs):
        table, scores, patients, n = draw(np.random.default_rng(seed))
        alarm = fit(table[n:], scores[n:], patients[n:], seed=seed, **options)
        raised += alarm.test(table[:n], scores[:n], patients[:n]).alarm
    return raised


def test_false_alarm_rate(few_permutations):
    def draw(rng):
        table = rng.standard_t(2, size=(70, 5)) @ rng.normal(size=(5, 5))  # heavy tails, correlated
        return table, table[:, 0] + rng.normal(size=70), names(70), 20

    raised = alarms(draw, 100, rate=0.2)
    # exact at 0.1 for each of two tests: between 0.1 and 0.2 together
    assert binom.ppf(0.001, 100, 0.1) <= raised <= binom.ppf(0.999, 100, 0.2)


def test_permutations_keep_patients_whole(reference, monkeypatch):
    seen = []
    monkeypatch.setattr(
        drift, "column_distances", lambda table, batch: seen.append(batch) or np.ones((5, batch.shape[1]))
    )
    table, scores = reference
    fit(table[:30], scores[:30]).test(table[30:], scores[30:], names(30, each=3))
    batch = seen[0]
    assert batch.shape == (60, drift.PERMUTATIONS + 1)
    np.testing.assert_array_equal(batch[:, 0], np.arange(60) >= 30)
    owner = np.concatenate([np.arange(30), 30 + np.arange(30) // 3])
    patients = np.array([batch[owner == k].mean(axis=0) for k in range(40)])  # (patients, R)
    assert set(np.unique(patients)) == {0, 1}
    assert set(patients.sum(axis=0)) == {10}
    assert len(np.unique(patients, axis=1).T) > 990


def test_invariance_to_units_mixture_and_order(reference):
    table, scores = reference
    rng = np.random.default_rng(5)
    batch, mix = rng.normal(size=(20, 4)) + 0.3, rng.normal(size=(4, 4)) * np.array([1, 1e3, 1, 1e-3])
    one = fit(table, scores).test(batch, scores[:20], names(20))
    assert 0.001 < one.p_features < 1
    mixed = fit(table @ mix + 5, scores).test(batch @ mix + 5, scores[:20], names(20))
    assert mixed.p_features == one.p_features
    assert mixed.statistic == pytest.approx(one.statistic, rel=1e-6)
    turned = fit(table, scores).test(batch[::-1], scores[:20][::-1], names(20)[::-1])
    assert (turned.p_features, turned.p_scores, turned.moved) == (one.p_features, one.p_scores, one.moved)
    assert fit(table, -scores).test(batch, scores[:20] + 2, names(20)).moved == one.moved


def test_large_sets_are_subsampled_by_patient(reference, monkeypatch):
    monkeypatch.setattr(drift, "MOST_SCANS", 30)
    table, scores = reference
    alarm = fit(table, scores, names(60, each=4))
    assert len(alarm.table) == 32  # the patient that passes the 30 is kept whole
    assert np.bincount(alarm.patients).tolist() == [4] * 8
    result = alarm.test(table + 3, scores, names(60))
    assert (result.alarm, result.n) == (True, 30)


@pytest.mark.parametrize(
    ("batch", "patients", "message"),
    [
        (np.zeros((9, 4)), names(9), "batch: .* at least 10 scans, got 9"),
        (np.zeros((12, 3)), names(12), "3 feature columns, the reference has 4"),
        (np.full((12, 4), np.nan), names(12), "12 scans, first number 0"),
        (np.zeros((12, 4)), ["a"] * 12, "1 patients, and 30 of the reference, are too few"),
    ],
)
def test_unusable_batches_are_refused(reference, batch, patients, message):
    alarm = fit(*reference, names(60, each=2))
    with pytest.raises(DataError, match=message):
        alarm.test(batch, np.zeros(len(batch)), patients)
    assert alarm.test(reference[0][:12] + 9, np.zeros(12), names(12, each=6)).alarm  # 496 ways


def test_unresolvable_rate_is_refused(reference):
    table, scores = reference
    for rate in (0.001, 1):
        with pytest.raises(ValueError, match="rate must be"):
            fit(table, scores, rate=rate)


@pytest.mark.realdata
def test_cq500_against_rsna(rsna_features, cq500_features):
    sets = []
    for features in (rsna_features, cq500_features):
        columns = summarise(features.x.numpy(), features.offsets.numpy())
        sets.append((columns, features.cnn_scan.numpy(), np.array(features.patients)))
    (table, scores, patients), (other, other_scores, other_patients) = sets
    alarm = DriftAlarm.fit(table, scores, patients, names=column_names(8), seed=0)
    found = alarm.test(other, other_scores, other_patients)
    assert (found.alarm, found.p_features) == (True, 0.001)
    assert "mean of feature 7" in found.text()
    rows = np.random.default_rng(0).permutation(len(other))[:30]
    assert alarm.test(other[rows], other_scores[rows], other_patients[rows]).alarm
