import numpy as np
import pytest
from scipy.stats import binom, ks_2samp

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment import drift
from ich_mil.evaluate.deployment.drift import DriftAlarm, DriftResult, Moved, column_names, summarise
from ich_mil.reproduce.statistics import drift_rates
from ich_mil.reproduce.statistics.drift_rates import alarm_rates


@pytest.fixture
def few_deals(monkeypatch):
    """Enough for simulations."""
    monkeypatch.setattr(drift, "DEALS", 199)


def names(n, each=1):
    return [f"p{i // each}" for i in range(n)]


def fit(table, scores, patients=None, **options):
    columns = [f"column {c}" for c in range(table.shape[1])]
    return DriftAlarm.fit(
        table, scores, patients or names(len(table)), names=columns, **{"seed": 0} | options
    )


@pytest.fixture
def reference():
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 4)), rng.random(60)


def test_summary_by_hand():
    x = np.array([[1, 10], [3, 10], [5, 20], [0, 1]])
    found = summarise(x, np.array([0, 3, 4]))
    np.testing.assert_allclose(found, [[3, 40 / 3, np.sqrt(8 / 3), np.sqrt(200 / 9), 3], [0, 1, 0, 0, 1]])
    assert column_names(2) == [
        "mean of feature 0",
        "mean of feature 1",
        "spread of feature 0",
        "spread of feature 1",
        "slices",
    ]
    with pytest.raises(ValueError, match="do not fit"):
        summarise(x, np.array([0, 3]))


def test_a_moved_column_rings_and_is_named(reference):
    table, scores = reference
    rng = np.random.default_rng(1)
    batch = rng.normal(size=(25, 4)) + np.array([0, 0, 2, 0])
    found = fit(table, scores).test(batch, rng.random(25), names(25))
    assert found.alarm
    assert found.p_features == 0.001
    assert found.p_scores > 0.025
    first = found.moved[0]
    assert (first.name, first.p) == ("column 2", 0.001)
    assert first.distance == pytest.approx(ks_2samp(table[:, 2], batch[:, 2]).statistic)
    assert (first.reference, first.batch) == (np.median(table[:, 2]), np.median(batch[:, 2]))
    assert all(one.p > 0.025 for one in found.moved[1:])
    assert "column 2: median" in found.text()
    assert "not that the model is worse" in found.text()
    assert "column 0" not in found.text()


def test_moved_scores_ring(reference):
    table, scores = reference
    rng = np.random.default_rng(2)
    found = fit(table, scores).test(rng.normal(size=(25, 4)), 0.8 + rng.random(25) / 5, names(25))
    assert found.alarm
    assert found.p_scores == 0.001
    assert found.p_features > 0.025
    assert "score: median" in found.text()


def test_a_change_of_correlation_alone_rings():
    rng = np.random.default_rng(3)

    def draw(n, sign):
        x = rng.normal(size=(n, 1))
        return np.column_stack([x, sign * x + 0.1 * rng.normal(size=(n, 1))])

    found = fit(draw(100, 1), rng.random(100)).test(draw(40, -1), rng.random(40), names(40))
    assert found.p_features == 0.001
    assert min(one.p for one in found.moved) > 0.025
    assert "No single column moved, but their combination did" in found.text()


def test_the_same_scans_do_not_ring(reference):
    table, scores = reference
    found = fit(table, scores).test(table, scores, names(60))
    assert not found.alarm
    assert (found.p_features, found.p_scores, found.statistic) == (1, 1, pytest.approx(0, abs=1e-12))
    assert found.text().startswith("No drift found (60 scans")


def test_the_smallest_rate_can_ring(reference):
    table, scores = reference
    found = fit(table, scores, rate=0.002).test(table[:20] + 9, scores[:20], names(20))
    assert (found.p_features, found.alarm) == (0.001, True)  # half of the rate, and at most that


def test_a_batch_of_many_scans_is_not_judged_by_deals_of_few():
    """Two patients of 25 scans: nearly all deals are of two scans, which lie far out by chance."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(90, 1))
    batch = rng.normal(size=(50, 1)) + 1
    found = fit(x, x[:, 0]).test(batch, batch[:, 0], names(50, each=25))
    assert found.p_scores < 0.025
    assert found.moved[0].p < 0.025


def test_what_moved_in_features_does_not_depend_on_the_scores(reference):
    table, scores = reference
    batch = np.random.default_rng(7).normal(size=(20, 4)) + 0.4
    moved = [
        fit(table, s).test(batch, s[:20] + add, names(20)).moved for s, add in ((scores, 0), (-scores, 2))
    ]
    assert moved[0] == moved[1]


def test_only_what_moved_at_half_the_rate_is_named():
    def moved(name, p):
        return Moved(name, 0.5, p, 1.0, 2.0)

    columns = (moved("this one", 0.025), moved("that one", 0.026))
    text = DriftResult(0.001, 0.026, True, 0.05, 3.0, moved("score", 0.026), columns, 20).text()
    assert "this one: median 1 -> 2. It says" in text
    assert "that one" not in text
    assert "score: median" not in text


@pytest.mark.parametrize(("rate", "words"), [(0.05, "5 %"), (0.025, "2.5 %"), (0.002, "0.2 %")])
def test_the_rate_is_told_as_it_is(rate, words):
    score = Moved("score", 0.5, 0.9, 1.0, 2.0)
    text = DriftResult(0.9, 0.9, False, rate, 3.0, score, (), 20).text()
    assert f"rings falsely in at most {words} of batches" in text


def alarms(draw, runs, **options):
    """Alarms among `runs` references and batches, both from `draw(generator)`."""
    rung = 0
    for seed in range(runs):
        table, scores, patients, n = draw(np.random.default_rng(seed))
        alarm = fit(table[n:], scores[n:], patients[n:], seed=seed, **options)
        rung += alarm.test(table[:n], scores[:n], patients[:n]).alarm
    return rung


def test_false_alarms_are_as_rare_as_stated(few_deals):
    def draw(rng):
        table = rng.standard_t(2, size=(70, 5)) @ rng.normal(size=(5, 5))  # heavy tails, correlated
        return table, table[:, 0] + rng.normal(size=70), names(70), 20

    rung = alarms(draw, 200, rate=0.1)
    # exact at 0.05 for each of two tests: between 0.05 and 0.1 together
    assert binom.ppf(0.001, 200, 0.05) <= rung <= binom.ppf(0.999, 200, 0.1)


def test_scans_of_one_patient_do_not_pass_for_many(few_deals):
    def draw(rng):  # eight scans a patient, nearly the same
        table = np.repeat(rng.normal(size=(20, 3)), 8, axis=0) + 0.1 * rng.normal(size=(160, 3))
        return table, table[:, 0], names(160, each=8), 40

    assert alarms(draw, 100, rate=0.1) <= binom.ppf(0.999, 100, 0.1)
    alone = alarms(lambda rng: (*draw(rng)[:2], names(160), 40), 30, rate=0.1)
    assert alone > 20  # what the grouping saves us from


def test_deals_keep_patients_whole_and_begin_with_the_batch(reference, monkeypatch):
    seen = []
    monkeypatch.setattr(
        drift, "column_distances", lambda table, batch: seen.append(batch) or np.ones((5, batch.shape[1]))
    )
    table, scores = reference
    fit(table[:30], scores[:30]).test(table[30:], scores[30:], names(30, each=3))
    batch = seen[0]
    assert batch.shape == (60, drift.DEALS + 1)
    np.testing.assert_array_equal(batch[:, 0], np.arange(60) >= 30)
    owner = np.concatenate([np.arange(30), 30 + np.arange(30) // 3])
    patients = np.array([batch[owner == k].mean(axis=0) for k in range(40)])  # (patients, R)
    assert set(np.unique(patients)) == {0, 1}
    assert set(patients.sum(axis=0)) == {10}
    assert len(np.unique(patients, axis=1).T) > 990


def test_features_may_come_in_any_unit_and_mixture(reference):
    table, scores = reference
    rng = np.random.default_rng(5)
    batch, mix = rng.normal(size=(20, 4)) + 0.3, rng.normal(size=(4, 4)) * np.array([1, 1e3, 1, 1e-3])
    one = fit(table, scores).test(batch, scores[:20], names(20))
    other = fit(table @ mix + 5, scores).test(batch @ mix + 5, scores[:20], names(20))
    assert 0.001 < one.p_features < 1
    assert other.p_features == one.p_features
    assert other.statistic == pytest.approx(one.statistic, rel=1e-6)


def test_the_largest_of_many_columns_is_judged_as_the_largest(few_deals):
    named = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        found = fit(rng.normal(size=(40, 40)), rng.random(40)).test(
            rng.normal(size=(20, 40)), rng.random(20), names(20)
        )
        named += found.moved[0].p <= 0.05
    assert named <= binom.ppf(0.999, 30, 0.05)


def test_power_grows_with_the_batch(few_deals):
    def draw(n):
        def one(rng):
            table = rng.normal(size=(60 + n, 3))
            table[:n] += 0.6
            return table, table[:, 0], names(60 + n), n

        return one

    small, large = (alarms(draw(n), 25) for n in (10, 60))
    assert large >= 23
    assert small < large


def test_large_sets_are_cut_by_whole_patients(reference, monkeypatch):
    monkeypatch.setattr(drift, "MOST_SCANS", 30)
    table, scores = reference
    alarm = fit(table, scores, names(60, each=4))
    assert len(alarm.table) == 32  # the patient that passes the 30 is kept whole
    assert np.bincount(alarm.patients).tolist() == [4] * 8
    result = alarm.test(table + 3, scores, names(60))
    assert result.alarm
    assert result.n == 30


def test_order_of_the_batch_does_not_matter(reference):
    table, scores = reference
    batch = np.random.default_rng(4).normal(size=(20, 4)) + 0.2
    one = fit(table, scores).test(batch, scores[:20], names(20))
    other = fit(table, scores).test(batch[::-1], scores[:20][::-1], names(20)[::-1])
    assert (one.p_features, one.p_scores, one.moved) == (other.p_features, other.p_scores, other.moved)


@pytest.mark.parametrize(
    ("batch", "patients", "message"),
    [
        (np.zeros((9, 4)), names(9), "batch: drift needs at least 10 scans, got 9"),
        (np.zeros((12, 3)), names(12), "3 feature columns, the reference has 4"),
        (np.full((12, 4), np.nan), names(12), "those of 12 scans are not, the first is scan number 0"),
    ],
)
def test_what_cannot_be_tested_says_why(reference, batch, patients, message):
    with pytest.raises(DataError, match=message):
        fit(*reference).test(batch, np.zeros(len(batch)), patients)


def test_too_few_patients_to_ever_ring(reference):
    table, scores = reference
    alarm = fit(table, scores, names(60, each=2))
    with pytest.raises(DataError, match="1 patients, and 30 of the reference, are too few to ring"):
        alarm.test(table[:12], scores[:12], ["a"] * 12)
    assert alarm.test(table[:12] + 9, scores[:12], names(12, each=6)).alarm  # 496 ways


@pytest.mark.parametrize(
    ("options", "message"), [({"rate": 0.001}, "rate must be"), ({"rate": 1}, "rate must be")]
)
def test_rates_that_cannot_be_kept(reference, options, message):
    with pytest.raises(ValueError, match=message):
        fit(*reference, **options)


def test_shapes_are_checked(reference):
    table, scores = reference
    with pytest.raises(ValueError, match="do not fit"):
        fit(table, scores[:-1])
    with pytest.raises(ValueError, match="3 names for 4 columns"):
        DriftAlarm.fit(table, scores, names(60), names=["a", "b", "c"], seed=0)


def test_rates_at_one_site(few_deals, monkeypatch):
    monkeypatch.setattr(drift_rates, "DRAWS", 60)
    monkeypatch.setattr(drift_rates, "STEPS", (0.0, 0.5, 5.0))
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(60, 1, 3)) * [1, 10, 0.1] + rng.normal(size=(60, 4, 3)) * 1e-3).reshape(-1, 3)
    offsets, patients = np.arange(0, 241, 2), names(120, 2)  # 60 patients of two scans of two slices
    found = alarm_rates(x, offsets, rng.random(120), patients, seed=0)
    assert found.step.tolist() == [0.0, 0.5, 5.0]
    assert (found.share == found.rings / found.draws).all()
    assert found.draws.tolist() == [60] * 3
    assert found.rings[0] <= binom.ppf(0.999, 60, 0.05)
    assert found.rings[0] < found.rings[1] < found.rings[2] == 60
    assert (found.low <= found.share).all()
    assert (found.share <= found.high).all()
    assert found.high[2] - found.low[2] == pytest.approx(1 - 0.025 ** (1 / 60))  # Clopper and Pearson
    with pytest.raises(DataError, match="needs at least 10 scans, got 0"):  # all 12 patients are in the batch
        alarm_rates(x, offsets, rng.random(120), names(120, 10), seed=0)


@pytest.fixture(scope="module")
def real(rsna_features, cq500_features):
    sets = []
    for features in (rsna_features, cq500_features):
        columns = summarise(features.x.numpy(), features.offsets.numpy())
        sets.append((columns, features.cnn_scan.numpy(), np.array(features.patients)))
    return sets


@pytest.mark.realdata
def test_real_scans_of_one_site_ring_as_rarely_as_stated(real, few_deals):
    table, scores, patients = real[0]

    def draw(rng):
        order = rng.permutation(len(table))
        return table[order], scores[order], patients[order].tolist(), 30

    assert alarms(draw, 60) <= binom.ppf(0.999, 60, 0.05)


@pytest.mark.realdata
def test_cq500_rings_against_rsna(real):
    (table, scores, patients), (other, other_scores, other_patients) = real
    alarm = DriftAlarm.fit(table, scores, patients, names=column_names(8), seed=0)
    rng = np.random.default_rng(0)
    for _ in range(10):
        rows = rng.permutation(len(other))[:30]
        assert alarm.test(other[rows], other_scores[rows], other_patients[rows]).alarm
    found = alarm.test(other, other_scores, other_patients)
    assert found.p_features == 0.001
    assert "mean of feature 7" in found.text()
