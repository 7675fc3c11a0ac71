import numpy as np
import pytest
from scipy.stats import beta, betabinom, binom

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.conformal import METHODS, chance_next
from ich_mil.evaluate.deployment.triage import LOOK, NEGATIVE, POSITIVE, fit_triage
from ich_mil.reproduce.statistics.triage_splits import verify


def scored(rng, n_positive=120, n_negative=140):
    labels = np.repeat([1, 0], [n_positive, n_negative])
    p = np.concatenate([rng.beta(3, 1.5, n_positive), rng.beta(1.5, 3, n_negative)])
    return labels, p, [f"p{i}" for i in range(len(p))]


def band(chance, splits, errors=4):
    """Share kept, at most four standard errors below and above its chance."""
    spread = errors * np.sqrt(chance * (1 - chance) / splits)
    return chance - spread, chance + spread


@pytest.mark.parametrize("method", METHODS)
def test_promises_are_kept_as_often_as_theory_says(method):
    data = scored(np.random.default_rng(0))
    found = verify(*data, splits=1000, sensitivity=0.9, specificity=0.9, method=method, seed=1)
    for row, m in zip(found.summary.to_dict("records"), (60, 70), strict=True):
        low, high = band(row["expected"], 1000)
        assert low <= row["kept"] <= high
        assert row["kept_low"] < row["kept"] < row["kept_high"]
        rank = found.splits["rank_positive" if m == 60 else "rank_negative"].iloc[0]
        assert row["expected"] == pytest.approx(betabinom.cdf(m // 10, m, rank, m + 1 - rank), rel=1e-9)
        # E F = k / (n + 1), and the empirical value is that of m draws
        assert row["mean"] == pytest.approx(1 - rank / (m + 1), abs=0.005)
        if method == "next_scans":
            assert row["expected"] >= 0.9
    assert (found.summary["note"] != "").all() == (method == "conformal")
    assert found.summary["confidence"].isna().all() == (method == "conformal")


def test_a_promise_on_all_future_scans_is_none_on_the_next():
    # rank 4 of 143 bounds the share of all future scans by 0.05 with 93 %; 142 scans keep to it with 89 %
    always = betabinom.cdf(7, 142, 4, 140)
    assert binom.sf(3, 143, 0.05) > 0.9 > always
    assert chance_next(4, 143, 0.95, 142) == pytest.approx(always, rel=1e-9)


def test_one_split_counted_again_by_hand():
    labels, p, patients = scored(np.random.default_rng(2))
    found = verify(labels, p, patients, splits=3, sensitivity=0.9, specificity=0.8, seed=3)
    generator = np.random.default_rng(3)
    names = np.unique(patients)
    place = np.searchsorted(names, patients)
    group = np.zeros(len(names), dtype=bool)
    group[place] = labels == 1
    for _, row in found.splits.iterrows():
        chosen = np.zeros(len(names), dtype=bool)
        for value in (False, True):
            members = generator.permutation(np.flatnonzero(group == value))
            chosen[members[: len(members) // 2]] = True
        fitted = chosen[place]
        triage = fit_triage(labels[fitted], p[fitted], sensitivity=0.9, specificity=0.8)
        decided, truth = triage.decide(p[~fitted]), labels[~fitted]
        assert (row["low"], row["high"]) == (triage.low, triage.high)
        assert row["missed"] == (decided[truth == 1] == NEGATIVE).sum()
        assert row["sensitivity"] == pytest.approx((decided[truth == 1] != NEGATIVE).mean(), rel=1e-12)
        assert row["false_alarms"] == (decided[truth == 0] == POSITIVE).sum()
        assert row["look"] == (decided == LOOK).mean()
        assert (row["n_positive"], row["test_positives"]) == (60, 60)
        assert (row["n_negative"], row["test_negatives"]) == (70, 70)


def test_all_scans_of_a_patient_stay_on_one_side_and_count_once():
    labels, p, patients = scored(np.random.default_rng(4))
    one = verify(labels, p, patients, splits=20, sensitivity=0.9, seed=5)
    # the same scans five times over are no evidence
    five = verify(np.tile(labels, 5), np.tile(p, 5), patients * 5, splits=20, sensitivity=0.9, seed=5)
    assert five.splits.equals(one.splits)
    assert five.summary.equals(one.summary)


def test_patients_with_several_scans_of_both_classes():
    rng = np.random.default_rng(12)
    labels, p, _ = scored(rng, 200, 260)
    patients = rng.integers(0, 200, 460).astype(str)
    found = verify(labels, p, patients.tolist(), splits=400, sensitivity=0.9, specificity=0.8, seed=0)
    # each patient by the lowest positive and the highest negative scan: more are lost than scan by scan
    lowest = {one: p[(patients == one) & (labels == 1)].min(initial=2) for one in set(patients)}
    highest = {one: p[(patients == one) & (labels == 0)].max(initial=-1) for one in set(patients)}
    n_positive = sum(value < 2 for value in lowest.values())
    n_negative = sum(value > -1 for value in highest.values())
    splits = found.splits
    assert (splits["n_positive"] + splits["test_positives"] == n_positive).all()
    assert (splits["n_negative"] + splits["test_negatives"] == n_negative).all()
    assert splits["test_negatives"].nunique() > 3
    for row in splits.head(5).itertuples():
        # of all patients those lost in the calibration half are the rank less one
        assert sum(value < row.low for value in lowest.values()) == row.missed + row.rank_positive - 1
        assert (
            sum(value >= row.high for value in highest.values()) == row.false_alarms + row.rank_negative - 1
        )
    for row, columns in zip(
        found.summary.to_dict("records"),
        (
            ["rank_positive", "n_positive", "test_positives"],
            ["rank_negative", "n_negative", "test_negatives"],
        ),
        strict=True,
    ):
        chances = [chance_next(k, n, row["promised"], m) for k, n, m in splits[columns].to_numpy().tolist()]
        assert row["expected"] == pytest.approx(np.mean(chances), rel=1e-9)
        low, high = band(row["expected"], 400)
        assert low <= row["kept"] <= high
    for row in found.summary.to_dict("records"):
        every = splits[row["promise"]]
        assert (row["mean"], row["lowest"]) == pytest.approx((every.mean(), every.min()), rel=1e-12)
        kept = round(row["kept"] * 400)
        ends = beta.ppf([0.025, 0.975], [kept, kept + 1], [401 - kept, 400 - kept])  # Clopper and Pearson
        assert (row["kept_low"], row["kept_high"]) == pytest.approx(tuple(ends), rel=1e-9)


def test_the_next_scans_are_those_of_the_test_half():
    data = scored(np.random.default_rng(13), 100, 300)
    row = verify(*data, splits=1, sensitivity=0.8, specificity=0.8, method="next_scans", seed=0).splits.iloc[
        0
    ]
    for name, n, m in (("rank_positive", 50, 50), ("rank_negative", 150, 150)):
        ranks = np.arange(1, n + 1)
        assert row[name] == (betabinom.cdf(m // 5, m, ranks, n + 1 - ranks) >= 0.9).sum()


def test_unlabelled_scans_take_no_part():
    labels, p, patients = scored(np.random.default_rng(6))
    one = verify(labels, p, patients, splits=10, sensitivity=0.9, seed=7)
    more = verify(
        np.append(labels, [-1, -1]), np.append(p, [0.5, 0.5]), [*patients, "a", "p3"], splits=10,
        sensitivity=0.9, seed=7,
    )  # fmt: skip
    assert more.splits.equals(one.splits)


def test_the_seed_decides():
    data = scored(np.random.default_rng(8))
    first, again, other = (verify(*data, splits=5, sensitivity=0.9, seed=seed).splits for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)


def test_ties_only_keep_promises_more_often():
    labels, p, patients = scored(np.random.default_rng(9))
    found = verify(labels, np.round(p, 1), patients, sensitivity=0.9, specificity=0.9, splits=300, seed=0)
    assert (found.summary["kept"] > found.summary["expected"]).all()


def test_input_that_cannot_be_used():
    labels, p, patients = scored(np.random.default_rng(11))
    with pytest.raises(DataError, match=r"^60 patients with positive calibration scans are too few"):
        verify(labels, p, patients, sensitivity=0.99, seed=0)
    with pytest.raises(DataError, match="no positive scan of 260 is left to test on"):
        verify(0 * labels, p, patients, sensitivity=0.9, seed=0)
    with pytest.raises(ValueError, match="1 patients for 260"):
        verify(labels, p, ["a"], sensitivity=0.9, seed=0)
    with pytest.raises(ValueError, match="one split at least"):
        verify(labels, p, patients, splits=0, sensitivity=0.9, seed=0)


@pytest.mark.realdata
@pytest.mark.slow
def test_a_thousand_splits_of_cq500(cq500_features, gamma_on_cq500):
    """The bar: sensitivity within the promised bound in at least 90 % of 1,000 patient-wise splits."""
    scans = cq500_features.labels.numpy(), gamma_on_cq500[0], cq500_features.patients
    for share in (0.9, 0.95):
        found = verify(*scans, sensitivity=share, specificity=share, method="next_scans", seed=0)
        assert (found.summary["expected"] >= 0.9).all()
        # at 0.9 the exact chance is 0.9006, so that 1,000 splits may fall a little short of it
        assert (found.summary["kept"] >= (0.9 if share == 0.95 else 0.88)).all()
        for row in found.summary.to_dict("records"):
            low, high = band(row["expected"], 1000)
            assert low <= row["kept"] <= high
        # it still decides: a triage that leaves every scan to a person keeps any promise
        assert found.splits["look"].mean() < 0.6
