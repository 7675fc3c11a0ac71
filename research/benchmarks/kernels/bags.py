"""Time a sweep over bags against eager PyTorch and `torch.compile`, as rows of `timing.HEAD`.

The sweep is checked before it is timed. Eager is the usual code without a kernel, one vectorised step per
position. Without a GPU the definition is timed at a smaller size.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ich_mil.kernels.leave_one_out import Turns, gauss_seidel
from ich_mil.kernels.segments import bag_sum
from research.benchmarks.timing import DEVICE, Timing, beside_compiled, copy_bandwidth, in_turn, row

ROUNDS = 20 if DEVICE.type == "cuda" else 5

CLOSE = 1e-9
"""Tolerance of the check before timing; the float64 error is about 1e-13."""


def bag_leave_one_out() -> list[list[str]]:
    """One Gauss-Seidel sweep over bags of 20 to 60 instances."""
    n_bags = 250_000 if DEVICE.type == "cuda" else 25_000
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(20, 61, (n_bags,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    turns = Turns(offsets.to(DEVICE))
    draws = torch.randn(2, int(offsets[-1]), generator=generator, dtype=torch.float64).to(DEVICE)
    log_not, mu = logsigmoid(draws[0]), 3 * draws[1]
    pull = torch.where(torch.rand(n_bags, generator=generator) < 0.5, 4.6, -4.6).to(mu)
    _check_sweep(log_not, mu, pull, turns)

    def eager() -> tuple[Tensor, Tensor]:
        total = bag_sum(log_not, turns.bags, n_bags)
        a, new = torch.empty_like(mu), torch.empty_like(mu)
        start = 0
        for k in turns.counts:
            rows = slice(start, start + k)
            others = total[:k] - log_not[rows]
            a[rows] = mu[rows] + pull[:k] * others.exp()
            new[rows] = logsigmoid(-a[rows])
            total[:k] = others + new[rows]
            start += k
        return a, new

    def definition() -> tuple[Tensor, Tensor]:
        return gauss_seidel(log_not, mu, pull, turns, impl="torch")

    def triton() -> tuple[Tensor, Tensor]:
        return gauss_seidel(log_not, mu, pull, turns, impl="triton")

    described = "bag_leave_one_out", f"N={len(mu):,}, bags of 20-60"
    bar = "≥ 60 % of the speed of a copy"
    if DEVICE.type == "cpu":
        return [row(*described, in_turn({"eager": definition}, rounds=ROUNDS), bar=bar)]

    def made(found: Mapping[str, Timing]) -> list[str]:
        # lower bound of a sweep: two arrays read, two written
        share = 4 * mu.nbytes / found["triton"].median / copy_bandwidth()
        return row(*described, found, bar=bar, met=f"{'yes' if share >= 0.6 else 'no'}: {share:.0%}")

    ways: dict[str, Callable[[], object]] = {"eager": eager, "triton": triton}
    return [beside_compiled(ways, torch.compile(eager), rounds=ROUNDS, made=made)]


def _check_sweep(log_not: Tensor, mu: Tensor, pull: Tensor, turns: Turns) -> None:
    """Check the first and the last bag against a loop over their instances."""
    a, _ = gauss_seidel(log_not, mu, pull, turns)
    for rank in (0, len(turns.sizes) - 1):
        rows = turns.starts[: int(turns.sizes[rank])] + rank
        seen, field, strength = log_not[rows].tolist(), mu[rows].tolist(), float(pull[rank])
        for n, got in enumerate(a[rows].tolist()):
            expected = field[n] + strength * float(np.exp(sum(seen[:n] + seen[n + 1 :])))
            assert abs(got - expected) < CLOSE
            seen[n] = -float(np.logaddexp(0, expected))
