"""Guarantees on random splits: as often as theory says, by patient, counted again by hand."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import betabinom

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.triage import fit_triage
from research.reproduce.statistics.triage_simulation import (
    allowed_losses,
    next_scans_confidence,
    simulate_triage,
)


@pytest.mark.parametrize(
    ("target", "m", "number"), [(0.9, 10, 1), (0.7, 10, 3), (0.95, 20, 1), (0.95, 19, 0), (0.999, 3000, 3)]
)
def test_allowed_losses_in_decimal_arithmetic(target, m, number):
    assert allowed_losses(target, m) == number


def scored(rng, n_positive=120, n_negative=140):
    labels = np.repeat([1, 0], [n_positive, n_negative])
    p = np.concatenate([rng.beta(3, 1.5, n_positive), rng.beta(1.5, 3, n_negative)])
    return labels, p, [f"p{i}" for i in range(len(p))]


def test_splits_counted_again_by_hand():
    rng = np.random.default_rng(12)
    labels, p, _ = scored(rng, 200, 260)
    patients = rng.integers(0, 200, 460).astype(str)  # with several scans, of both classes
    found = simulate_triage(labels, p, patients, splits=20, sensitivity=0.9, specificity=0.8, seed=3)
    names, owner = np.unique(patients, return_inverse=True)
    lowest = np.array([p[(owner == u) & (labels == 1)].min(initial=np.inf) for u in range(len(names))])
    highest = np.array([p[(owner == u) & (labels == 0)].max(initial=-np.inf) for u in range(len(names))])
    generator = np.random.default_rng(3)
    kept, shares, chances = np.zeros(2), [], []
    for _ in range(20):
        chosen = np.zeros(len(names), dtype=bool)
        for value in (False, True):
            members = generator.permutation(np.flatnonzero(np.isfinite(lowest) == value))
            chosen[members[: round(len(members) / 2)]] = True
        fitted = chosen[owner]
        triage = fit_triage(
            labels[fitted], p[fitted], sensitivity=0.9, specificity=0.8, patients=patients[fitted].tolist()
        )
        tested = [np.isfinite(lowest) & ~chosen, np.isfinite(highest) & ~chosen]
        lost = [lowest[tested[0]] < triage.low, highest[tested[1]] >= triage.high]
        shares.append([1 - one.mean() for one in lost])
        kept += [lost[0].sum() <= len(lost[0]) // 10, lost[1].sum() <= len(lost[1]) // 5]
        ranks = ((triage.rank_positive, triage.n_positive), (triage.rank_negative, triage.n_negative))
        chances.append(
            [
                next_scans_confidence(*rank, target, len(one))
                for rank, target, one in zip(ranks, (0.9, 0.8), lost, strict=True)
            ]
        )
    assert found.kept.tolist() == pytest.approx(kept / 20)
    assert found["mean"].tolist() == pytest.approx(np.mean(shares, axis=0))
    assert found.lowest.tolist() == pytest.approx(np.min(shares, axis=0))
    assert found.expected.tolist() == pytest.approx(np.mean(chances, axis=0))


def test_repeated_and_unlabelled_scans_are_no_evidence():
    labels, p, patients = scored(np.random.default_rng(4))

    def made(*scans, seed=5):
        return simulate_triage(*scans, splits=20, sensitivity=0.9, seed=seed)

    one = made(labels, p, patients)
    pd.testing.assert_frame_equal(made(np.tile(labels, 5), np.tile(p, 5), patients * 5), one)
    more = made(np.append(labels, [-1, -1]), np.append(p, [0.5, 0.5]), [*patients, "a", "p3"])
    pd.testing.assert_frame_equal(more, one)
    assert not made(labels, p, patients, seed=6).equals(one)


def test_too_few_scans_of_a_class():
    labels, p, patients = scored(np.random.default_rng(11))
    with pytest.raises(DataError, match=r"^60 patients with positive calibration scans are too few"):
        simulate_triage(labels, p, patients, sensitivity=0.99, seed=0)
    with pytest.raises(DataError, match="no positive scan of 260 is left"):
        simulate_triage(0 * labels, p, patients, sensitivity=0.9, seed=0)


@pytest.mark.parametrize(("rank", "n", "target"), [(1, 45, 0.95), (4, 143, 0.95), (20, 50, 0.6)])
def test_lost_scans_have_a_beta_binomial_distribution(rank, n, target):
    for m in (7, 40, 142):
        exact = betabinom.cdf(allowed_losses(target, m), m, rank, n + 1 - rank)
        assert next_scans_confidence(rank, n, target, m) == pytest.approx(exact, rel=1e-9)


def test_next_scans_by_enumeration():
    n, m, target = 5, 4, 0.7  # one of the four may be lost
    for rank in range(1, n + 1):
        met = [
            sum(row not in chosen for row in range(chosen[rank - 1])) <= 1
            for chosen in combinations(range(n + m), n)
        ]
        assert next_scans_confidence(rank, n, target, m) == pytest.approx(np.mean(met), rel=1e-12)
