"""Uncertainty in a group and outside it: AUC by scikit-learn and by hand."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from research.reproduce.statistics import group_comparison
from research.reproduce.statistics.group_comparison import compare_groups


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


def test_auc_is_that_of_scikit_learn(scans):
    uncertainty, inside, _ = scans
    found = compared(uncertainty, inside, resamples=200)
    assert found.auc == pytest.approx(roc_auc_score(inside, uncertainty), rel=1e-12)
    assert found.low < found.auc < found.high
    assert (found.n_there, found.n_elsewhere) == (inside.sum(), 80 - inside.sum())
    medians = np.median(uncertainty[inside]), np.median(uncertainty[~inside])
    assert (found.median_there, found.median_elsewhere, found.note) == (*medians, "")


def test_an_auc_of_1_has_an_exact_interval():
    for p in (None, np.full(12, 0.5)):
        found = compared(np.arange(12)[::-1], np.arange(12) < 4, p=p)
        assert (found.auc, found.high) == (1, 1)
        assert found.low == pytest.approx(0.025 ** (1 / 4))  # four pairs of patients
        # all outside are scans of one patient: one pair
        shared = compared(np.arange(12)[::-1], np.arange(12) < 4, [*"abcaaaaaaaaa"], p=p)
        assert shared.low == pytest.approx(0.025)


@pytest.mark.parametrize("rounded", [False, True])
def test_one_stratum_is_the_plain_test(scans, monkeypatch, rounded):
    monkeypatch.setattr(group_comparison, "STRATA", 1)
    uncertainty, inside, p = scans
    uncertainty = uncertainty.round() if rounded else uncertainty
    found, plain = (compared(uncertainty, inside, p=given) for given in (p, None))
    assert (found.auc, found.low, found.high) == (plain.auc, plain.low, plain.high)


def test_two_strata_by_hand(monkeypatch):
    monkeypatch.setattr(group_comparison, "STRATA", 2)
    p = np.array([0.1] * 6 + [0.9] * 4)
    uncertainty = np.array([1, 5, 2, 2, 4, 3, 7, 9, 9, 8.0])
    inside = np.array([0, 1, 0, 1, 0, 0, 0, 1, 0, 0])

    found = compared(uncertainty, inside, p=p)
    # stratum 1: 5½ of 8 pairs, 6 scans; stratum 2: 2½ of 3 pairs, 4 scans
    assert found.auc == pytest.approx((5.5 / 7 + 2.5 / 5) / (8 / 7 + 3 / 5))


def test_missing_intervals_have_a_note(scans):
    uncertainty, inside, p = scans
    for given in (None, p):
        found = compared(uncertainty, inside, [f"p{i // 2}" for i in range(80)], p=given)
        assert found.low < found.auc < found.high
        for group in (np.zeros(80), np.ones(80)):
            found = compared(uncertainty, group, p=given)
            assert np.isnan([found.auc, found.low, found.high]).all()
            assert "nothing to compare" in found.note
    one = compared([1, 2], [0, 1], ["a", "a"])
    assert (one.auc, "one patient: no interval" in one.note) == (1, True)
    assert np.isnan(one.low)
