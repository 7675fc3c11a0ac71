"""Risk-coverage analysis by hand, by its definition over all orders, and by its limit."""

from itertools import permutations

import numpy as np
import pytest

from research.reproduce.statistics.uncertainty import (
    CLOSENESS,
    error_by_decile,
    resampled_aurc,
    risk_coverage,
    uncertainties,
    uncertainty_table,
)


def names(n):
    return [f"p{i}" for i in range(n)]


def aurc_in_order(loss):
    """The definition, for losses in the order of their uncertainty."""
    return np.mean([np.mean(loss[: k + 1]) for k in range(len(loss))])


def test_risk_coverage_by_hand():
    found = risk_coverage(np.array([0, 1, 0, 1]), np.array([0.1, 0.2, 0.3, 0.4]))
    np.testing.assert_allclose(found.coverage, [0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(found.risk, [0, 1 / 2, 1 / 3, 1 / 2])
    assert found.aurc == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert (found.aurc_best, found.aurc_random) == (pytest.approx((1 / 3 + 1 / 2) / 4), 0.5)


def test_ties_are_the_mean_over_all_their_orders():
    loss, uncertainty = np.array([0.3, 1.0, 0.0, 2.0, 0.7]), np.array([2, 1, 2, 2, 1])
    first, last = loss[uncertainty == 1], loss[uncertainty == 2]
    every = [aurc_in_order([*a, *b]) for a in permutations(first) for b in permutations(last)]
    found = risk_coverage(loss, uncertainty)
    assert found.aurc == pytest.approx(np.mean(every), rel=1e-12)
    np.testing.assert_allclose((found.coverage, found.risk), ([0.4, 1], [0.85, 0.8]))
    shuffled = np.random.default_rng(1).permutation(5)
    assert risk_coverage(loss[shuffled], uncertainty[shuffled]).aurc == pytest.approx(found.aurc, rel=1e-12)


def test_limits_of_the_area():
    loss = np.random.default_rng(0).exponential(size=40)
    assert risk_coverage(loss, np.full(40, 0.3)).aurc == pytest.approx(loss.mean(), rel=1e-12)
    best = risk_coverage(loss, np.exp(loss))  # only the order counts
    assert best.aurc == pytest.approx(aurc_in_order(np.sort(loss)), rel=1e-12)
    assert best.aurc == pytest.approx(best.aurc_best, abs=1e-15)
    # Geifman et al. 2019, section 3: r + (1 - r) log (1 - r) for error rate r
    wrong = np.arange(100_000) % 5 == 0
    limit = 0.2 + 0.8 * np.log(0.8)
    assert risk_coverage(wrong, np.zeros(len(wrong))).aurc_best == pytest.approx(limit, rel=1e-4)


def test_resampled_area_is_that_of_the_repeated_scans():
    rng = np.random.default_rng(2)
    loss, uncertainty = rng.exponential(size=30), rng.integers(0, 9, 30) / 9
    counts = rng.multinomial(45, np.full(30, 1 / 30), size=5).T.astype(float)  # (30, 5), more than were there
    for r, value in enumerate(resampled_aurc(loss, uncertainty, counts)):
        rows = np.repeat(np.arange(30), counts[:, r].astype(int))
        assert value == pytest.approx(risk_coverage(loss[rows], uncertainty[rows]).aurc, rel=1e-12)


def test_the_table_compares_each_measure_with_closeness():
    rng = np.random.default_rng(4)
    noise = rng.random(300)  # errors are as likely as it says, which p knows only in part
    p = np.clip(0.5 + 0.5 * (1 - noise) * rng.choice([-1, 1], 300) + rng.normal(0, 0.2, 300), 0, 1)
    wrong, patients = rng.random(300) < noise / 2, [f"p{i // 3}" for i in range(300)]
    table = uncertainty_table(wrong, uncertainties(p, noise), patients, seed=0, resamples=300)
    closeness, std = (row for _, row in table.iterrows())
    np.testing.assert_allclose(uncertainties(p, noise)[CLOSENESS], 1 - np.abs(2 * p - 1))
    assert (closeness.difference, closeness.difference_low, closeness.difference_high) == (0, 0, 0)
    assert std.difference == pytest.approx(std.aurc - closeness.aurc)
    assert std.difference_high < 0
    assert std.best <= std.aurc <= std.random == wrong.mean()
    assert (std.n, std.patients, std.note) == (300, 100, "")
    assert std.low < std.aurc < std.high
    same = uncertainty_table(wrong, uncertainties(p, 5 * p * (1 - p)), patients, seed=0, resamples=50)
    np.testing.assert_allclose(same[["difference", "difference_low", "difference_high"]], 0, atol=1e-12)


def test_what_has_no_interval_is_told():
    one = uncertainty_table(np.array([0, 1]), {CLOSENESS: np.array([0.1, 0.9])}, ["a", "a"], seed=0)
    assert np.isnan([one.low[0], one.high[0]]).all()
    assert one.note[0] == "one patient: no interval"
    p = np.linspace(0.1, 0.4, 30)
    table = uncertainty_table(np.zeros(30), uncertainties(p, p[::-1]), names(30), seed=0, resamples=50)
    assert (table.aurc[0], table.low[0], table.high[0]) == (0, 0, pytest.approx(1 - 0.025 ** (1 / 30)))
    assert (table.difference_low[0], table.note[0]) == (0, "")
    assert np.isnan([table.difference_low[1], table.difference_high[1]]).all()
    assert table.note[1]


def test_errors_by_decile():
    frame = error_by_decile(np.arange(100) < 10, np.arange(100), names(100), seed=0, resamples=10)
    assert frame.error_rate.tolist() == [1] + [0] * 9
    assert frame.wrong.tolist() == [10] + [0] * 9
    assert frame.uncertainty.tolist() == [10 * k + 4.5 for k in range(10)]
