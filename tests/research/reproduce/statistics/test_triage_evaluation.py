"""Fractions of triage decisions, and waiting times in a worklist, by hand and by their equations."""

from dataclasses import replace

import numpy as np
import pytest

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import patient_bootstrap, proportion_interval
from ich_mil.evaluate.deployment.triage import fit_triage
from research.reproduce.statistics.triage_evaluation import COLUMNS, triage_table, worklist_effect

LABELS = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0, -1, -1, -1])
P = np.array([0.1, 0.25, 0.5, 0.75, 0.9, 0.0, 0.2, 0.6, 0.8, 0.1, 0.5, 0.9])


@pytest.fixture(scope="module")
def table():
    labels = np.repeat([1, 0], 50)
    p = np.concatenate([np.linspace(0.3, 0.9, 50), np.linspace(0.1, 0.7, 50)])
    triage = replace(fit_triage(labels, p, sensitivity=0.9), low=0.25, high=0.75)

    def made(labels, p, patients, *, seed=0, resamples=50):
        frame = triage_table(
            triage, np.asarray(labels), np.asarray(p), patients, seed=seed, resamples=resamples
        )
        return frame.set_index("metric", drop=False)

    return made


def test_every_fraction_by_hand(table):
    frame = table(LABELS, P, list("aabcdefghijk"))
    assert list(frame.columns) == COLUMNS
    assert dict(zip(frame.index, zip(frame["count"], frame["n"], strict=True), strict=True)) == {
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
    np.testing.assert_allclose(frame["value"], frame["count"] / frame["n"], rtol=1e-12)
    assert (set(frame["unlabelled"]), set(frame["patients"]), set(frame["note"])) == ({3}, {8}, {""})
    assert ((frame["low"] <= frame["value"]) & (frame["value"] <= frame["high"])).all()


def test_intervals_resample_patients(table):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60)
    p, patients = rng.random(60), np.array([str(i // 3) for i in range(60)])
    frame = table(labels, p, patients, seed=4, resamples=300)
    positive = labels == 1
    missed = patient_bootstrap(
        lambda counts: {"missed": (p[positive] < 0.25) @ counts[positive] / counts[positive].sum(axis=0)},
        patients,
        resamples=300,
        seed=4,
    )["missed"]
    missed = proportion_interval(missed, frame.value["missed"], len(set(patients[positive])))
    assert frame.loc["missed", ["low", "high"]].tolist() == pytest.approx([missed.low, missed.high])
    assert frame.loc["sensitivity", "low"] == pytest.approx(1 - missed.high, rel=1e-12)


def test_no_missed_scan_has_an_exact_interval(table):
    labels = np.repeat([1, 0], 30)
    frame = table(labels, np.where(labels == 1, 0.5, 0.1), [str(i // 2) for i in range(60)])
    # two scans a patient: 15 patients with a positive scan
    assert frame.loc["missed", ["low", "high"]].tolist() == pytest.approx([0, 1 - 0.025 ** (1 / 15)])
    assert frame.loc["specificity_decided", "low"] == pytest.approx(0.025 ** (1 / 15))
    assert frame.loc["cleared", "low"] > 0.3  # neither none nor all: that of the resamples


def test_numbers_that_are_not_defined_say_why(table):
    frame = table(np.zeros(4, dtype=int), np.full(4, 0.5), list("abcd"))
    assert frame.note["missed"] == frame.note["abstention_positive"] == "no scan is positive"
    assert frame.note["specificity_decided"].startswith("every negative scan")
    np.testing.assert_array_equal(frame["value"].isna(), frame["note"] != "")
    np.testing.assert_array_equal(frame["low"].isna(), frame["note"] != "")
    waits = effect([0, 0, -1], "nlp", [0.1, 0.2, 0.3])  # no positive scan
    np.testing.assert_array_equal(waits["minutes"].isna(), waits["note"] != "")
    with pytest.raises(DataError, match="none of the 2 labels is known"):
        table([-1, -1], [0.1, 0.2], ["a", "b"])


def effect(labels, decisions, p, *, minutes=1.0, repeats=400, seed=0):
    labels, p = np.asarray(labels), np.asarray(p, dtype=float)
    decisions = np.array([{"n": "negative", "l": "look", "p": "positive"}[d] for d in decisions])
    table = worklist_effect(labels, decisions, p, minutes_per_scan=minutes, seed=seed, repeats=repeats)
    return table.set_index(["order", "group"])


def test_waits_of_three_scans_by_hand():
    # one scan a queue, so only first come is left to chance: a mean of (3 - 1)/2 = 1 place for everybody
    table = effect([1, 0, 1], "pln", [0.9, 0.5, 0.1], minutes=4)
    assert table.loc[("triage", "positive"), ["minutes", "low", "high", "longest"]].tolist() == [4, 4, 4, 8]
    assert table.loc[("triage", "negative"), "minutes"] == 4
    assert table.loc[("triage", "missed"), ["scans", "minutes"]].tolist() == [1, 8]
    assert table.loc[("probability", "positive"), "minutes"] == 4
    # three standard errors of 400 places of variance ⅔
    error = 4 * 3 * np.sqrt(2 / 3 / 400)
    assert table.loc[("first come", "missed"), "minutes"] == pytest.approx(4, abs=error)


def test_mean_wait_over_arrivals_is_the_closed_form():
    rng = np.random.default_rng(1)
    labels, p = rng.integers(-1, 2, 60), rng.random(60)
    decisions = rng.choice(list("nlp"), 60)
    table = effect(labels, decisions, p, minutes=3, repeats=1500)
    size = {one: (decisions == one).sum() for one in "pln"}
    before = {"p": 0, "l": size["p"], "n": size["p"] + size["l"]}
    place = np.array([before[one] + (size[one] - 1) / 2 for one in decisions])
    for group, label in (("positive", 1), ("negative", 0)):
        members = labels == label
        assert table.loc[("triage", group), "minutes"] == pytest.approx(3 * place[members].mean(), rel=0.015)
        assert table.loc[("first come", group), "minutes"] == pytest.approx(3 * 59 / 2, rel=0.015)
        falling = np.argsort(np.argsort(-p))[members].mean()
        assert table.loc[("probability", group), "minutes"] == pytest.approx(3 * falling, rel=1e-12)
        assert table.loc[("triage", group), "scans"] == members.sum()
