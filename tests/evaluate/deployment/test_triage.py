import json
from dataclasses import replace

import numpy as np
import pytest
from mapie.classification import SplitConformalClassifier
from mapie.risk_control import BinaryClassificationController
from sklearn.base import BaseEstimator, ClassifierMixin

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.conformal import METHODS, chance_always
from ich_mil.evaluate.deployment.triage import LOOK, NEGATIVE, POSITIVE, Triage, fit_triage


def scored(rng, n_positive=150, n_negative=170, steps=1 << 20):
    """Labels and overlapping probabilities, multiples of 1/steps."""
    labels = np.repeat([1, 0], [n_positive, n_negative])
    p = np.concatenate([rng.beta(3, 1.5, n_positive), rng.beta(1.5, 3, n_negative)])
    return labels, np.round(p * steps) / steps


def options(method):
    return {"method": method} | (
        {"next_positives": 90, "next_negatives": 80} if method == "next_scans" else {}
    )


def test_decisions_by_hand_and_at_the_thresholds():
    labels = np.repeat([1, 0], [19, 19])
    p = np.concatenate([np.linspace(0.3, 0.9, 19), np.linspace(0.1, 0.7, 19)])
    triage = fit_triage(labels, p, sensitivity=0.95, method="conformal")
    # 19 of a class allow rank 1: the lowest positive, and just above the highest negative
    assert triage.low == 0.3
    assert triage.high == np.nextafter(0.7, 1)
    decided = triage.decide(np.array([0, np.nextafter(0.3, 0), 0.3, 0.7, np.nextafter(0.7, 1), 1]))
    assert decided.tolist() == [NEGATIVE, NEGATIVE, LOOK, LOOK, POSITIVE, POSITIVE]


def test_risk_control_by_hand():
    # P(Bin(77, 0.05) ≥ 2) = 1 - 0.95⁷⁷ - 77·0.05·0.95⁷⁶ = 0.9027, with 76 it is 0.8987: rank 2 from 77 on
    for n, rank in ((76, 1), (77, 2)):
        positives = np.arange(1, n + 1) / 1000
        labels, p = np.repeat([1, 0], [n, 50]), np.concatenate([positives, np.full(50, 0.01)])
        triage = fit_triage(labels, p, sensitivity=0.95)
        assert (triage.rank_positive, triage.rank_negative) == (rank, 1)
        assert triage.low == positives[rank - 1]


def test_scans_that_tie_with_a_threshold_are_not_decided():
    labels = np.repeat([1, 0], 60)
    p = np.repeat([0.3, 0.6], 60)
    triage = fit_triage(labels, p, sensitivity=0.95)
    assert set(triage.decide(p)) == {LOOK}


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_scans_and_unlabelled_scans_change_nothing(method):
    rng = np.random.default_rng(0)
    labels, p = scored(rng)
    plain = fit_triage(labels, p, sensitivity=0.9, **options(method))
    order = rng.permutation(len(p) + 40)
    more, unlabelled = np.append(p, rng.random(40))[order], np.append(labels, np.full(40, -1))[order]
    mixed = fit_triage(unlabelled, more, sensitivity=0.9, **options(method))
    assert mixed.as_dict() == plain.as_dict() | {"unlabelled": 40}
    assert (mixed.n_positive, mixed.n_negative) == (150, 170)


@pytest.mark.parametrize("method", METHODS)
def test_swapping_the_classes_swaps_the_decisions(method):
    labels, p = scored(np.random.default_rng(1), 170, 170)  # 1 - p is exact: multiples of 2⁻²⁰
    ahead = {"next_positives": 90, "next_negatives": 90} if method == "next_scans" else {}
    one = fit_triage(labels, p, sensitivity=0.9, specificity=0.8, method=method, **ahead)
    other = fit_triage(1 - labels, 1 - p, sensitivity=0.8, specificity=0.9, method=method, **ahead)
    swapped = {NEGATIVE: POSITIVE, LOOK: LOOK, POSITIVE: NEGATIVE}
    assert one.decide(p).tolist() == [swapped[decision] for decision in other.decide(1 - p)]
    assert len(set(one.decide(p))) == 3


def test_only_ranks_matter():
    labels, p = scored(np.random.default_rng(2))
    one = fit_triage(labels, p, sensitivity=0.9)
    other = fit_triage(labels, p**3, sensitivity=0.9)
    np.testing.assert_array_equal(one.decide(p), other.decide(p**3))


def test_more_sensitivity_or_confidence_clears_fewer():
    labels, p = scored(np.random.default_rng(3))
    lows = [fit_triage(labels, p, sensitivity=s).low for s in (0.8, 0.9, 0.95, 0.98)]
    assert lows == sorted(lows, reverse=True)
    assert lows[0] > lows[-1]
    lows = [fit_triage(labels, p, sensitivity=0.9, confidence=c).low for c in (0.5, 0.9, 0.99)]
    assert lows[0] > lows[1] > lows[2]


@pytest.mark.parametrize("steps", [1 << 40, 10], ids=["no ties", "ties"])
def test_all_future_scans_keep_to_the_promise_as_often_as_promised(steps):
    # the share of future scans below a threshold t is known: uniform scores, rounded up to 1/steps
    rng = np.random.default_rng(4)
    kept = np.zeros(2)
    chance = chance_always(8, 80, 0.85)  # risk control has rank 8 for 80 scans
    for _ in range(2000):
        p = np.ceil(rng.random(160) * steps) / steps
        triage = fit_triage(np.repeat([1, 0], 80), p, sensitivity=0.85, specificity=0.85)
        missed = (np.ceil(triage.low * steps) - 1) / steps  # P(score < low)
        alarms = 1 - np.floor(triage.high * steps) / steps if steps > 10 else np.nan
        if steps == 10:
            alarms = np.mean(np.arange(1, 11) / 10 >= triage.high)
        kept += [missed <= 0.15, alarms <= 0.15]
    assert triage.rank_positive == triage.rank_negative == 8
    kept /= 2000
    # four standard errors of 2,000 draws
    slack = 4 * np.sqrt(chance * (1 - chance) / 2000)
    assert (kept >= chance - slack).all()
    if steps > 10:
        assert (kept <= chance + slack).all()


@pytest.mark.parametrize("method", METHODS)
def test_crossed_thresholds_become_one_that_keeps_both_promises(method):
    rng = np.random.default_rng(5)
    labels = np.repeat([1, 0], [150, 170])
    p = np.concatenate([rng.uniform(0.48, 1, 150), rng.uniform(0, 0.52, 170)])
    triage = fit_triage(labels, p, sensitivity=0.9, specificity=0.9, **options(method))
    fitted = np.sort(p[labels == 1])[triage.rank_positive - 1]
    assert triage.low == triage.high < fitted
    decided = triage.decide(p)
    assert LOOK not in decided
    # no more lost than by the fitted thresholds: the rank less one
    assert (decided[labels == 1] == NEGATIVE).sum() < triage.rank_positive
    assert (decided[labels == 0] == POSITIVE).sum() == triage.rank_negative - 1


def test_perfectly_separated_scans_are_all_decided_rightly():
    labels = np.repeat([1, 0], 100)
    p = np.concatenate([np.linspace(0.6, 0.9, 100), np.linspace(0.1, 0.4, 100)])
    decided = fit_triage(labels, p, sensitivity=0.97, specificity=0.97).decide(p)
    assert decided.tolist() == [POSITIVE] * 100 + [NEGATIVE] * 100


def test_probabilities_of_0_and_1():
    p = np.repeat([0.0, 1.0], 60)
    triage = fit_triage(np.tile([1, 0], 60), p, sensitivity=0.95)
    assert triage.high > 1
    assert set(triage.decide(p)) == {LOOK}
    assert "(none is)" in triage.promise


@pytest.mark.parametrize(("n_positive", "n_negative", "kind"), [(44, 45, "positive"), (45, 44, "negative")])
def test_too_few_of_a_class_names_the_number_needed(n_positive, n_negative, kind):
    labels, p = scored(np.random.default_rng(6), n_positive, n_negative)
    with pytest.raises(
        DataError, match=rf"^44 {kind} calibration scans .* of 0.95 with confidence 0.9 .*: 45 are"
    ):
        fit_triage(labels, p, sensitivity=0.95)
    labels, p = scored(np.random.default_rng(6), 45, 45)
    fit_triage(labels, p, sensitivity=0.95)
    twice = [f"p{i // 2}" for i in range(90)]  # 23 patients have positive scans
    with pytest.raises(DataError, match=r"^23 patients with positive calibration scans .*: 45 are needed"):
        fit_triage(labels, p, sensitivity=0.95, patients=twice)


def test_no_scan_of_a_class():
    with pytest.raises(DataError, match=r"^0 positive calibration scans are too few .*: 19 are needed"):
        fit_triage(np.zeros(30, dtype=int), np.full(30, 0.5), sensitivity=0.95, method="conformal")


def test_fewer_than_20_labelled_scans():
    labels = np.append(np.repeat([1, 0], [9, 10]), np.full(30, -1))
    with pytest.raises(DataError, match=r"^19 labelled calibration scans are too few .*: at least 20 are"):
        fit_triage(labels, np.full(49, 0.5), sensitivity=0.5, specificity=0.5, confidence=0.5)
    labels[19] = 1
    fit_triage(labels, np.full(49, 0.5), sensitivity=0.5, specificity=0.5, confidence=0.5)


def test_a_patient_counts_once_by_the_hardest_scan():
    rng = np.random.default_rng(7)
    labels, p = scored(rng)
    patients = [str(i) for i in range(len(p))]
    alone = fit_triage(labels, p, sensitivity=0.9)
    assert fit_triage(labels, p, sensitivity=0.9, patients=patients).as_dict() == alone.as_dict() | {
        "by_patient": True
    }
    # two more scans of each patient, easier ones: nothing changes; without patients they would be evidence
    easier = np.where(labels == 1, p + (1 - p) * rng.random(len(p)), p * rng.random(len(p)))
    tripled = np.concatenate([labels] * 3), np.concatenate([easier, p, easier])
    known = fit_triage(*tripled, sensitivity=0.9, patients=patients * 3)
    assert (known.low, known.high, known.n_positive) == (alone.low, alone.high, alone.n_positive)
    assert fit_triage(*tripled, sensitivity=0.9).low > alone.low


def test_a_patient_with_scans_of_both_classes_counts_in_both():
    labels, p = scored(np.random.default_rng(8), 100, 100)
    patients = [str(i) for i in range(100)] * 2
    triage = fit_triage(labels, p, sensitivity=0.9, patients=patients)
    assert (triage.n_positive, triage.n_negative) == (100, 100)


@pytest.mark.parametrize("bad", [np.nan, 1.5, -0.1])
def test_probabilities_that_are_none(bad):
    labels, p = scored(np.random.default_rng(9))
    triage = fit_triage(labels, p, sensitivity=0.9)
    p[3] = bad
    with pytest.raises(DataError, match=r"NaN|probability must lie"):
        fit_triage(labels, p, sensitivity=0.9)
    with pytest.raises(DataError, match=r"NaN|probability must lie"):
        triage.decide(p)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sensitivity": 1.0}, "sensitivity must lie between"),
        ({"specificity": 0.0}, "specificity must lie between"),
        ({"confidence": float("nan")}, "confidence must lie between"),
        ({"confidence": 0.0}, "confidence must lie between"),
        ({"confidence": 1.0}, "confidence must lie between"),
        ({"method": "guess"}, "method must be one of risk_control"),
        ({"method": "next_scans"}, "go with next_scans"),
        ({"method": "next_scans", "next_positives": 10, "next_negatives": 0}, "go with next_scans"),
        ({"next_positives": 10, "next_negatives": 10}, "go with next_scans"),
        ({"next_negatives": 10}, "go with next_scans"),
        ({"patients": ["a"]}, "1 patients for 320"),
    ],
)
def test_arguments_out_of_range(wrong, message):
    labels, p = scored(np.random.default_rng(10))
    with pytest.raises(ValueError, match=message):
        fit_triage(labels, p, **{"sensitivity": 0.9, **wrong})


@pytest.mark.parametrize("method", METHODS)
def test_json_and_back(method):
    labels, p = scored(np.random.default_rng(11))
    triage = fit_triage(labels, p, sensitivity=0.9, **options(method))
    again = Triage.from_dict(json.loads(json.dumps(triage.as_dict())))
    assert again == triage
    np.testing.assert_array_equal(again.decide(p), triage.decide(p))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "ich_mil.triage.0"}, "not triage thresholds of this version"),
        ({"extra": 1}, r"damaged \(extra\)"),
        ({"low": 0.9, "high": 0.1}, "damaged .*low ≤ high"),
        ({"low": float("nan")}, "damaged .*low ≤ high"),
        ({"low": "0.1"}, "damaged"),
        ({"method": "guess"}, "damaged .*method"),
        ({"sensitivity": "x"}, "damaged"),
        ({"specificity": 1.5}, "damaged .*specificity"),
        ({"confidence": "0.9"}, "damaged"),
        ({"confidence": 90}, "damaged .*confidence"),
    ],
)
def test_damaged_thresholds(change, message):
    labels, p = scored(np.random.default_rng(12))
    values = fit_triage(labels, p, sensitivity=0.9).as_dict()
    with pytest.raises(DataError, match=message):
        Triage.from_dict(values | change)
    del values["high"]
    with pytest.raises(DataError, match=r"damaged \(high\)"):
        Triage.from_dict(values)


def test_the_promise_in_words():
    labels, p = scored(np.random.default_rng(13))
    patients = [str(i) for i in range(len(p))]

    def told(**more):
        return fit_triage(labels, p, sensitivity=0.95, specificity=0.9, **more).promise

    assert told().startswith(
        "With 90 % confidence in each: at most 5 % of new positive scans are called negative (p < 0."
    )
    assert "and at most 10 % of new negative scans are called positive (p ≥ 0." in told()
    assert "from 150 positive and 170 negative calibration scans" in told()
    assert told(method="conformal").startswith("On average over calibration sets: at most 5 % of new")
    ahead = told(method="next_scans", next_positives=90, next_negatives=80)
    assert "at most 4 of the next 90 positive scans are" in ahead
    assert "at most 8 of the next 80 negative scans are" in ahead
    assert "5 % of new patients with positive scans have one called negative" in told(patients=patients)
    assert all("\n" not in text for text in (told(), ahead))
    at_one = replace(fit_triage(labels, p, sensitivity=0.95), high=1.0)
    assert at_one.decide(np.ones(1)).tolist() == [POSITIVE]
    assert "called positive (p ≥ 1)" in at_one.promise


class Given(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose probability is its one feature."""

    def __init__(self):
        self.classes_ = np.array([0, 1])
        self.n_features_in_ = 1

    def fit(self, X, y):
        return self

    def predict(self, X):
        return (X[:, 0] >= 0.5).astype(int)

    def predict_proba(self, X):
        return np.column_stack([1 - X[:, 0], X[:, 0]])


@pytest.mark.parametrize("share", [0.8, 0.9, 0.95])
def test_conformal_gives_the_prediction_sets_of_mapie(share):
    """MAPIE's split conformal classifier with the LAC score, conformalized on each class by itself.

    Its sets hold 0 unless we say positive, and 1 unless we say negative; both: look. Its quantile takes
    1 - probability within 1e-8, so ties closer than that would differ.
    """
    rng = np.random.default_rng(14)
    labels, p = scored(rng, 137, 161)
    new = rng.random(5000)
    with_label = []
    for label in (0, 1):
        mapie = SplitConformalClassifier(Given(), confidence_level=share, conformity_score="lac", prefit=True)
        with pytest.warns(UserWarning, match="conformalization dataset has less labels"):
            mapie.conformalize(p[labels == label, None], labels[labels == label])
        with_label.append(mapie.predict_set(new[:, None])[1][:, label, 0])
    decided = fit_triage(labels, p, sensitivity=share, specificity=share, method="conformal").decide(new)
    if share == 0.95:
        assert len(set(decided)) == 3
        np.testing.assert_array_equal(with_label[1], decided != NEGATIVE)
    # where thresholds cross, MAPIE gives the empty set, and we clear no more and call no fewer than it
    assert not (with_label[1] & (decided == NEGATIVE)).any()
    np.testing.assert_array_equal(with_label[0], decided != POSITIVE)


def mapie_thresholds(labels, p, risk, level, thresholds):
    controller = BinaryClassificationController(
        Given().predict_proba,
        risk,
        target_level=level,
        confidence_level=0.9,
        list_predict_params=thresholds,
        fwer_method="fixed_sequence",
    )
    return controller.calibrate(p[:, None], labels).valid_predict_params


def test_risk_control_gives_the_thresholds_of_mapie():
    """MAPIE's learn-then-test controller of recall and of the false positive rate.

    Given every calibration probability as a candidate and a fixed sequence of tests it is the same exact
    binomial test, so its last valid threshold is ours. Its default grid of hundredths with Bonferroni-Holm
    is far more cautious.
    """
    labels, p = scored(np.random.default_rng(15), 128, 256)
    triage = fit_triage(labels, p, sensitivity=0.95, specificity=0.95)
    valid = mapie_thresholds(labels, p, "recall", 0.95, np.unique(p[labels == 1]))
    assert valid.max() == triage.low
    above = np.append(np.unique(np.nextafter(p[labels == 0], 1)), 1.0)
    assert mapie_thresholds(labels, p, "fpr", 0.05, above).min() == triage.high


def test_risk_control_where_mapie_rounds_one_scan_up():
    """With 205 positives MAPIE stays one rank behind.

    It counts misses as ⌈n (1 - recall)⌉ in floats, and 205 · (1 - 200/205) comes out above 5: it tests 6
    misses for 5. Its threshold is valid, only more cautious.
    """
    assert np.ceil(205 * (1 - 200 / 205)) == 6
    labels, p = scored(np.random.default_rng(16), 205, 60)
    triage = fit_triage(labels, p, sensitivity=0.95)
    ranked = np.sort(p[labels == 1])
    assert triage.low == ranked[5]
    assert mapie_thresholds(labels, p, "recall", 0.95, np.unique(p[labels == 1])).max() == ranked[4]
