"""Triage: thresholds by hand, guarantees by simulation, Clopper-Pearson as reference."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.triage import (
    Guarantee,
    Triage,
    fit_triage,
    risk_control_confidence,
)
from ich_mil.ledger import LOOK, NEGATIVE, POSITIVE


@pytest.mark.parametrize("n", [30, 45, 103, 285, 1000])
def test_risk_control_is_the_clopper_pearson_bound(n):
    rank = Guarantee(0.9, 0.9).rank(n)

    def upper(lost):
        return binomtest(lost, n, alternative="less").proportion_ci(0.9, method="exact").high

    assert upper(rank - 1) <= 0.1 < upper(rank)  # a rank of k loses k - 1 calibration scans


@pytest.mark.parametrize("target", [0.8, 0.95])
def test_rank_is_the_largest_that_holds(target):
    guarantee = Guarantee(target, 0.9)
    for n in (20, 61, 150):
        holds = [guarantee.holds(rank, n) for rank in range(1, n + 1)]
        assert holds == [rank <= guarantee.rank(n) for rank in range(1, n + 1)]


def scored(rng, n_positive=150, n_negative=170, steps=1 << 20):
    """Labels and overlapping probabilities, multiples of 1/steps."""
    labels = np.repeat([1, 0], [n_positive, n_negative])
    p = np.concatenate([rng.beta(3, 1.5, n_positive), rng.beta(1.5, 3, n_negative)])
    return labels, np.round(p * steps) / steps


def test_decisions_by_hand_and_at_the_thresholds():
    labels = np.repeat([1, 0], [19, 19])
    p = np.concatenate([np.linspace(0.3, 0.9, 19), np.linspace(0.1, 0.7, 19)])
    triage = fit_triage(labels, p, sensitivity=0.88, specificity=0.88)
    # 19 of a class allow rank 1: the lowest positive, and just above the highest negative
    assert (triage.low, triage.high) == (0.3, np.nextafter(0.7, 1))
    decided = triage.decide(np.array([0, np.nextafter(0.3, 0), 0.3, 0.7, np.nextafter(0.7, 1), 1]))
    assert decided.tolist() == [NEGATIVE, NEGATIVE, LOOK, LOOK, POSITIVE, POSITIVE]


def test_scans_tied_with_a_threshold_are_not_decided():
    for p in (np.repeat([0.3, 0.6], 60), np.repeat([0.0, 1.0], 60)):
        labels = np.repeat([1, 0], 60) if p[0] else np.tile([1, 0], 60)
        triage = fit_triage(labels, p, sensitivity=0.95)
        assert set(triage.decide(p)) == {LOOK}
    assert triage.high > 1
    assert "(none is)" in triage.guarantees


def test_swapping_the_classes_swaps_the_decisions():
    labels, p = scored(np.random.default_rng(1), 170, 170)  # 1 - p is exact: multiples of 2⁻²⁰
    one = fit_triage(labels, p, sensitivity=0.9, specificity=0.8)
    other = fit_triage(1 - labels, 1 - p, sensitivity=0.8, specificity=0.9)
    swapped = {NEGATIVE: POSITIVE, LOOK: LOOK, POSITIVE: NEGATIVE}
    assert one.decide(p).tolist() == [swapped[decision] for decision in other.decide(1 - p)]
    assert len(set(one.decide(p))) == 3


@pytest.mark.parametrize("steps", [1 << 40, 10], ids=["no ties", "ties"])
def test_guarantee_holds_as_often_as_stated(steps):
    # the share of future scans below a threshold t is known: uniform scores, rounded up to 1/steps
    rng = np.random.default_rng(4)
    met = np.zeros(2)
    chance = risk_control_confidence(8, 80, 0.85)  # risk control has rank 8 for 80 scans
    for _ in range(300):
        p = np.ceil(rng.random(160) * steps) / steps
        triage = fit_triage(np.repeat([1, 0], 80), p, sensitivity=0.85, specificity=0.85)
        missed = (np.ceil(triage.low * steps) - 1) / steps  # P(score < low)
        alarms = 1 - np.floor(triage.high * steps) / steps
        if steps == 10:
            alarms = np.mean(np.arange(1, 11) / 10 >= triage.high)
        met += [missed <= 0.15, alarms <= 0.15]
    assert triage.rank_positive == triage.rank_negative == 8
    met /= 300
    slack = 4 * np.sqrt(chance * (1 - chance) / 300)  # four standard errors
    assert (met >= chance - slack).all()
    if steps > 10:
        assert (met <= chance + slack).all()


def test_crossed_thresholds_become_equal():
    rng = np.random.default_rng(5)
    labels = np.repeat([1, 0], [150, 170])
    p = np.concatenate([rng.uniform(0.48, 1, 150), rng.uniform(0, 0.52, 170)])
    triage = fit_triage(labels, p, sensitivity=0.9, specificity=0.9)
    assert triage.low == triage.high < np.sort(p[labels == 1])[triage.rank_positive - 1]
    decided = triage.decide(p)
    assert LOOK not in decided
    # no more lost than by the fitted thresholds: the rank less one
    assert (decided[labels == 1] == NEGATIVE).sum() < triage.rank_positive
    assert (decided[labels == 0] == POSITIVE).sum() == triage.rank_negative - 1


@pytest.mark.parametrize(
    ("labels", "more", "message"),
    [
        ([1] * 44 + [0] * 45, {}, r"^44 positive .* 0.95 with confidence 0.9: 45 are"),
        (
            [1] * 45 + [0] * 45,
            {"patients": [f"p{i // 2}" for i in range(90)]},
            r"^23 patients with pos.*: 45",
        ),
        ([1] * 9 + [0] * 10 + [-1] * 30, {"sensitivity": 0.5, "confidence": 0.5}, "^19 labelled .* 20 are"),
    ],
)
def test_too_few_scans_name_the_number_needed(labels, more, message):
    p = np.random.default_rng(6).random(len(labels))
    with pytest.raises(DataError, match=message):
        fit_triage(np.array(labels), p, **{"sensitivity": 0.95} | more)


def test_patient_counts_once_by_the_hardest_scan():
    rng = np.random.default_rng(7)
    labels, p = scored(rng)
    patients = [str(i) for i in range(len(p))]
    alone = fit_triage(labels, p, sensitivity=0.9)
    by_patient = fit_triage(labels, p, sensitivity=0.9, patients=patients)
    assert by_patient.as_dict() == alone.as_dict() | {"by_patient": True}
    # two more scans of each patient, easier ones: nothing changes; without patients they would be evidence
    easier = np.where(labels == 1, p + (1 - p) * rng.random(len(p)), p * rng.random(len(p)))
    tripled = np.concatenate([labels] * 3), np.concatenate([easier, p, easier])
    known = fit_triage(*tripled, sensitivity=0.9, patients=patients * 3)
    assert (known.low, known.high, known.n_positive) == (alone.low, alone.high, alone.n_positive)
    assert fit_triage(*tripled, sensitivity=0.9).low > alone.low
    both = fit_triage(*scored(rng, 100, 100), sensitivity=0.9, patients=patients[:100] * 2)
    assert (both.n_positive, both.n_negative) == (100, 100)


@pytest.mark.parametrize("bad", [np.nan, 1.5, -0.1])
def test_invalid_probabilities(bad):
    labels, p = scored(np.random.default_rng(9))
    triage = fit_triage(labels, p, sensitivity=0.9)
    p[3] = bad
    for work in (lambda: fit_triage(labels, p, sensitivity=0.9), lambda: triage.decide(p)):
        with pytest.raises(DataError, match=r"NaN|probability must lie"):
            work()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sensitivity": 1.0}, "sensitivity must lie between"),
        ({"confidence": float("nan")}, "confidence must lie between"),
        ({"patients": ["a"]}, "1 patients for 320"),
    ],
)
def test_arguments_out_of_range(wrong, message):
    labels, p = scored(np.random.default_rng(10))
    with pytest.raises(ValueError, match=message):
        fit_triage(labels, p, **{"sensitivity": 0.9, **wrong})


def test_json_and_back():
    triage = fit_triage(*scored(np.random.default_rng(11)), sensitivity=0.9)
    values = json.loads(json.dumps(triage.as_dict()))
    assert Triage.from_dict(values) == triage


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "ich_mil.triage.0"}, "this version"),
        ({"low": 0.9, "high": 0.1}, "damaged .*low ≤ high"),
        ({"confidence": 90}, "damaged .*confidence"),
    ],
)
def test_damaged_thresholds(change, message):
    values = fit_triage(*scored(np.random.default_rng(12)), sensitivity=0.9).as_dict()
    with pytest.raises(DataError, match=message):
        Triage.from_dict(values | change)


def test_the_guarantees_in_words():
    labels, p = scored(np.random.default_rng(13))
    triage = fit_triage(labels, p, sensitivity=0.95, specificity=0.9)
    assert triage.guarantees.startswith("With 90 % confidence in each: at most 5 % of new positive scans")
    assert "150 positive and 170 negative calibration scans" in triage.guarantees
    assert replace(triage, high=1.0).decide(np.ones(1)).tolist() == [POSITIVE]
