from itertools import combinations
from math import ceil, log

import numpy as np
import pytest
from scipy.stats import beta, betabinom, binomtest

from ich_mil.evaluate.deployment.conformal import METHODS, Promise, allowed, chance_always, chance_next


@pytest.mark.parametrize(
    ("share", "m", "number"), [(0.9, 10, 1), (0.7, 10, 3), (0.95, 20, 1), (0.95, 19, 0), (0.999, 3000, 3)]
)
def test_allowed_takes_the_decimal_number_as_it_is_written(share, m, number):
    assert allowed(share, m) == number


def test_floats_would_allow_one_less():
    assert int(10 * (1 - 0.9)) == 0


def test_one_calibration_scan_by_hand():
    # F is uniform; of two scans in random order the next one is the lower with probability ½
    assert chance_always(1, 1, 0.9) == pytest.approx(0.1, rel=1e-12)
    assert chance_next(1, 1, 0.9, 1) == pytest.approx(0.5, rel=1e-12)


def test_a_confidence_that_is_just_reached_is_reached():
    assert Promise("risk_control", 0.5, 0.5).rank(1) == 1  # F is uniform: below ½ half of the time
    assert Promise("next_scans", 0.9, 0.5, 1).rank(1) == 1


def test_the_highest_rank_may_keep_a_small_promise():
    assert Promise("risk_control", 0.1, 0.5).rank(5) == 5  # 0.9⁵ = 0.59


@pytest.mark.parametrize(("rank", "n", "share"), [(1, 45, 0.95), (4, 143, 0.95), (20, 50, 0.6)])
def test_all_future_scans_are_a_beta_share(rank, n, share):
    assert chance_always(rank, n, share) == pytest.approx(beta.cdf(1 - share, rank, n + 1 - rank), rel=1e-9)


@pytest.mark.parametrize(
    ("rank", "n", "share", "m"), [(1, 45, 0.95, 40), (4, 143, 0.9, 142), (20, 50, 0.6, 7)]
)
def test_the_next_scans_are_beta_binomial(rank, n, share, m):
    exact = betabinom.cdf(allowed(share, m), m, rank, n + 1 - rank)
    assert chance_next(rank, n, share, m) == pytest.approx(exact, rel=1e-9)


def test_the_next_scans_by_counting_every_split():
    n, m, share = 5, 4, 0.7  # one of the four may be lost
    for rank in range(1, n + 1):
        kept = [
            sum(place not in chosen for place in range(chosen[rank - 1])) <= 1
            for chosen in combinations(range(n + m), n)
        ]
        assert chance_next(rank, n, share, m) == pytest.approx(np.mean(kept), rel=1e-12)


def test_very_many_next_scans_are_all_future_scans():
    assert chance_next(4, 143, 0.95, 10**7) == pytest.approx(chance_always(4, 143, 0.95), rel=1e-4)


@pytest.mark.parametrize("n", [30, 45, 103, 285, 1000])
def test_risk_control_is_the_clopper_pearson_bound(n):
    rank = Promise("risk_control", 0.9, 0.9).rank(n)

    def upper(lost):
        return binomtest(lost, n, alternative="less").proportion_ci(0.9, method="exact").high

    # a rank of k loses k - 1 calibration scans
    assert upper(rank - 1) <= 0.1 < upper(rank)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("share", [0.8, 0.95])
def test_the_rank_is_the_largest_that_keeps_the_promise(method, share):
    promise = Promise(method, share, 0.9, 60 if method == "next_scans" else None)
    for n in (20, 61, 150):
        kept = [promise.kept(rank, n) for rank in range(1, n + 1)]
        assert kept == [rank <= promise.rank(n) for rank in range(1, n + 1)]


@pytest.mark.parametrize(
    ("share", "confidence", "needed"), [(0.95, 0.95, 59), (0.95, 0.9, 45), (0.9, 0.9, 22), (0.99, 0.95, 299)]
)
def test_scans_needed_for_risk_control(share, confidence, needed):
    # 59: the well-known sample size of a 95 %/95 % tolerance bound (Wilks 1942)
    assert Promise("risk_control", share, confidence).needed() == needed
    assert needed == ceil(log(1 - confidence) / log(share))


@pytest.mark.parametrize(("share", "needed"), [(0.9, 9), (0.95, 19), (0.98, 49), (2 / 3, 2)])
def test_scans_needed_for_conformal(share, needed):
    assert Promise("conformal", share, 0.9).needed() == needed


@pytest.mark.parametrize(("share", "m"), [(0.95, 10), (0.95, 40), (0.8, 5)])
def test_scans_needed_for_the_next_scans(share, m):
    needed = Promise("next_scans", share, 0.9, m).needed()
    chances = betabinom.cdf(allowed(share, m), m, 1, np.arange(1, needed + 1))
    assert chances[-1] >= 0.9 > chances[-2]


def test_conformal_loses_no_more_than_promised_on_average():
    for n in (19, 20, 38, 39, 103):
        rank = Promise("conformal", 0.95, 0.9).rank(n)
        assert rank / (n + 1) <= 0.05 + 1e-15
        assert (rank + 1) / (n + 1) > 0.05
