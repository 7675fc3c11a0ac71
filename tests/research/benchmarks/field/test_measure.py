"""Assembly of folds and averages over seeds, on scores that are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ich_mil.sets.labels import UNKNOWN
from research.benchmarks.field.measure import Scores, estimates, kept_scores
from research.benchmarks.field.problems import Problem, in_folds
from research.benchmarks.field.tuning import Scored
from tests.research.benchmarks.field.bags import toy


def truthful(train, test, seeds):
    """Probability by the label of the bag, score by feature 0; every other seed is wrong."""
    assert not {*train.scans} & {*test.scans}
    p = torch.tensor([0.1, 0.8], dtype=torch.float64)[test.labels]
    return [Scored(p if seed % 2 == 0 else 1 - p, test.x[:, 0].double()) for seed in seeds]


def unlabelled(features):
    return replace(features, slice_labels=torch.full_like(features.slice_labels, UNKNOWN))


def test_folds_are_put_together(tmp_path):
    problem = in_folds(toy([4, 5] * 10))
    found = kept_scores(tmp_path / "a.npz", problem, truthful, 2)
    wanted = np.where(problem.test.labels.numpy() == 1, 0.8, 0.1)
    np.testing.assert_array_equal(found.bags, [wanted, 1 - wanted])
    again = kept_scores(tmp_path / "a.npz", problem, lambda *_: pytest.fail("run again"), 2)
    np.testing.assert_array_equal(again.instances, found.instances)


def test_each_network_has_one_seed(tmp_path):
    learn, test = toy([4] * 12), unlabelled(toy([3] * 6, seed=1))
    longer = replace(unlabelled(toy([5] * 6, seed=2)), scans=test.scans)  # another table of the same scans
    problem = Problem(test, [[(learn, test)], [(learn, longer)]])
    found = kept_scores(tmp_path / "a.npz", problem, truthful, 5)
    assert found.bags.shape == (2, 6)
    assert np.isnan(found.instances).all()
    assert found.bags[0, 1] == 0.8
    assert found.bags[1, 1] == pytest.approx(0.2, rel=1e-12)


def test_metrics_are_averaged_over_seeds():
    test = toy([4] * 20)
    test = replace(test, slice_labels=test.slice_labels.clone())
    y = test.labels.numpy()
    right, wrong = np.where(y == 1, 0.8, 0.1), np.where(y == 1, 0.2, 0.9)
    slices = np.tile(test.slice_labels.numpy().astype(float), (2, 1))
    scores = {
        "ours": Scores(np.stack([right, right]), slices, 1.0),
        "other": Scores(np.stack([right, wrong]), -slices, 1.0),
    }
    found = estimates(test, scores, "ours", test.scans)
    good, bad = -(np.log(0.8) + np.log(0.9)) / 2, -(np.log(0.2) + np.log(0.1)) / 2
    assert found["ours"]["scan auc"][0] == 1.0
    assert found["other"]["scan auc"][0] == 0.5
    assert found["other"]["scan auc_less"][0] == -0.5
    assert found["ours"]["scan log_loss"][0] == pytest.approx(good)
    assert found["other"]["scan log_loss_less"][0] == pytest.approx((bad - good) / 2)
    assert found["ours"]["scan log_loss_less"][1].high == 0.0
    assert found["ours"]["inside auc"][0] == 1.0
    assert found["other"]["inside auc"][0] == 0.0
    assert found["other"]["slice auc"][0] == 0.0
    assert found["other"]["inside auc_less"][0] == -1.0
