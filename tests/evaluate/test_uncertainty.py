from itertools import permutations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import entropy

from ich_mil.errors import DataError
from ich_mil.evaluate.uncertainty import (
    CLOSENESS,
    resampled_aurc,
    risk_coverage,
    uncertainties,
    uncertainty_table,
)


def aurc_in_order(loss):
    """The definition, for losses in the order of their uncertainty."""
    return np.mean([np.mean(loss[: k + 1]) for k in range(len(loss))])


def test_risk_coverage_by_hand():
    found = risk_coverage(np.array([0, 1, 0, 1]), np.array([0.1, 0.2, 0.3, 0.4]))
    np.testing.assert_allclose(found.coverage, [0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(found.risk, [0, 1 / 2, 1 / 3, 1 / 2])
    assert found.aurc == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert found.aurc_best == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)
    assert found.aurc_random == 0.5
    assert found.e_aurc == pytest.approx(found.aurc - found.aurc_best)


def test_ties_are_the_mean_over_all_their_orders():
    loss = np.array([0.3, 1.0, 0.0, 2.0, 0.7])
    uncertainty = np.array([2, 1, 2, 2, 1])
    first, last = loss[uncertainty == 1], loss[uncertainty == 2]
    every = [aurc_in_order([*a, *b]) for a in permutations(first) for b in permutations(last)]
    found = risk_coverage(loss, uncertainty)
    assert found.aurc == pytest.approx(np.mean(every), rel=1e-12)
    np.testing.assert_allclose(found.coverage, [0.4, 1])
    np.testing.assert_allclose(found.risk, [0.85, 0.8])


def test_constant_uncertainty_is_chance_and_the_loss_itself_is_best():
    loss = np.random.default_rng(0).exponential(size=40)
    assert risk_coverage(loss, np.full(40, 0.3)).aurc == pytest.approx(loss.mean(), rel=1e-12)
    best = risk_coverage(loss, np.exp(loss))  # only the order counts
    assert best.aurc == pytest.approx(aurc_in_order(np.sort(loss)), rel=1e-12)
    assert best.e_aurc == pytest.approx(0, abs=1e-15)
    assert risk_coverage(loss, -loss).aurc > loss.mean()


def test_best_area_of_many_scans_is_that_of_the_limit():
    # Geifman et al. 2019, section 3: r + (1 - r) log (1 - r) for error rate r
    wrong = np.arange(100_000) % 5 == 0
    assert risk_coverage(wrong, np.zeros(len(wrong))).aurc_best == pytest.approx(
        0.2 + 0.8 * np.log(0.8), rel=1e-4
    )


def test_order_of_the_scans_does_not_matter():
    rng = np.random.default_rng(1)
    wrong, uncertainty, shuffled = rng.random(50) < 0.3, rng.integers(0, 6, 50), rng.permutation(50)
    once, again = risk_coverage(wrong, uncertainty), risk_coverage(wrong[shuffled], uncertainty[shuffled])
    assert once.aurc == pytest.approx(again.aurc, rel=1e-12)
    np.testing.assert_allclose(once.risk, again.risk)


def test_resampled_area_is_that_of_the_repeated_scans():
    rng = np.random.default_rng(2)
    loss, uncertainty = rng.exponential(size=30), rng.integers(0, 9, 30) / 9
    counts = rng.multinomial(45, np.full(30, 1 / 30), size=5).T.astype(float)  # (30, 5), more than were there
    for r, value in enumerate(resampled_aurc(loss, uncertainty, counts)):
        rows = np.repeat(np.arange(30), counts[:, r].astype(int))
        assert value == pytest.approx(risk_coverage(loss[rows], uncertainty[rows]).aurc, rel=1e-12)


def test_uncertainties_by_hand():
    samples = np.array([[0.0, 0.3, 0.9], [1.0, 0.3, 0.5]])
    found = uncertainties(samples.mean(axis=0), samples.std(axis=0))
    np.testing.assert_allclose(found[CLOSENESS], [1, 0.6, 0.6])
    np.testing.assert_allclose(found["standard deviation"], [0.5, 0, 0.2])


def test_entropy_ranks_scans_as_closeness_does():
    rng = np.random.default_rng(3)
    p = rng.random(60)
    wrong = rng.random(60) < np.minimum(p, 1 - p)
    of_entropy = risk_coverage(wrong, entropy(np.stack([p, 1 - p]))).aurc
    assert of_entropy == pytest.approx(risk_coverage(wrong, uncertainties(p, p)[CLOSENESS]).aurc)


def simulated(n=300):
    """Errors as likely as `noise` says, which p knows only in part."""
    rng = np.random.default_rng(4)
    noise = rng.random(n)
    p = np.clip(0.5 + 0.5 * (1 - noise) * rng.choice([-1, 1], n) + rng.normal(0, 0.2, n), 0, 1)
    return rng.random(n) < noise / 2, p, noise, [f"p{i // 3}" for i in range(n)]


def test_table_holds_each_measure_with_paired_differences():
    wrong, p, noise, patients = simulated()
    table = uncertainty_table(wrong, uncertainties(p, noise), patients, seed=0, resamples=300)
    closeness, std = (row for _, row in table.iterrows())
    assert (closeness.difference, closeness.difference_low, closeness.difference_high) == (0, 0, 0)
    assert std.difference == pytest.approx(std.aurc - closeness.aurc)
    assert std.difference_high < 0
    assert std.best <= std.aurc <= std.random == wrong.mean()
    assert (std.n, std.patients, std.note) == (300, 100, "")
    assert std.low < std.aurc < std.high


def test_a_copy_of_closeness_differs_by_nothing():
    wrong, p, _, patients = simulated()
    table = uncertainty_table(wrong, uncertainties(p, 5 * p * (1 - p)), patients, seed=0, resamples=50)
    np.testing.assert_allclose(table.difference, 0, atol=1e-12)
    np.testing.assert_allclose([table.difference_low, table.difference_high], 0, atol=1e-12)


def test_one_patient_has_no_interval_and_is_told():
    table = uncertainty_table(np.array([0, 1]), {CLOSENESS: np.array([0.1, 0.9])}, ["a", "a"], seed=0)
    assert np.isnan([table.low[0], table.high[0]]).all()
    assert table.note[0] == "one patient: no interval"


def test_without_a_wrong_call_uncertainties_are_not_compared():
    p = np.linspace(0.1, 0.4, 30)
    table = uncertainty_table(np.zeros(30), uncertainties(p, p[::-1]), np.arange(30).astype(str), seed=0)
    closeness, std = (row for _, row in table.iterrows())
    assert (closeness.difference_low, closeness.difference_high, closeness.note) == (0, 0, "")
    assert std.difference == 0
    assert np.isnan([std.difference_low, std.difference_high]).all()
    assert std.note == "all losses are alike, so no interval of the difference"


def test_no_error_of_a_few_scans_is_not_never():
    some = {CLOSENESS: np.linspace(0, 1, 30)}
    table = uncertainty_table(np.zeros(30), some, np.arange(30).astype(str), seed=0, resamples=50)
    # (1 - high)³⁰ = 0.025
    assert (table.aurc[0], table.low[0]) == (0, 0)
    assert table.high[0] == pytest.approx(1 - 0.025 ** (1 / 30))
    with pytest.raises(ValueError, match=r"in \[0, 1\], got 0 to 2"):
        uncertainty_table(np.linspace(0, 2, 30), some, np.arange(30).astype(str), seed=0)


# of calls at ½ by calibrated probabilities sigmoid(4 N(0, 1)); by percentiles 0.83
def test_the_interval_of_an_area_holds_it_with_few_scans():
    true, inside = 0.0332, 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        p = expit(4 * rng.normal(size=30))
        wrong = (p >= 0.5) != (rng.random(30) < p)
        measures = {CLOSENESS: uncertainties(p, p)[CLOSENESS]}
        row = uncertainty_table(wrong, measures, np.arange(30).astype(str), seed=seed, resamples=100).iloc[0]
        inside += row.low <= true <= row.high
    assert inside / 150 >= 0.93


def test_table_needs_what_it_compares_with():
    with pytest.raises(ValueError, match="closeness of p"):
        uncertainty_table(np.array([0, 1]), {"std": np.array([0.1, 0.9])}, ["a", "b"], seed=0)


@pytest.mark.parametrize("given", [2, 4])
def test_table_needs_a_patient_for_each_scan(given):
    some = uncertainties(np.array([0.1, 0.9, 0.4]), np.array([0.1, 0.2, 0.3]))
    with pytest.raises(ValueError, match=f"{given} patients for 3 scans"):
        uncertainty_table(np.array([0, 0, 1]), some, [str(k) for k in range(given)], seed=0)


@pytest.mark.parametrize(
    ("loss", "uncertainty", "error", "message"),
    [
        ([0, 1], [0.1, np.nan], DataError, "uncertainty: .*got nan for scan number 1"),
        ([np.inf, 1], [0.1, 0.2], DataError, "loss: "),
        ([], [], DataError, "no scan"),
        ([0, 1], [0.1], ValueError, r"loss \(2,\), uncertainty \(1,\)"),
    ],
)
def test_what_cannot_be_measured_says_why(loss, uncertainty, error, message):
    with pytest.raises(error, match=message):
        risk_coverage(np.array(loss), np.array(uncertainty))


@pytest.mark.realdata
def test_closeness_of_the_cnns_probability_finds_its_errors_on_rsna(rsna_features):
    rsna = rsna_features
    p = rsna.cnn_scan.numpy().astype(float)
    wrong = (p >= 0.5) != (rsna.labels.numpy() == 1)
    table = uncertainty_table(wrong, {CLOSENESS: uncertainties(p, p)[CLOSENESS]}, rsna.patients, seed=0)
    assert table.high[0] < wrong.mean()
