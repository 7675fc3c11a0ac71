"""Inducing points: halves by label, distinct, repeatable."""

import pytest
import torch

from ich_mil.errors import DataError
from ich_mil.gp import inducing
from ich_mil.gp.inducing import choose_inducing

PLAIN = {"mean": torch.zeros(()).double(), "std": torch.ones(()).double()}


def test_half_of_the_points_lie_among_each_label():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=generator, dtype=torch.float64)
    offsets, labels = torch.arange(0, 401, 10), torch.arange(40) % 2
    x[torch.repeat_interleave(labels, 10) == 1] += 100
    z = choose_inducing(x, offsets, labels, n_inducing=11, seed=3, **PLAIN)
    assert z.shape == (11, 3)
    assert (z[:, 0] > 50).tolist() == [True] * 6 + [False] * 5
    assert torch.equal(z, choose_inducing(x, offsets, labels, n_inducing=11, seed=3, **PLAIN))
    # k-means centres: each is the mean of the instances nearest to it
    nearest = torch.cdist(x, z).argmin(1)
    means = torch.stack([x[nearest == m].mean(0) for m in range(11)])
    torch.testing.assert_close(z, means, rtol=1e-10, atol=1e-12)


def test_fewer_distinct_instances_than_asked_give_each_once():
    x = torch.tensor([[0.0], [0.0], [1.0], [5.0], [5.0], [5.0]], dtype=torch.float64)
    with pytest.warns(UserWarning, match="distinct slices, too few for") as told:
        z = choose_inducing(x, torch.tensor([0, 3, 6]), torch.tensor([0, 1]), n_inducing=10, seed=0, **PLAIN)
    assert [str(one.message).split(",")[0] for one in told] == [
        "the positive scans have 1 distinct slices",
        "the negative scans have 2 distinct slices",
    ]
    assert z.tolist() == [[5.0], [0.0], [1.0]]


def test_both_labels_are_needed():
    with pytest.raises(DataError, match="no positive scan among the 2 training scans"):
        choose_inducing(
            torch.rand(4, 2), torch.tensor([0, 2, 4]), torch.zeros(2), n_inducing=4, seed=0, **PLAIN
        )
    with pytest.raises(ValueError, match="n_inducing must be at least 2"):
        choose_inducing(
            torch.rand(4, 2), torch.tensor([0, 2, 4]), torch.tensor([0, 1]), n_inducing=1, seed=0, **PLAIN
        )


def test_points_are_standardised_and_a_big_half_is_sampled(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=generator)
    offsets, labels = torch.arange(0, 401, 10), torch.arange(40) % 2
    mean, std = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([2.0, 1.0, 0.5]).double()
    common = {"n_inducing": 4, "seed": 0}
    z = choose_inducing(x, offsets, labels, mean=mean, std=std, **common)
    same = choose_inducing((x.double() - mean) / std, offsets, labels, **PLAIN, **common)
    torch.testing.assert_close(z, same, rtol=1e-12, atol=0)
    monkeypatch.setattr(inducing, "POINTS_PER_CENTRE", 1)  # each of two sampled instances is its own centre
    z = choose_inducing(x, offsets, labels, **PLAIN, **common)
    rows = [int((x.double() == point).all(1).nonzero()[0, 0]) for point in z]
    assert [int(labels[row // 10]) for row in rows] == [1, 1, 0, 0]
