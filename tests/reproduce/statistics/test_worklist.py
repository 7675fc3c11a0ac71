import numpy as np
import pytest

from ich_mil.errors import DataError
from ich_mil.reproduce.statistics.worklist import COLUMNS, worklist_effect


def effect(labels, decisions, p, *, minutes=1.0, repeats=400, seed=0):
    labels, p = np.asarray(labels), np.asarray(p, dtype=float)
    decisions = np.array([{"n": "negative", "l": "look", "p": "positive"}[d] for d in decisions])
    table = worklist_effect(labels, decisions, p, minutes_per_scan=minutes, seed=seed, repeats=repeats)
    assert list(table.columns) == COLUMNS
    return table.set_index(["order", "group"])


def test_three_scans_by_hand():
    # one scan a queue, so only first come is left to chance: a mean of (3 - 1)/2 = 1 place for everybody
    table = effect([1, 0, 1], "pln", [0.9, 0.5, 0.1], minutes=4)
    assert table.loc[("triage", "positive"), ["minutes", "low", "high", "longest"]].tolist() == [4, 4, 4, 8]
    assert table.loc[("triage", "negative"), "minutes"] == 4
    assert table.loc[("triage", "missed"), ["scans", "minutes"]].tolist() == [1, 8]
    assert table.loc[("probability", "positive"), "minutes"] == 4
    # three standard errors of 400 places of variance ⅔
    assert table.loc[("first come", "missed"), "minutes"] == pytest.approx(
        4, abs=4 * 3 * np.sqrt(2 / 3 / 400)
    )


def test_mean_over_arrivals_is_the_closed_form():
    rng = np.random.default_rng(1)
    labels, p = rng.integers(-1, 2, 60), rng.random(60)
    decisions = rng.choice(list("nlp"), 60)
    table = effect(labels, decisions, p, minutes=3, repeats=3000)
    size = {one: (decisions == one).sum() for one in "plnx"}
    before = {"p": 0, "l": size["p"], "n": size["p"] + size["l"]}
    place = np.array([before[one] + (size[one] - 1) / 2 for one in decisions])
    for group, label in (("positive", 1), ("negative", 0)):
        members = labels == label
        assert table.loc[("triage", group), "minutes"] == pytest.approx(3 * place[members].mean(), rel=0.01)
        assert table.loc[("first come", group), "minutes"] == pytest.approx(3 * 59 / 2, rel=0.01)
        falling = np.argsort(np.argsort(-p))[members].mean()
        assert table.loc[("probability", group), "minutes"] == pytest.approx(3 * falling, rel=1e-12)
        assert table.loc[("triage", group), "scans"] == members.sum()


def test_perfect_triage_reads_all_positive_scans_first():
    labels = np.repeat([0, 1], [30, 10])
    table = effect(labels, "n" * 30 + "p" * 10, labels)
    assert table.loc[("triage", "positive"), ["minutes", "longest"]].tolist() == [4.5, 9]
    assert table.loc[("triage", "negative"), "minutes"] == 10 + 14.5
    # ties in probability are broken by arrival, as in the queues
    assert table.loc[("probability", "positive"), "minutes"] == 4.5


def test_a_triage_that_decides_nothing_is_first_come():
    rng = np.random.default_rng(2)
    table = effect(rng.integers(0, 2, 40), "l" * 40, np.full(40, 0.5))
    for order in ("triage", "probability"):
        np.testing.assert_array_equal(
            table.loc[order].drop("missed").drop(columns="note").to_numpy(dtype=float),
            table.loc["first come"].drop("missed").drop(columns="note").to_numpy(dtype=float),
        )


def test_the_interval_spans_the_arrival_orders():
    # the mean of 10 of the places 0 to 39, drawn without replacement: variance (40 + 1)(40 - 10)/(12 · 10)
    labels = np.repeat([0, 1], [30, 10])
    row = effect(labels, "l" * 40, np.full(40, 0.5), repeats=4000).loc[("first come", "positive")]
    spread = np.sqrt(41 * 30 / 120)
    assert row["low"] == pytest.approx(19.5 - 1.96 * spread, rel=0.04)
    assert row["high"] == pytest.approx(19.5 + 1.96 * spread, rel=0.04)


def test_the_longest_wait_is_a_mean_over_arrival_orders():
    labels = np.repeat([0, 1], [30, 10])
    row = effect(labels, "l" * 40, np.full(40, 0.5), repeats=4000).loc[("first come", "positive")]
    # the largest of 10 of the numbers 1 to 40 is 10 · 41 / 11 on average, and places begin with 0
    assert row["longest"] == pytest.approx(10 * 41 / 11 - 1, rel=0.01)


def test_minutes_scale_and_the_seed_decides():
    rng = np.random.default_rng(3)
    labels, p, decisions = rng.integers(0, 2, 30), rng.random(30), rng.choice(list("nlp"), 30)
    columns = ["minutes", "low", "high", "longest"]
    one, ten = (effect(labels, decisions, p, minutes=m, repeats=50)[columns] for m in (1, 10))
    np.testing.assert_allclose(ten, 10 * one, rtol=1e-12)
    assert not effect(labels, decisions, p, repeats=50, seed=1)[columns].equals(one)


def test_groups_without_a_scan_say_why():
    table = effect([0, 0, -1], "nlp", [0.1, 0.2, 0.3])
    assert table.loc[("triage", "positive"), "note"] == "no scan is known to be positive"
    assert table.loc[("triage", "missed"), "note"] == "no positive scan was called negative"
    np.testing.assert_array_equal(table["minutes"].isna(), table["note"] != "")
    # the unlabelled scan is read first all the same
    assert table.loc[("triage", "negative"), "minutes"] == 1.5


def test_input_that_cannot_be_used():
    labels, p, decisions = np.array([0, 1]), np.array([0.2, 0.7]), np.array(["look", "positive"])
    more = {"minutes_per_scan": 1.0, "seed": 0}
    with pytest.raises(DataError, match="must be one of positive, look, negative, got 'maybe'"):
        worklist_effect(labels, np.array(["look", "maybe"]), p, **more)
    with pytest.raises(DataError, match="NaN"):
        worklist_effect(labels, decisions, np.array([0.2, np.nan]), **more)
    with pytest.raises(DataError, match="there is no scan"):
        worklist_effect(labels[:0], decisions[:0], p[:0], **more)
    with pytest.raises(ValueError, match="1 decisions for 2 scans"):
        worklist_effect(labels, decisions[:1], p, **more)
    with pytest.raises(ValueError, match="need minutes above 0"):
        worklist_effect(labels, decisions, p, minutes_per_scan=0, seed=0)
