from dataclasses import replace

import numpy as np
import pytest

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import of_proportion, patient_bootstrap
from ich_mil.evaluate.deployment.triage import Triage, fit_triage
from ich_mil.reproduce.statistics.triage_table import COLUMNS, triage_table


@pytest.fixture(scope="module")
def triage() -> Triage:
    labels = np.repeat([1, 0], 50)
    p = np.concatenate([np.linspace(0.3, 0.9, 50), np.linspace(0.1, 0.7, 50)])
    return replace(fit_triage(labels, p, sensitivity=0.9), low=0.25, high=0.75)


LABELS = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0, -1, -1, -1])
P = np.array([0.1, 0.25, 0.5, 0.75, 0.9, 0.0, 0.2, 0.6, 0.8, 0.1, 0.5, 0.9])
PATIENTS = list("aabcdefghijk")


def test_every_number_by_hand(triage):
    table = triage_table(triage, LABELS, P, PATIENTS, seed=0, resamples=50)
    assert list(table.columns) == COLUMNS
    found = dict(zip(table["metric"], zip(table["count"], table["n"], strict=True), strict=True))
    assert found == {
        "cleared": (3, 9),
        "called_positive": (3, 9),
        "to_look": (3, 9),
        "missed": (1, 5),
        "sensitivity": (4, 5),
        "false_alarms": (1, 4),
        "specificity": (3, 4),
        "sensitivity_decided": (2, 3),
        "specificity_decided": (2, 3),
        "ppv": (2, 3),
        "npv": (2, 3),
        "abstention_positive": (2, 5),
        "abstention_negative": (1, 4),
    }
    np.testing.assert_allclose(table["value"], table["count"] / table["n"], rtol=1e-12)
    assert set(table["unlabelled"]) == {3}
    assert set(table["patients"]) == {8}
    assert set(table["note"]) == {""}
    assert (table["low"] <= table["value"]).all()
    assert (table["value"] <= table["high"]).all()


def test_intervals_resample_patients(triage):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60)
    p, patients = rng.random(60), [str(i // 3) for i in range(60)]
    table = triage_table(triage, labels, p, patients, seed=4, resamples=300).set_index("metric")
    positive = labels == 1
    missed = patient_bootstrap(
        lambda counts: {"missed": (p[positive] < 0.25) @ counts[positive] / counts[positive].sum(axis=0)},
        patients,
        resamples=300,
        seed=4,
    )["missed"]
    missed = of_proportion(missed, table.value["missed"], len(set(np.array(patients)[positive])))
    assert table.loc["missed", ["low", "high"]].tolist() == pytest.approx(
        [missed.low, missed.high], rel=1e-12
    )
    # 1 - missed, end by end
    assert table.loc["sensitivity", "low"] == pytest.approx(1 - missed.high, rel=1e-12)
    assert table.loc["sensitivity", "high"] == pytest.approx(1 - missed.low, rel=1e-12)


def test_no_bleed_missed_of_few_does_not_promise_that_none_will_be(triage):
    labels, patients = np.repeat([1, 0], 30), [str(i // 2) for i in range(60)]
    p = np.where(labels == 1, 0.5, 0.1)
    table = triage_table(triage, labels, p, patients, seed=0, resamples=50).set_index("metric")
    # two scans a patient: 15 patients with a positive scan
    assert table.loc["missed", ["low", "high"]].tolist() == pytest.approx([0, 1 - 0.025 ** (1 / 15)])
    assert table.loc["sensitivity", ["low", "high"]].tolist() == pytest.approx([0.025 ** (1 / 15), 1])
    assert table.loc["specificity_decided", ["count", "n"]].tolist() == [30, 30]
    assert table.loc["specificity_decided", "low"] == pytest.approx(0.025 ** (1 / 15))
    assert table.loc["cleared", "low"] > 0.3  # neither none nor all: that of the resamples


def test_numbers_that_are_not_defined_say_why(triage):
    table = triage_table(triage, np.zeros(4, dtype=int), np.full(4, 0.5), list("abcd"), seed=0, resamples=9)
    notes = table.set_index("metric")["note"]
    assert notes["missed"] == notes["sensitivity"] == notes["abstention_positive"] == "no scan is positive"
    assert notes["specificity_decided"] == "every negative scan is to be looked at"
    assert notes["sensitivity_decided"] == "no scan is positive"
    assert notes["ppv"] == "one class only, or no scan is called positive"
    np.testing.assert_array_equal(table["value"].isna(), table["note"] != "")
    np.testing.assert_array_equal(table["low"].isna(), table["note"] != "")
    assert table.set_index("metric").loc["to_look", "value"] == 1


def test_of_one_class_no_call_has_a_predictive_value(triage):
    p = np.array([0.1, 0.9, 0.9, 0.1])
    table = triage_table(triage, np.ones(4, dtype=int), p, list("abcd"), seed=0, resamples=9)
    found = table.set_index("metric")
    assert found.loc[["ppv", "npv"], "value"].isna().all()  # not 1 and 0
    assert found.loc["npv", "note"] == "one class only, or no scan is cleared"


def test_resamples_without_a_positive_scan_are_counted(triage):
    table = triage_table(triage, np.array([1, 0]), np.array([0.9, 0.1]), ["a", "b"], seed=0, resamples=400)
    ignored = table.set_index("metric")["ignored"]
    # a quarter of the resamples draws one patient twice; five standard errors
    assert ignored["missed"] == pytest.approx(100, abs=44)
    assert ignored["specificity"] == pytest.approx(100, abs=44)
    assert ignored["cleared"] == 0


def test_no_interval_of_one_patient_says_why(triage):
    table = triage_table(triage, LABELS, P, ["a"] * 12, seed=0, resamples=9)
    assert table["low"].isna().all()
    assert set(table["note"]) == {"too few patients for an interval"}


def test_input_that_cannot_be_used(triage):
    with pytest.raises(DataError, match="none of the 2 labels is known"):
        triage_table(triage, np.array([-1, -1]), np.array([0.1, 0.2]), ["a", "b"], seed=0)
    with pytest.raises(DataError, match="NaN"):
        triage_table(triage, np.array([0, 1]), np.array([0.1, np.nan]), ["a", "b"], seed=0)
    with pytest.raises(ValueError, match="1 patients for 2 scans"):
        triage_table(triage, np.array([0, 1]), np.array([0.1, 0.2]), ["a"], seed=0)
