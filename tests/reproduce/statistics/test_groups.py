from itertools import combinations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm, rankdata
from sklearn.metrics import roc_auc_score

from ich_mil.errors import DataError
from ich_mil.evaluate.metrics import equal_mass
from ich_mil.reproduce.statistics import groups
from ich_mil.reproduce.statistics.groups import higher_where, higher_where_given_p


def names(n):
    return [f"p{i}" for i in range(n)]


@pytest.fixture
def scans():
    rng = np.random.default_rng(0)
    where = rng.random(80) < 0.3
    return rng.normal(size=80) + 0.8 * where, where, rng.random(80)


def test_auc_is_sklearns_and_p_scipys(scans):
    uncertainty, where, _ = scans
    found = higher_where(uncertainty, where, names(80), seed=0, resamples=200)
    assert found.auc == pytest.approx(roc_auc_score(where, uncertainty), rel=1e-12)
    assert found.p == mannwhitneyu(uncertainty[where], uncertainty[~where]).pvalue
    assert found.low < found.auc < found.high
    assert (found.n_there, found.n_elsewhere) == (where.sum(), 80 - where.sum())
    assert found.median_there == np.median(uncertainty[where])
    assert found.median_elsewhere == np.median(uncertainty[~where])
    assert found.note == ""


def test_by_hand_with_ties():
    # pairs: (2 > 1) (2 = 2) (3 > 1) (3 > 2): 3½ of 4
    found = higher_where(np.array([2, 3, 1, 2]), np.array([1, 1, 0, 0]), names(4), seed=0, resamples=10)
    assert found.auc == 0.875


def test_a_group_that_is_always_less_certain_is_not_proven_to_be():
    where = np.arange(12) < 4
    for test in (higher_where, lambda *a, **k: higher_where_given_p(*a[:2], np.full(12, 0.5), *a[2:], **k)):
        found = test(np.arange(12)[::-1], where, names(12), seed=0, resamples=50)
        assert (found.auc, found.high) == (1, 1)
        assert found.low == pytest.approx(0.025 ** (1 / 4))  # four pairs of patients
        # all outside are scans of one patient: one pair
        shared = test(np.arange(12)[::-1], where, [*"abcaaaaaaaaa"], seed=0, resamples=50)
        assert shared.low == pytest.approx(0.025)


def test_the_other_group_has_the_other_auc(scans):
    uncertainty, where, p = scans
    for test in (higher_where, lambda u, w, *a, **k: higher_where_given_p(u, w, p, *a, **k)):
        one, other = (test(uncertainty, w, names(80), seed=0, resamples=10) for w in (where, ~where))
        assert one.auc + other.auc == pytest.approx(1)
        assert one.p == pytest.approx(other.p)


def test_one_stratum_is_the_plain_test(scans, monkeypatch):
    monkeypatch.setattr(groups, "STRATA", 1)
    uncertainty, where, p = scans
    found = higher_where_given_p(uncertainty, where, p, names(80), seed=0, resamples=100)
    plain = higher_where(uncertainty, where, names(80), seed=0, resamples=100)
    assert (found.auc, found.low, found.high) == (plain.auc, plain.low, plain.high)
    kinds = uncertainty[where], uncertainty[~where]
    expected = mannwhitneyu(*kinds, method="asymptotic", use_continuity=False).pvalue
    assert found.p == pytest.approx(expected, rel=1e-9)
    rounded = higher_where_given_p(uncertainty.round(), where, p, names(80), seed=0, resamples=2)
    kinds = uncertainty[where].round(), uncertainty[~where].round()
    assert rounded.p == pytest.approx(mannwhitneyu(*kinds, method="asymptotic", use_continuity=False).pvalue)


def test_two_strata_by_all_deals(monkeypatch):
    monkeypatch.setattr(groups, "STRATA", 2)
    p = np.array([0.1] * 6 + [0.9] * 4)
    uncertainty = np.array([1, 5, 2, 2, 4, 3, 7, 9, 9, 8.0])
    where = np.array([0, 1, 0, 1, 0, 0, 0, 1, 0, 0])

    def u_of(rows, chosen):  # wins of a group over the others of its stratum
        rest = [i for i in rows if i not in chosen]
        a, b = uncertainty[list(chosen)][:, None], uncertainty[rest][None]
        return float((a > b).sum() + (a == b).sum() / 2)

    def statistic(first, second):
        return u_of(range(6), first) / 7 + u_of(range(6, 10), second) / 5

    deals = [statistic(a, b) for a in combinations(range(6), 2) for b in combinations(range(6, 10), 1)]
    found = higher_where_given_p(uncertainty, where, p, names(10), seed=0, resamples=10)
    seen = statistic((1, 3), (7,))
    assert found.p == pytest.approx(2 * norm.sf(abs(seen - np.mean(deals)) / np.std(deals)), rel=1e-9)
    # stratum 1: 5½ of 8 pairs, 6 scans; stratum 2: 2½ of 3 pairs, 4 scans
    assert found.auc == pytest.approx((5.5 / 7 + 2.5 / 5) / (8 / 7 + 3 / 5))


def test_what_only_follows_p_is_higher_but_not_given_p():
    p = np.repeat(np.linspace(0.05, 0.95, 10), 40)
    rng = np.random.default_rng(1)
    where = rng.random(400) < p * (1 - p) * 2  # readers disagree near ½
    std = p * (1 - p)
    raw = higher_where(std, where, names(400), seed=0, resamples=200)
    assert raw.low > 0.5
    assert raw.p < 1e-4
    given = higher_where_given_p(std, where, p, names(400), seed=0, resamples=200)
    assert (given.auc, given.low, given.high, given.p) == (0.5, 0.5, 0.5, 1.0)


def test_what_says_more_than_p_is_higher_given_p():
    p = np.repeat(np.linspace(0.05, 0.95, 10), 40)
    rng = np.random.default_rng(2)
    more = rng.normal(size=400)
    where = rng.random(400) < 1 / (1 + np.exp(-more + 1))
    given = higher_where_given_p(p * (1 - p) + 0.01 * more, where, p, names(400), seed=0, resamples=200)
    assert given.low > 0.6
    assert given.p < 1e-6


def test_p_of_no_difference_is_uniform():
    rng = np.random.default_rng(3)
    p = rng.random(60)
    where = rng.random(60) < p  # the group follows p, the uncertainty nothing
    strata = equal_mass(p, groups.STRATA)
    values = [groups._van_elteren_p(rng.integers(0, 20, 60), where, strata) for _ in range(400)]
    # 400 runs: three standard errors are 0.033 and 0.075
    assert abs(np.mean(np.array(values) <= 0.05) - 0.05) < 0.033
    assert abs(np.mean(np.array(values) <= 0.5) - 0.5) < 0.075


def test_strata_of_one_kind_are_left_out_and_told():
    p = np.repeat([0.1, 0.9], 20)
    where = np.repeat([0, 1, 0], [20, 10, 10])
    uncertainty = rankdata(np.random.default_rng(4).random(40))
    found = higher_where_given_p(uncertainty, where, p, names(40), seed=0, resamples=10)
    assert (found.n_there, found.n_elsewhere) == (10, 10)
    assert found.note == "20 scans left out: their stratum of p is all in or all outside"
    assert found.auc == pytest.approx(roc_auc_score(where[20:], uncertainty[20:]))


def test_patients_with_several_scans_have_an_interval_but_no_p(scans):
    uncertainty, where, p = scans
    patients = [f"p{i // 2}" for i in range(80)]
    for found in (
        higher_where(uncertainty, where, patients, seed=0, resamples=100),
        higher_where_given_p(uncertainty, where, p, patients, seed=0, resamples=100),
    ):
        assert np.isnan(found.p)
        assert "no p-value, go by the interval" in found.note
        assert found.low < found.auc < found.high


def test_an_empty_group_is_told(scans):
    uncertainty, _, p = scans
    for where in (np.zeros(80), np.ones(80)):
        found = higher_where(uncertainty, where, names(80), seed=0)
        assert np.isnan([found.auc, found.low, found.high, found.p]).all()
        assert "nothing to compare" in found.note
        assert "nothing to compare" in higher_where_given_p(uncertainty, where, p, names(80), seed=0).note


def test_one_patient_has_no_interval_and_is_told():
    found = higher_where(np.array([1, 2]), np.array([0, 1]), ["a", "a"], seed=0, resamples=5)
    assert found.auc == 1
    assert np.isnan(found.low)
    assert "one patient: no interval" in found.note


@pytest.mark.parametrize(
    ("uncertainty", "where", "p", "patients", "error", "message"),
    [
        ([1, 2], [0, 2], [0.1, 0.2], ["a", "b"], ValueError, "true or false"),
        ([1, np.nan], [0, 1], [0.1, 0.2], ["a", "b"], DataError, "scan number 1"),
        ([1, 2], [0, 1], [0.1, 1.2], ["a", "b"], DataError, r"0.1 to 1.2"),
        ([1, 2], [0, 1], [0.1, 0.2], ["a"], ValueError, "1 patients for 2 scans"),
        ([1, 2], [0, 1], [0.1], ["a", "b"], ValueError, "one value a scan"),
    ],
)
def test_what_cannot_be_compared_says_why(uncertainty, where, p, patients, error, message):
    with pytest.raises(error, match=message):
        higher_where_given_p(np.array(uncertainty), np.array(where), np.array(p), patients, seed=0)
