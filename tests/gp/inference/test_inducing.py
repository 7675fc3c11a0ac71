"""Inducing points: halves by label, distinct, repeatable."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from ich_mil.errors import DataError
from ich_mil.gp.bags import Bags
from ich_mil.gp.inference import inducing
from ich_mil.gp.inference.inducing import choose_inducing, place_points, standardisation
from ich_mil.gp.settings import HeadSettings

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


def test_the_seed_decides_k_means_and_its_sample(monkeypatch):
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bags = Bags(x, torch.tensor([0, 200, 400]), torch.tensor([1, 0]))
    settings = [HeadSettings(n_inducing=12, random_state=seed) for seed in (3, 4)]
    found = [place_points(bags, one).inducing for one in settings]
    standard = ((x - x.mean(0)) / x.std(0, correction=0)).numpy()
    for one, z in zip(settings, found, strict=True):
        kmeans = KMeans(n_clusters=6, n_init=1, random_state=one.random_state).fit(
            np.unique(standard[:200], axis=0)
        )
        np.testing.assert_allclose(z[:6], kmeans.cluster_centers_, rtol=0, atol=1e-12)
    assert float((found[0] - found[1]).abs().max()) > 0.1
    monkeypatch.setattr(inducing, "POINTS_PER_CENTRE", 1)
    seen = [set(place_points(bags, one).inducing[:, 0].tolist()) for one in settings]
    assert len(seen[0] & seen[1]) < 6


@pytest.mark.parametrize("rows", [7, 1000])
def test_standardisation_is_that_of_numpy(rows, monkeypatch):
    monkeypatch.setattr(inducing, "CHUNK", rows)
    x = 1000 + torch.randn(101, 2, generator=torch.Generator().manual_seed(0))
    mean, std = standardisation(x)
    np.testing.assert_allclose(mean, x.double().numpy().mean(0), rtol=1e-14)
    np.testing.assert_allclose(std, x.double().numpy().std(0), rtol=1e-12)
    np.testing.assert_allclose(standardisation(1e-20 * x.double())[1], 1e-20 * std, rtol=1e-9)
    # of 101 such numbers a mean is an ulp away, and so is a deviation from 0
    constant = torch.tensor([0.1, -0.1, 1e8 / 3, 0.0], dtype=torch.float64).expand(101, -1)
    assert standardisation(constant)[1].tolist() == [1, 1, 1, 1]


def test_points_are_standardised_and_sampled(monkeypatch):
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
