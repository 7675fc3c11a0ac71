from dataclasses import replace

import numpy as np
import pytest
import torch

from ich_mil.errors import DataError
from research.benchmarks.field.pooled import logistic, mi_svm
from research.benchmarks.field.tuning import by_grid, calibrated, held_out, held_out_loss, inner_folds
from tests.research.benchmarks.field.bags import toy


def means(features):
    return torch.stack([part.mean(0) for part in features.x.split(features.offsets.diff().tolist())])


def test_candidate_of_lowest_held_out_loss():
    def fit(train, column, seed):
        return lambda bags: (means(bags)[:, column].double(), bags.x[:, column])

    train, test = toy([6] * 24, raised=20.0), toy([6] * 8, seed=1, raised=20.0)
    chosen = by_grid(fit, [2, 0, 1])(train, test, [0])[0]
    assert chosen.instances.tolist() == test.x[:, 0].double().tolist()
    assert ((chosen.bags > 0.5) == (test.labels == 1)).all()


def test_held_out_logits_have_not_seen_their_bag():
    def memory(train, candidate, seed):
        known = dict(zip(train.scans, train.labels.tolist(), strict=True))
        return lambda bags: (torch.tensor([known.get(scan, -1.0) for scan in bags.scans]), bags.x[:, 0])

    train = toy([3] * 12)
    assert held_out(memory, train, inner_folds(train), None, 0).tolist() == [-1.0] * 12


def test_wrong_ranking_becomes_the_prevalence():
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 0, 0])
    logits = -labels.double() + 0.01 * torch.arange(8)
    assert calibrated(logits, labels, torch.zeros(2)).tolist() == [0.375, 0.375]
    target = (3 * 0.8 + 5 / 7) / 8  # Platt's smoothed targets
    entropy = -target * np.log(target) - (1 - target) * np.log(1 - target)
    assert held_out_loss(logits, labels) == pytest.approx(entropy)


@pytest.mark.parametrize("label", [0, 1])
def test_one_label_alone_is_refused(label):
    train = toy([3] * 12)
    train = replace(train, labels=torch.full_like(train.labels, label))
    with pytest.raises(DataError, match="both labels"):
        inner_folds(train)


def test_mi_svm_finds_the_witnesses():
    train, test = toy([6] * 40, raised=6.0), toy([6] * 20, seed=1, raised=6.0)
    for kernel in ("linear", "rbf"):
        scans, slices = mi_svm(train, (kernel, 1.0), 0)(test)
        inside = slices[test.slice_labels == 1]
        assert inside.median() > slices[test.slice_labels == 0].quantile(0.95), kernel
        parts = slices.split(test.offsets.diff().tolist())
        assert scans.tolist() == [part.max() for part in parts]


def test_logistic_regression_of_the_mean():
    train, test = toy([6] * 40), toy([5] * 6, seed=1)
    scans, slices = logistic("mean", train, 1.0)(test)
    np.testing.assert_allclose(scans, [part.mean() for part in slices.split(5)], rtol=1e-9)
