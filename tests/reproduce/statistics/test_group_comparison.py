"""Uncertainty in a group and outside it: scikit-learn's AUC, p-values of scipy and of all permutations."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm
from sklearn.metrics import roc_auc_score

from ich_mil.reproduce.statistics import group_comparison
from ich_mil.reproduce.statistics.group_comparison import compare_groups


def compared(uncertainty, inside, patients=None, *, p=None, resamples=50):
    patients = [f"p{i}" for i in range(len(inside))] if patients is None else patients
    return compare_groups(
        np.asarray(uncertainty), np.asarray(inside), patients, probability=p, seed=0, resamples=resamples
    )


@pytest.fixture
def scans():
    rng = np.random.default_rng(0)
    inside = rng.random(80) < 0.3
    return rng.normal(size=80) + 0.8 * inside, inside, rng.random(80)


def test_auc_is_sklearns_and_p_scipys(scans):
    uncertainty, inside, _ = scans
    found = compared(uncertainty, inside, resamples=200)
    assert found.auc == pytest.approx(roc_auc_score(inside, uncertainty), rel=1e-12)
    assert found.p == mannwhitneyu(uncertainty[inside], uncertainty[~inside]).pvalue
    assert found.low < found.auc < found.high
    assert (found.n_there, found.n_elsewhere) == (inside.sum(), 80 - inside.sum())
    medians = np.median(uncertainty[inside]), np.median(uncertainty[~inside])
    assert (found.median_there, found.median_elsewhere, found.note) == (*medians, "")


def test_a_group_that_is_always_less_certain_has_the_exact_interval_of_its_patients():
    for p in (None, np.full(12, 0.5)):
        found = compared(np.arange(12)[::-1], np.arange(12) < 4, p=p)
        assert (found.auc, found.high) == (1, 1)
        assert found.low == pytest.approx(0.025 ** (1 / 4))  # four pairs of patients
        # all outside are scans of one patient: one pair
        shared = compared(np.arange(12)[::-1], np.arange(12) < 4, [*"abcaaaaaaaaa"], p=p)
        assert shared.low == pytest.approx(0.025)


def test_the_other_group_has_the_other_auc(scans):
    uncertainty, inside, p = scans
    for given in (None, p):
        one, other = (compared(uncertainty, group, p=given) for group in (inside, ~inside))
        assert one.auc + other.auc == pytest.approx(1)
        assert one.p == pytest.approx(other.p)


@pytest.mark.parametrize("rounded", [False, True])
def test_one_stratum_is_the_plain_test(scans, monkeypatch, rounded):
    monkeypatch.setattr(group_comparison, "STRATA", 1)
    uncertainty, inside, p = scans
    uncertainty = uncertainty.round() if rounded else uncertainty
    found, plain = (compared(uncertainty, inside, p=given) for given in (p, None))
    assert (found.auc, found.low, found.high) == (plain.auc, plain.low, plain.high)
    kinds = uncertainty[inside], uncertainty[~inside]
    expected = mannwhitneyu(*kinds, method="asymptotic", use_continuity=False).pvalue
    assert found.p == pytest.approx(expected, rel=1e-9)


def test_two_strata_by_all_permutations(monkeypatch):
    monkeypatch.setattr(group_comparison, "STRATA", 2)
    p = np.array([0.1] * 6 + [0.9] * 4)
    uncertainty = np.array([1, 5, 2, 2, 4, 3, 7, 9, 9, 8.0])
    inside = np.array([0, 1, 0, 1, 0, 0, 0, 1, 0, 0])

    def u_of(rows, chosen):  # wins of a group over the others of its stratum
        rest = [i for i in rows if i not in chosen]
        a, b = uncertainty[list(chosen)][:, None], uncertainty[rest][None]
        return float((a > b).sum() + (a == b).sum() / 2)

    def statistic(first, second):
        return u_of(range(6), first) / 7 + u_of(range(6, 10), second) / 5

    every = [statistic(a, b) for a in combinations(range(6), 2) for b in combinations(range(6, 10), 1)]
    found = compared(uncertainty, inside, p=p)
    seen = statistic((1, 3), (7,))
    assert found.p == pytest.approx(2 * norm.sf(abs(seen - np.mean(every)) / np.std(every)), rel=1e-9)
    # stratum 1: 5½ of 8 pairs, 6 scans; stratum 2: 2½ of 3 pairs, 4 scans
    assert found.auc == pytest.approx((5.5 / 7 + 2.5 / 5) / (8 / 7 + 3 / 5))


def test_only_what_says_more_than_p_is_higher_given_p():
    p = np.repeat(np.linspace(0.05, 0.95, 10), 40)
    rng = np.random.default_rng(1)
    inside, std = rng.random(400) < p * (1 - p) * 2, p * (1 - p)  # readers disagree near ½
    raw, given = (compared(std, inside, p=one, resamples=200) for one in (None, p))
    assert raw.low > 0.5
    assert raw.p < 1e-4
    assert (given.auc, given.low, given.high, given.p) == (0.5, 0.5, 0.5, 1.0)
    more = rng.normal(size=400)
    inside = rng.random(400) < 1 / (1 + np.exp(-more + 1))
    given = compared(std + 0.01 * more, inside, p=p, resamples=200)
    assert given.low > 0.6
    assert given.p < 1e-6


def test_p_of_no_difference_is_uniform():
    rng = np.random.default_rng(3)
    p = rng.random(60)
    inside = rng.random(60) < p  # the group follows p, the uncertainty nothing
    values = [compared(rng.integers(0, 20, 60), inside, p=p, resamples=1).p for _ in range(200)]
    # 200 runs: three standard errors are 0.046 and 0.106
    assert abs(np.mean(np.array(values) <= 0.05) - 0.05) < 0.046
    assert abs(np.mean(np.array(values) <= 0.5) - 0.5) < 0.106


def test_strata_of_one_kind_are_left_out_and_told():
    uncertainty = np.random.default_rng(4).random(40)
    inside = np.repeat([0, 1, 0], [20, 10, 10])
    found = compared(uncertainty, inside, p=np.repeat([0.1, 0.9], 20))
    assert (found.n_there, found.n_elsewhere) == (10, 10)
    assert found.note.startswith("20 scans left out")
    assert found.auc == pytest.approx(roc_auc_score(inside[20:], uncertainty[20:]))


def test_what_has_no_p_value_or_no_interval_is_told(scans):
    uncertainty, inside, p = scans
    for given in (None, p):
        found = compared(uncertainty, inside, [f"p{i // 2}" for i in range(80)], p=given)
        assert np.isnan(found.p)
        assert "no p-value" in found.note
        assert found.low < found.auc < found.high
        for group in (np.zeros(80), np.ones(80)):
            found = compared(uncertainty, group, p=given)
            assert np.isnan([found.auc, found.low, found.high, found.p]).all()
            assert "nothing to compare" in found.note
    one = compared([1, 2], [0, 1], ["a", "a"])
    assert (one.auc, "one patient: no interval" in one.note) == (1, True)
    assert np.isnan(one.low)
