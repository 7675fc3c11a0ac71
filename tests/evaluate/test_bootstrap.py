"""Intervals by hand, by their equations, and by how often they hold the truth."""

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from ich_mil.evaluate import bootstrap
from ich_mil.evaluate.bootstrap import (
    Interval,
    disjoint_pairs,
    ece_interval,
    mean_interval,
    patient_bootstrap,
    proportion_interval,
)
from ich_mil.evaluate.metrics import SCAN, metrics_of, resampled

NOTHING = Interval(np.nan, np.nan, 9, np.nan)


def auc_interval(labels, score, patients, **options):
    metrics = metrics_of(SCAN, "auc")
    return patient_bootstrap(lambda c: resampled(metrics, labels, score, c), patients, **options)["auc"]


def simulated(rng, n=60, shift=1.0):
    labels = np.arange(n) % 2
    return labels, rng.normal(size=n) + shift * labels


def test_resamples_draw_whole_patients():
    seen = []
    patient_bootstrap(
        lambda counts: seen.append(counts) or {"n": counts.sum(axis=0)}, [*"babcb"], resamples=50, seed=1
    )
    counts = np.concatenate(seen, axis=1)
    assert counts.shape == (5, 50)
    np.testing.assert_array_equal(counts[[0, 0]], counts[[2, 4]])
    np.testing.assert_array_equal(counts[0] + counts[1] + counts[3], np.full(50, 3))
    assert len(np.unique(counts[0])) > 2


def test_tails_of_the_expanded_percentile_interval():
    seen = []

    def statistic(counts):
        seen.append(np.arange(40) @ counts / 40)
        return {"mean": seen[-1]}

    interval = patient_bootstrap(statistic, [str(i) for i in range(40)], resamples=500, seed=0)["mean"]
    tail = norm.cdf(-student.ppf(0.975, 39) * np.sqrt(40 / 39))
    ends = np.quantile(np.concatenate(seen), [tail, 1 - tail])
    assert (interval.low, interval.high) == pytest.approx(tuple(ends), rel=1e-12)
    assert tail == pytest.approx(0.02026, abs=1e-5)  # 0.025 of many patients


def test_one_class_and_one_patient():
    score = np.array([0.1, 0.2, 0.3])
    interval = auc_interval(np.array([0, 0, 1]), score, [*"abc"], resamples=900, seed=0)
    assert 250 < interval.ignored < 350  # P(no positive) + P(no negative) = (8 + 1)/27 = 1/3
    assert (interval.low, interval.high) == (1.0, 1.0)
    one = auc_interval(np.array([0, 1, 1]), score, [*"aaa"], resamples=10, seed=0)
    assert np.isnan([one.low, one.high, one.error]).all()
    assert one.ignored == 0
    none = auc_interval(np.array([1, 1, 1]), score, [*"abc"], resamples=10, seed=0)
    assert np.isnan([none.low, none.high]).all()
    assert none.ignored == 10


def test_interval_depends_on_seed_not_chunks(monkeypatch):
    labels, score = simulated(np.random.default_rng(6))
    patients = [str(i // 2) for i in range(60)]
    first = auc_interval(labels, score, patients, resamples=101, seed=7)
    assert auc_interval(labels, score, patients, resamples=101, seed=8) != first
    for counts in (60 * 7, 59):  # the second holds less than one resample
        monkeypatch.setattr(bootstrap, "_CHUNK", counts)
        assert auc_interval(labels, score, patients, resamples=101, seed=7) == first


def test_ece_interval_by_hand():
    plain = ece_interval(Interval(0.07, 0.12, 3, 0.01), 0.08)
    assert (plain.low, plain.high, plain.ignored) == (pytest.approx(0.04), pytest.approx(0.09), 3)
    # cut at 0 and at 1, and holds the value
    assert ece_interval(Interval(0.25, 0.5, 0, 0.1), 0.125) == Interval(0.0, 0.125, 0, 0.1)
    assert ece_interval(Interval(0.924, 0.999, 0, 0.02), 0.974) == Interval(2 * 0.974 - 0.999, 1.0, 0, 0.02)
    assert ece_interval(NOTHING, 0.125) is NOTHING


def test_proportion_interval_by_hand():
    found = proportion_interval(Interval(0.7, 0.9, 4, 0.08), 0.8, 30)
    # odds of 4, and t₂₉ √(30/29) 0.08 / (0.8 * 0.2) to either side of their log
    odds = 4 * np.exp(np.array([-1, 1]) * 2.045230 * np.sqrt(30 / 29) / 2)
    assert (found.low, found.high) == pytest.approx(tuple(odds / (1 + odds)), rel=1e-6)
    assert (found.ignored, found.error) == (4, 0.08)
    mirrored = proportion_interval(Interval(0.1, 0.3, 4, 0.08), 0.2, 30)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((found.low, found.high), rel=1e-12)
    # where every resample gives the same, as does a score that is alike for all
    assert proportion_interval(Interval(0.5, 0.5, 0, 0.0), 0.5, 30) == Interval(0.5, 0.5, 0, 0.0)
    far = proportion_interval(Interval(0.0, 1.0, 0, 0.4), 1e-6, 30)
    assert 0 <= far.low < 1e-6 < far.high <= 1
    assert proportion_interval(Interval(0.5, 0.5, 0, 0.0), 0.5, 1) == Interval(0.0, 1.0, 0, 0.0)
    # logit and back is 0.8999999999999999
    assert proportion_interval(Interval(0.9, 0.9, 0, 0.0), 0.9, 30).high == 0.9
    assert proportion_interval(NOTHING, 0.0, 1) is NOTHING


def test_proportions_of_0_and_1_are_exact():
    none, every = Interval(0.0, 0.0, 2, 0.0), Interval(1.0, 1.0, 0, 0.0)
    # (1 - high)³⁰ = 0.025
    assert proportion_interval(none, 0.0, 30) == Interval(0.0, pytest.approx(1 - 0.025 ** (1 / 30)), 2, 0.0)
    assert proportion_interval(every, 1.0, 30).low == pytest.approx(0.025 ** (1 / 30))
    # an average precision of 1 as sums have it
    rounded = proportion_interval(Interval(1.0, 1.0, 0, 1e-17), 1 - 2e-16, 30)
    assert rounded.low == pytest.approx(0.025 ** (1 / 30))


@pytest.mark.parametrize(
    ("positive", "negative", "pairs"),
    [("aba", "cde", 2), ("abc", "abcde", 2), ("abcd", "ab", 2)],  # 3 would need 6 patients
)
def test_pairs_have_no_patient_in_common(positive, negative, pairs):
    assert disjoint_pairs(np.array([*positive]), np.array([*negative])) == pairs


def test_mean_interval_by_hand():
    sensitivity, specificity = Interval(0.5, 0.9, 0, 0.1), Interval(0.66, 0.93, 0, 0.1)
    shares = [(0.8, sensitivity), (0.9, specificity)]  # 0.3 and 0.24 below, 0.1 and 0.03 above
    found = mean_interval(Interval(0.84, 0.86, 3, 0.01), shares)
    assert found.low == pytest.approx(0.85 - np.sqrt(0.09 + 0.0576) / 2)
    assert found.high == pytest.approx(0.85 + np.sqrt(0.01 + 0.0009) / 2)
    assert (found.ignored, found.error) == (3, 0.01)
    assert mean_interval(NOTHING, [(0.8, NOTHING), (0.9, NOTHING)]) is NOTHING
