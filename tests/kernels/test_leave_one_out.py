"""Leave-one-out products and their two solvers against Python loops over bags and instances."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from ich_mil.kernels.leave_one_out import Turns, gauss_seidel, jacobi, leave_one_out, leave_one_out_max
from ich_mil.kernels.segments import bag_index

SIZES = [[1], [2], [37], [1, 5, 1, 200, 3], [57, 24, 1, 1000]]


def case(sizes, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    logits, mu = scale * torch.randn(2, n, generator=generator, dtype=torch.float64)
    pull = 5.0 * torch.where(torch.rand(len(sizes), generator=generator) < 0.5, 1.0, -1.0).double()
    return logits, mu, pull, torch.tensor([0, *sizes]).cumsum(0)


def in_turn(logits, mu, pull, offsets, *, step=gauss_seidel, **how):
    """A sweep of either kind on packed input."""
    turns = Turns(offsets)
    order, bags = turns.order, turns.bag_order
    log_not = logsigmoid(-logits[..., order])
    a, new = step(log_not, mu[..., order], pull[..., bags], turns, **how)
    # below 1e-300 numbers are subnormal and have fewer digits
    torch.testing.assert_close(new, logsigmoid(-a), rtol=1e-13, atol=1e-300)
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
    logits, mu, pull, offsets = case(sizes)
    got = leave_one_out(logsigmoid(-logits), bag_index(offsets), len(sizes))
    # ℓ_b of a bag of 1000 is near -1500: its ulp, 2e-13, is the relative error of the product.
    torch.testing.assert_close(got, loop(logits, offsets), rtol=1e-12, atol=0)
    logits, mu, pull, offsets = case(sizes, scale=1.5)
    for step in (gauss_seidel, jacobi):
        expected = solve_by_loop(logits, mu, pull, offsets, newest=step is gauss_seidel)
        got = in_turn(logits, mu, pull, offsets, step=step)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


def test_exact_where_pi_is_within_1e16_of_1():
    # 1 - π = 1 / (1 + e^37) = 8.5e-17: 1 - π computed from π would be 0 and the others' products 0/0.
    logits = torch.tensor([37.0, 1.0, -2.0, 700.0, 0.5], dtype=torch.float64)
    offsets = torch.tensor([0, 3, 5])
    got = leave_one_out(logsigmoid(-logits), bag_index(offsets), 2)
    torch.testing.assert_close(got, loop(logits, offsets), rtol=1e-12, atol=0)
    assert got[0] == pytest.approx(1 / (1 + math.e) / (1 + math.exp(-2)), rel=1e-13)
    assert 0 < got[1] < 1e-15

    single = torch.tensor([3.0, -900.0, 900.0], dtype=torch.float64)
    assert leave_one_out(logsigmoid(-single), torch.arange(3), 3).tolist() == [1.0, 1.0, 1.0]


def solve_by_loop(logits, mu, pull, offsets, *, newest):
    a = logits.tolist()
    for b, (start, end) in enumerate(pairwise(offsets.tolist())):
        old = list(a)
        for n in range(start, end):
            seen = a if newest else old
            others = math.prod(1 / (1 + math.exp(seen[j])) for j in range(start, end) if j != n)
            a[n] = float(mu[n] + pull[b] * others)
    return torch.tensor(a, dtype=torch.float64)


def sharp(logits, mu, pull, offsets, *, newest):
    """One sweep in 80-bit numbers, bag by bag."""
    old, field = logits.numpy().astype(np.longdouble), mu.numpy().astype(np.longdouble)
    a = old.copy()

    def log_not(x):
        return -np.log1p(np.exp(-np.abs(x))) - np.maximum(x, 0)

    for strength, (start, end) in zip(pull.tolist(), pairwise(offsets.tolist()), strict=True):
        total = log_not(old[start:end]).sum()
        for n in range(start, end):
            others = total - log_not(old[n])
            a[n] = field[n] + strength * np.exp(others)
            total = others + log_not(a[n] if newest else old[n])
    return a


def error(got, expected):
    """The largest difference, in units of what is expected, or of 1 where that is less."""
    return float((np.abs(got.cpu().numpy() - expected) / np.maximum(np.abs(expected), 1)).max())


MANY = [1 + (7 * b) % 5 for b in range(130)]
"""More bags than a program has lanes."""


@pytest.mark.parametrize("step", [gauss_seidel, jacobi])
@pytest.mark.parametrize("scale", [1.5, 1e4])
@pytest.mark.parametrize(
    "sizes", [[1], [1, 5, 1, 24, 3], MANY, pytest.param([24, 1, 1000], marks=pytest.mark.slow)], ids=len
)
def test_the_kernel_is_as_exact_as_the_definition(sizes, scale, step, kernel_device):
    logits, mu, pull, offsets = case(sizes, scale=scale)
    expected = sharp(logits, mu, pull, offsets, newest=step is gauss_seidel)
    there = [part.to(kernel_device) for part in (logits, mu, pull, offsets)]
    by_torch = error(in_turn(logits, mu, pull, offsets, step=step, impl="torch"), expected)
    # 4 ulp: an exp of another library, one ulp apart
    assert error(in_turn(*there, step=step, impl="triton"), expected) <= 2 * by_torch + 4 * 2.0**-52


def packed(sizes, device, replicates=1):
    """Everything `gauss_seidel` takes, in the order of turns."""
    logits, mu, pull, offsets = case(sizes)
    turns = Turns(offsets.to(device))
    more = torch.arange(replicates, dtype=torch.float64)[:, None]
    log_not = logsigmoid(-(logits + more)[:, turns.order.cpu()])
    return log_not.to(device), (mu + more)[:, turns.order.cpu()].to(device), pull.to(device), turns


def test_the_kernel_takes_strided_input_and_replicates(kernel_device, nan_memory):
    log_not, mu, pull, turns = packed([3, 7, 1, 5], kernel_device, replicates=3)

    pull = torch.stack([pull, 2 * pull, -pull])
    a, new = gauss_seidel(log_not, mu, pull, turns, impl="triton")
    assert bool((a.isfinite() & new.isfinite()).all())
    apart = [torch.stack([part, part + 9], -1)[..., 0] for part in (log_not, mu)]
    assert not apart[0].is_contiguous()
    again = gauss_seidel(*apart, pull.mT.contiguous().mT, turns, impl="triton")
    assert torch.equal(again[0], a)
    assert torch.equal(again[1], new)
    for r in range(3):
        (alone, _) = gauss_seidel(log_not[r], mu[r], pull[r], turns, impl="triton")
        assert torch.equal(alone, a[r])
    shared, _ = gauss_seidel(log_not, mu, pull[0], turns, impl="triton")
    assert torch.equal(shared[0], a[0])


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("step", [gauss_seidel, jacobi])
def test_other_bags_change_no_bit(step, impl, kernel_device):
    how = {"step": step, "impl": impl}
    sizes = [7, 5, 1, 9, 5]
    there = kernel_device if impl == "triton" else torch.device("cpu")
    logits, mu, pull, offsets = (part.to(there) for part in case(sizes))
    whole = in_turn(logits, mu, pull, offsets, **how).split(sizes)
    order = [4, 0, 2]
    part = [torch.cat([one.split(sizes)[b] for b in order]) for one in (logits, mu)]
    cut = torch.tensor([0, 5, 12, 13], device=there)
    got = in_turn(*part, pull[order], cut, **how).split([5, 7, 1])
    for b, one in zip(order, got, strict=True):
        assert torch.equal(one, whole[b])
    changed = mu.clone()
    changed[7:12] += 1
    other = in_turn(logits, changed, pull, offsets, **how).split(sizes)
    assert [torch.equal(a, b) for a, b in zip(whole, other, strict=True)] == [True, False, True, True, True]


@pytest.mark.slow
def test_opcheck(kernel_device):
    from ich_mil.kernels.triton.leave_one_out import sweep

    log_not, mu, pull, turns = packed([3, 1, 5], kernel_device, replicates=2)
    torch.library.opcheck(sweep, (log_not, mu, pull.expand(2, -1), turns.starts, turns.sizes, True))


@pytest.mark.parametrize("step", [gauss_seidel, jacobi])
def test_shapes_unlike_the_turns_are_refused(step):
    turns, pull = Turns(torch.tensor([0, 3, 4, 9])), torch.ones(3, dtype=torch.float64)
    values = torch.zeros(2, 9, dtype=torch.float64)
    for log_not, mu in ((values[:, :8], values[:, :8]), (values, values[:1]), (values[:1], values)):
        with pytest.raises(ValueError, match=r"\(..., 9\)"):
            step(log_not, mu, pull, turns, impl="triton")
    with pytest.raises(ValueError, match="bag 1"):
        Turns(torch.tensor([0, 3, 3, 4]))


@pytest.mark.parametrize("sizes", SIZES)
def test_the_order_of_turns_goes_there_and_back(sizes):
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    turns = Turns(offsets)
    rows = torch.arange(sum(sizes))
    assert torch.equal(turns.restore(rows[turns.order]), rows)
    assert torch.equal(turns.bag_order[turns.bags], bag_index(offsets)[turns.order])
    assert (sum(turns.counts), len(turns.counts)) == (sum(sizes), max(sizes))
    assert turns.sizes.tolist() == sorted(sizes, reverse=True)
    blocks = [rows[start : start + count] for start, count in zip(turns.starts, turns.counts, strict=True)]
    assert torch.equal(torch.cat(blocks), rows)


def test_leave_one_out_max_with_ties_and_singles():
    offsets = torch.tensor([0, 4, 5, 8])
    pi = torch.tensor([[0.2, 0.9, 0.4, 0.9, 0.7, 0.1, 0.6, 0.3]], dtype=torch.float64)
    expected = [0.1, 0.1, 0.1, 0.1, 1.0, 0.4, 0.7, 0.4]
    got = leave_one_out_max(pi, bag_index(offsets), 3)
    torch.testing.assert_close(got[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)
