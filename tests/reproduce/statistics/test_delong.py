import numpy as np
import pytest
from scipy.stats import binom, norm, rankdata
from sklearn.metrics import roc_auc_score

from ich_mil.errors import DataError
from ich_mil.reproduce.statistics.delong import delong_test


def brute_force(labels, scores):
    """AUCs and the variance of their difference from every pair of a positive and a negative."""
    pairs = []
    for row in scores:
        positive, negative = row[labels == 1], row[labels == 0]
        pairs.append((positive[:, None] > negative) + (positive[:, None] == negative) / 2)  # (P, Q)
    gain = pairs[0] - pairs[1]
    variance = sum(gain.mean(axis=1 - axis).var(ddof=1) / gain.shape[axis] for axis in (0, 1))
    return [pair.mean() for pair in pairs], variance


def jackknife(labels, scores):
    """Two-sample jackknife of scikit-learn's AUCs: the variance of their difference, by another road."""
    variance = 0.0
    for kind in (1, 0):
        rows = np.flatnonzero(labels == kind)
        n = len(rows)
        without = np.array(
            [[roc_auc_score(np.delete(labels, i), np.delete(score, i)) for score in scores] for i in rows]
        )
        variance += (without[:, 0] - without[:, 1]).var(ddof=1) * (n - 1) ** 2 / n
    return variance


def correlated(rng, n=80, levels=None, shift=1.0):
    labels = (np.arange(n) % 3 == 0).astype(int)
    common = rng.normal(size=n)
    scores = np.stack([common + rng.normal(size=n) + shift * labels for _ in range(2)])
    return labels, scores if levels is None else np.round(scores * levels)


def test_by_hand():
    # positives 3, 2 and negatives 1, 2: V10 = (1, 3/4), V01 = (1, 3/4); both variances are 1/32
    labels, score = np.array([1, 1, 0, 0]), np.array([3.0, 2.0, 1.0, 2.0])
    # the second model ranks perfectly, its components are all 1: the difference varies as the first, by 1/32
    result = delong_test(labels, score, np.array([3.0, 2.0, 1.0, 0.0]))
    assert (result.auc_a, result.auc_b, result.difference) == (0.875, 1.0, -0.125)
    assert result.z == pytest.approx(-0.125 / np.sqrt(1 / 32))
    assert result.p == pytest.approx(2 * norm.cdf(-np.sqrt(0.5)))
    assert result.low == pytest.approx(-0.125 - 1.959964 / np.sqrt(32), rel=1e-6)
    assert result.high == pytest.approx(-0.125 + 1.959964 / np.sqrt(32), rel=1e-6)
    assert result.note == ""


def test_the_interval_of_a_difference_stays_within_1():
    # the second model: V10 = (0, 1/2), V01 = (1/2, 0), both variances 1/8; the first ranks perfectly
    labels, perfect, poor = np.array([1, 1, 0, 0]), np.array([4, 3, 2, 1]), np.array([1, 3, 2, 4])
    reach = 1.959964 * np.sqrt(1 / 8)
    result = delong_test(labels, perfect, poor)
    assert (result.difference, result.high) == (0.75, 1.0)
    assert result.low == pytest.approx(0.75 - reach, rel=1e-6)
    turned = delong_test(labels, poor, perfect)
    assert (turned.low, turned.high) == (-1.0, -result.low)


@pytest.mark.parametrize("levels", [None, 2.0, 0.5])
def test_pairs_one_by_one_and_the_jackknife_agree(levels):
    labels, scores = correlated(np.random.default_rng(0), n=30, levels=levels)
    result = delong_test(labels, *scores)
    aucs, variance = brute_force(labels, scores)
    assert [result.auc_a, result.auc_b] == pytest.approx(aucs, rel=1e-13)
    assert aucs == pytest.approx([roc_auc_score(labels, score) for score in scores], rel=1e-13)
    assert variance == pytest.approx(jackknife(labels, scores), rel=1e-9)
    assert result.z == pytest.approx((aucs[0] - aucs[1]) / np.sqrt(variance), rel=1e-9)
    assert result.high - result.low == pytest.approx(2 * 1.959964 * np.sqrt(variance), rel=1e-6)


def test_order_scale_and_unlabelled_scans_do_not_matter():
    rng = np.random.default_rng(1)
    labels, scores = correlated(rng)
    first = delong_test(labels, *scores)
    shuffled = rng.permutation(80)
    again = delong_test(labels[shuffled], np.exp(scores[0][shuffled]), 3 * scores[1][shuffled] - 7)
    assert (again.z, again.p) == pytest.approx((first.z, first.p), rel=1e-12)
    more = np.concatenate([labels, [-1, -1]]), *(np.concatenate([s, [99.0, -99.0]]) for s in scores)
    assert delong_test(*more) == first
    swapped = delong_test(labels, scores[1], scores[0])
    assert (swapped.z, swapped.p, swapped.low) == pytest.approx((-first.z, first.p, -first.high))


def test_p_value_is_about_that_of_a_permutation_test():
    # under equality the two scores of a scan may change places (once both are turned into ranks)
    rng = np.random.default_rng(2)
    labels, scores = correlated(rng, n=150, shift=0.8)
    scores[1] += 0.25 * labels  # some difference, so that p is neither 0 nor 1
    ranks = scores.argsort(axis=1).argsort(axis=1).astype(float)
    result = delong_test(labels, *ranks)
    draws = 2000
    swap = rng.integers(0, 2, (draws, 150)).astype(bool)
    # an AUC up to a constant: the mean rank of the positives over the number of negatives (Mann and Whitney)
    placed = [
        rankdata(np.where(swap, one, two), axis=1)[:, labels == 1].mean(axis=1) / (labels == 0).sum()
        for one, two in (ranks, ranks[::-1])
    ]
    p = (np.abs(placed[0] - placed[1]) >= abs(result.difference) - 1e-12).mean()
    assert 0.02 < result.p < 0.5
    # Monte Carlo error of p is at most 0.011; the rest is what two different tests may differ by
    assert result.p == pytest.approx(p, abs=0.03)


def test_equal_models_are_called_different_as_often_as_the_level_says():
    rng = np.random.default_rng(3)
    rejected, p_values, runs = 0, [], 400
    for _ in range(runs):
        labels, scores = correlated(rng, n=120)
        p_values.append(delong_test(labels, *scores).p)
    rejected = (np.array(p_values) < 0.05).sum()
    low, high = binom.interval(0.998, runs, 0.05)
    assert low <= rejected <= high
    assert np.mean(p_values) == pytest.approx(0.5, abs=0.05)  # 3.5 standard errors of a uniform mean


@pytest.mark.parametrize("n", [4, 60, 999])
def test_a_variance_of_zero_is_said(n):
    labels = np.arange(n) % 2
    rng = np.random.default_rng(5)
    score = rng.normal(size=n)
    same = delong_test(labels, score, np.exp(score))
    assert (same.difference, same.z, same.p) == (0, 0, 1)
    assert same.note == "variance 0: no scan tells the two apart"
    assert np.isnan([same.low, same.high]).all()
    perfect = delong_test(labels, labels + rng.random(n) / 2, labels * 7.0)
    assert (perfect.auc_a, perfect.auc_b, perfect.p) == (1, 1, 1)
    opposite = delong_test(labels, labels, -labels)
    assert opposite.difference == 1
    assert np.isnan([opposite.z, opposite.p]).all()
    assert opposite.note == "variance 0: the test says nothing"


def test_what_cannot_be_tested_says_why():
    with pytest.raises(DataError, match=r"at least 2 positive and 2 negative scans, got 1 and 2 \(1 unlab"):
        delong_test(np.array([1, 0, 0, -1]), np.zeros(4), np.zeros(4))
    with pytest.raises(DataError, match="scores of the second model: 1 of 4 scores are NaN"):
        delong_test(np.array([1, 1, 0, 0]), np.arange(4), np.array([1, 2, np.nan, 4]))
    with pytest.raises(ValueError, match="equal rows"):
        delong_test(np.array([1, 1, 0, 0]), np.zeros(4), np.zeros(3))
