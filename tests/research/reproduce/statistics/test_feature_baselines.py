"""Trained baselines: pooled logistic regression against scikit-learn, attention MIL by its invariances."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from ich_mil.sets.features import bare_features
from research.reproduce.statistics.feature_baselines import (
    PENALTIES,
    attention_mil,
    hold_out,
    pool,
    pooled_logistic,
)

EPOCHS = 15


def bags(name, x, sizes, labels, patients=None):
    scans = [f"{name}{b}" for b in range(len(sizes))]
    features = bare_features(np.asarray(x), sizes, scans, labels, [f"{name}-{n}" for n in range(len(x))])
    return features if patients is None else replace(features, patients=patients)


def toy(name, n_scans, seed):
    """Every second scan holds one or two slices that stand out in two of three features."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n_scans) % 2
    sizes = generator.integers(3, 9, size=n_scans)
    x = generator.normal(size=(sizes.sum(), 3)) * [1, 50, 1]
    for b, start in enumerate(np.cumsum(sizes) - sizes):
        x[start : start + labels[b] * generator.integers(1, 3)] += [4, 0, -4]
    return bags(name, x, sizes, labels)


@pytest.fixture(scope="module")
def train():
    return toy("train", 60, 0)


@pytest.fixture(scope="module")
def test():
    return toy("test", 40, 1)


def test_pooling_by_hand():
    values = torch.tensor([[1.0, -2.0], [3.0, -4.0], [-5.0, 6.0]])
    offsets = torch.tensor([0, 2, 3])
    assert pool(values, offsets, "mean").tolist() == [[2, -3], [-5, 6]]
    assert pool(values, offsets, "max").tolist() == [[3, -2], [-5, 6]]
    assert pool(values[:, 0], offsets, "max").tolist() == [3, -5]


@pytest.mark.parametrize("how", ["mean", "max"])
def test_pooled_logistic_equals_scikit_learn(train, test, how):
    reduce = {"mean": np.mean, "max": np.max}[how]
    Z, out = (
        np.stack([reduce(part, axis=0) for part in np.split(f.x.double().numpy(), f.offsets[1:-1])])
        for f in (train, test)
    )
    y = train.labels.numpy()

    def fitted(C, rows, others):
        """Probability of `others` under standardising and fitting to `rows`."""
        mean, std = rows[0].mean(axis=0), rows[0].std(axis=0)
        model = LogisticRegression(C=C, max_iter=10_000).fit((rows[0] - mean) / std, rows[1])
        return model.predict_proba((others - mean) / std)[:, 1]

    folds = list(StratifiedKFold(5, shuffle=True, random_state=3).split(Z, y))
    loss = [
        np.mean([log_loss(y[held], fitted(C, (Z[part], y[part]), Z[held])) for part, held in folds])
        for C in PENALTIES
    ]
    best = PENALTIES[int(np.argmin(loss))]
    assert PENALTIES[0] < best  # the sets are not noise
    found = pooled_logistic(train, test, how=how, seed=3)
    np.testing.assert_allclose(found.scan, fitted(best, (Z, y), out), rtol=1e-6)
    assert roc_auc_score(test.labels, found.scan) > 0.9


def test_the_mean_slice_logit_is_the_scan_logit(train, test):
    found = pooled_logistic(train, test, how="mean", seed=0)
    parts = np.split(found.slice, test.offsets[1:-1])
    np.testing.assert_allclose(expit([part.mean() for part in parts]), found.scan, rtol=1e-9)
    assert pooled_logistic(train, test, how="max", seed=0).slice is None


def test_c_is_chosen_on_other_patients():
    """Scans of one patient are alike, labels are noise: only folds by patient see that nothing is learned."""
    generator = np.random.default_rng(0)
    person = np.repeat(np.arange(40), 5)
    x = generator.normal(size=(40, 30))[person] + 0.01 * generator.normal(size=(200, 30))
    labels = (generator.permutation(40) % 2)[person]
    train = bags("a", x, [1] * 200, labels, [f"p{p}" for p in person])
    fresh = bags("b", generator.normal(size=(50, 30)), [1] * 50, np.arange(50) % 2)
    probability = pooled_logistic(train, fresh, how="mean", seed=0).scan
    assert np.abs(probability - 0.5).max() < 0.1


def test_scans_to_stop_on_are_drawn_by_patient(train):
    paired = replace(train, patients=[f"p{b % 2}-{b // 12}" for b in range(60)])
    learn, stop = hold_out(paired, seed=0)
    assert not set(learn.patients) & set(stop.patients)
    assert sorted(learn.scans + stop.scans) == sorted(train.scans)
    assert (learn.n_scans, stop.n_scans) == (48, 12)
    assert hold_out(paired, seed=0)[1].scans == stop.scans
    assert hold_out(paired, seed=1)[1].scans != stop.scans


@pytest.fixture(scope="module")
def torchmil():
    return pytest.importorskip("torchmil.models", reason="torchmil (extra 'bench') is not installed")


@pytest.fixture(scope="module")
def attended(torchmil, train, test):
    return attention_mil(*hold_out(train, seed=0), test, seed=0, epochs=EPOCHS)


def test_attention_mil_learns_which_scans_and_which_slices(attended, test):
    assert roc_auc_score(test.labels, attended.scan) > 0.95
    assert attended.scan.min() >= 0
    assert attended.scan.max() <= 1
    standing_out = (test.x[:, 0] - test.x[:, 2] > 5).numpy()
    assert roc_auc_score(standing_out, attended.slice) > 0.95


@pytest.mark.realdata
def test_pooled_features_of_rsna_scans_rank_cq500_scans(rsna_features, cq500_features):
    """The floor a head must beat: measured once, 0.91 (max) and above 0.8 (mean)."""
    rsna, cq500 = rsna_features, cq500_features
    largest = pooled_logistic(rsna, cq500, how="max", seed=0)
    assert roc_auc_score(cq500.labels, largest.scan) == pytest.approx(0.912, abs=0.005)
    assert log_loss(cq500.labels, largest.scan) < 0.4
