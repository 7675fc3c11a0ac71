"""Leave-one-out products and their two solvers against Python loops over bags and instances."""

import math
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import logsigmoid

import ich_mil.kernels.leave_one_out as module
from ich_mil.kernels.leave_one_out import Turns, gauss_seidel, jacobi, leave_one_out, leave_one_out_max
from ich_mil.kernels.segments import bag_index

SIZES = [[1], [2], [37], [1, 5, 1, 200, 3], [57, 24, 1, 1000]]


def case(sizes, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    logits, mu = scale * torch.randn(2, n, generator=generator, dtype=torch.float64)
    pull = 5.0 * torch.where(torch.rand(len(sizes), generator=generator) < 0.5, 1.0, -1.0).double()
    return logits, mu, pull, torch.tensor([0, *sizes]).cumsum(0)


def in_turn(logits, mu, pull, offsets):
    """`gauss_seidel` on packed input."""
    turns = Turns(offsets)
    order, bags = turns.order, turns.bag_order
    log_not = logsigmoid(-logits[..., order])
    a, new = gauss_seidel(log_not, mu[..., order], pull[..., bags], turns)
    torch.testing.assert_close(new, logsigmoid(-a), rtol=1e-13, atol=0)
    return turns.restore(a)


def loop(logits, offsets):
    """Π_{j≠n} (1 - π_j), each factor 1 / (1 + e^a), multiplied one by one."""
    out = []
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        factors = [1 / (1 + math.exp(a)) for a in logits[start:end].tolist()]
        out += [math.prod(factors[:n] + factors[n + 1 :]) for n in range(end - start)]
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("sizes", SIZES)
def test_equals_a_loop(sizes):
    logits, _, _, offsets = case(sizes)
    got = leave_one_out(logsigmoid(-logits), bag_index(offsets), len(sizes))
    # ℓ_b of a bag of 1000 is near -1500: its ulp, 2e-13, is the relative error of the product.
    torch.testing.assert_close(got, loop(logits, offsets), rtol=1e-12, atol=0)


def test_exact_where_pi_is_within_1e16_of_1():
    # 1 - π = 1 / (1 + e^37) = 8.5e-17: 1 - π computed from π would be 0 and the others' products 0/0.
    logits = torch.tensor([37.0, 1.0, -2.0, 700.0, 0.5], dtype=torch.float64)
    offsets = torch.tensor([0, 3, 5])
    got = leave_one_out(logsigmoid(-logits), bag_index(offsets), 2)
    torch.testing.assert_close(got, loop(logits, offsets), rtol=1e-12, atol=0)
    assert got[0] == pytest.approx(1 / (1 + math.e) / (1 + math.exp(-2)), rel=1e-13)
    assert 0 < got[1] < 1e-15


def test_a_bag_of_one_sees_nobody():
    logits = torch.tensor([3.0, -900.0, 900.0], dtype=torch.float64)
    assert leave_one_out(logsigmoid(-logits), torch.arange(3), 3).tolist() == [1.0, 1.0, 1.0]


def test_permuting_instances_permutes_and_other_bags_stay():
    sizes = [37, 5, 1, 60]
    logits, _, _, offsets = case(sizes)
    bags = bag_index(offsets)
    got = leave_one_out(logsigmoid(-logits), bags, 4)
    order = torch.cat([torch.randperm(37, generator=torch.Generator().manual_seed(1)), torch.arange(37, 103)])
    permuted = leave_one_out(logsigmoid(-logits[order]), bags, 4)
    torch.testing.assert_close(permuted, got[order], rtol=1e-12, atol=0)
    assert torch.equal(permuted[37:], got[37:])
    changed = logits.clone()
    changed[37:42] += 1
    assert torch.equal(leave_one_out(logsigmoid(-changed), bags, 4)[bags != 1], got[bags != 1])


def solve_by_loop(logits, mu, pull, offsets, *, newest):
    a = logits.tolist()
    for b, (start, end) in enumerate(pairwise(offsets.tolist())):
        old = list(a)
        for n in range(start, end):
            seen = a if newest else old
            others = math.prod(1 / (1 + math.exp(seen[j])) for j in range(start, end) if j != n)
            a[n] = float(mu[n] + pull[b] * others)
    return torch.tensor(a, dtype=torch.float64)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("newest", [True, False], ids=["gauss_seidel", "jacobi"])
def test_solvers_equal_a_loop(sizes, newest):
    logits, mu, pull, offsets = case(sizes, scale=1.5)
    if newest:
        got = in_turn(logits, mu, pull, offsets)
    else:
        got = jacobi(logits, mu, pull, bag_index(offsets), len(sizes))
    torch.testing.assert_close(
        got, solve_by_loop(logits, mu, pull, offsets, newest=newest), rtol=1e-12, atol=0
    )


def test_gauss_seidel_takes_replicates_and_keeps_other_bags():
    logits, mu, pull, offsets = case([3, 9, 1])
    both = in_turn(torch.stack([logits, -logits]), torch.stack([mu, mu + 1]), pull, offsets)
    torch.testing.assert_close(both[1], in_turn(-logits, mu + 1, pull, offsets), rtol=1e-14, atol=0)
    changed = mu.clone()
    changed[:3] += 1
    assert torch.equal(in_turn(logits, changed, pull, offsets)[3:], in_turn(logits, mu, pull, offsets)[3:])


@pytest.mark.parametrize("sizes", SIZES)
def test_the_torch_loop_of_other_devices_is_the_numpy_one(sizes, monkeypatch):
    logits, mu, pull, offsets = case(sizes)
    expected = in_turn(logits, mu, pull, offsets)
    monkeypatch.setattr(module, "CPU", "another device")
    torch.testing.assert_close(in_turn(logits, mu, pull, offsets), expected, rtol=1e-12, atol=1e-13)


def test_jacobi_oscillates_where_gauss_seidel_settles():
    # Two equal slices of a positive bag at π = ½ with strong evidence: side by side they flip together.
    offsets, zero, pull = torch.tensor([0, 2]), torch.zeros(2).double(), torch.full((1,), 20.0).double()
    mu = torch.full((2,), -5.0).double()
    a = b = zero
    for _ in range(50):
        a, b = jacobi(a, mu, pull, torch.zeros(2, dtype=torch.int64), 1), in_turn(b, mu, pull, offsets)
    again = jacobi(a, mu, pull, torch.zeros(2, dtype=torch.int64), 1)
    assert float((again - a).abs().min()) > 10
    torch.testing.assert_close(in_turn(b, mu, pull, offsets), b, rtol=1e-12, atol=0)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_order_of_turns_goes_there_and_back(sizes):
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    turns = Turns(offsets)
    rows = torch.arange(sum(sizes))
    assert torch.equal(turns.restore(rows[turns.order]), rows)
    assert torch.equal(turns.bag_order[turns.bags], bag_index(offsets)[turns.order])
    assert sum(turns.counts) == sum(sizes)
    assert len(turns.counts) == max(sizes)


def test_leave_one_out_max_equals_a_loop_with_ties_and_a_bag_of_one():
    offsets = torch.tensor([0, 4, 5, 8])
    pi = torch.tensor([[0.2, 0.9, 0.4, 0.9, 0.7, 0.1, 0.6, 0.3]], dtype=torch.float64)
    expected = [0.1, 0.1, 0.1, 0.1, 1.0, 0.4, 0.7, 0.4]
    got = leave_one_out_max(pi, bag_index(offsets), 3)
    torch.testing.assert_close(got[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)
