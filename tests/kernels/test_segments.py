"""Segment operations against Python loops, and the choice of an implementation."""

import pytest
import torch

from ich_mil.kernels.implementation import by_triton
from ich_mil.kernels.segments import bag_index, bag_max, bag_softmax, bag_sum, take_bags

SIZES = [[1], [2, 1], [37, 1, 5, 200], [1] * 20]


@pytest.mark.parametrize("sizes", SIZES)
def test_sum_max_and_softmax_equal_a_loop(sizes):
    generator = torch.Generator().manual_seed(0)
    values = 3 * torch.randn(sum(sizes), 2, generator=generator, dtype=torch.float64)
    bags, n = bag_index(torch.tensor([0, *sizes]).cumsum(0)), len(sizes)
    parts = values.split(sizes)
    sums, most = torch.stack([p.sum(0) for p in parts], 1), torch.stack([p.amax(0) for p in parts], 1)
    torch.testing.assert_close(bag_sum(values.mT, bags, n), sums, rtol=1e-13, atol=0)
    assert torch.equal(bag_max(values.mT, bags, n), most)
    expected = torch.cat([p[:, 0].softmax(0) for p in parts])
    torch.testing.assert_close(bag_softmax(values[:, 0], bags, n), expected, rtol=1e-13, atol=0)


def test_bags_are_taken_in_the_order_given():
    rows, offsets = take_bags(torch.tensor([0, 2, 5, 6]), torch.tensor([2, 0, 2]))
    assert (rows.tolist(), offsets.tolist()) == ([5, 0, 1, 5], [0, 1, 3, 4])


def test_softmax_is_exact_for_scores_that_would_overflow():
    scores = torch.tensor([1e4, 1e4 - 1, -1e4, 5.0], dtype=torch.float64)
    weights = bag_softmax(scores, torch.tensor([0, 0, 0, 1]), 2)
    p = 1 / (1 + torch.exp(torch.tensor(-1.0, dtype=torch.float64)))
    expected = torch.stack([p, 1 - p, torch.zeros_like(p), torch.ones_like(p)])
    torch.testing.assert_close(weights, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("offsets", [3, [0], [1, 2], [0, 2, 2], [0, 3, 2], [[0], [2]], [0.0, 2.0]])
def test_bad_offsets_raise(offsets):
    with pytest.raises(ValueError, match=r"offsets must|at least one instance"):
        bag_index(torch.tensor(offsets))


def test_triton_runs_on_gpus_or_on_request():
    choices = [("auto", "cpu"), ("auto", "cuda:1"), ("torch", "cuda"), ("triton", "cpu")]
    found = [by_triton(impl, torch.device(device)) for impl, device in choices]
    assert found == [False, True, False, True]
    with pytest.raises(ValueError, match="'cuda'"):
        by_triton("cuda", torch.device("cuda"))
