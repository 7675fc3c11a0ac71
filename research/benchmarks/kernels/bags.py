"""Time the ops on bags against eager PyTorch and `torch.compile`, as rows of `timing.HEAD`.

Each op is checked before it is timed. Eager is the usual code without a kernel: for the sweep one vectorised
step per position; for the samples the full (L, N) array of f from `torch.randn`, whose numbers depend on the
batch. Without a GPU the plain versions are timed at smaller sizes.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ich_mil.kernels.bag_samples import Sampled
from ich_mil.kernels.bag_samples import bag_samples as sample_bags
from ich_mil.kernels.counter import normals, scan_key
from ich_mil.kernels.leave_one_out import Turns, gauss_seidel
from ich_mil.kernels.segments import bag_index
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
        return gauss_seidel(log_not, mu, pull, turns, impl="torch")

    def triton() -> tuple[Tensor, Tensor]:
        return gauss_seidel(log_not, mu, pull, turns, impl="triton")

    described = "bag_leave_one_out", f"N={len(mu):,}, bags of 20-60"
    bar = "≥ 60 % of the speed of a copy"
    if DEVICE.type == "cpu":
        return [row(*described, in_turn({"eager": eager}, rounds=ROUNDS), bar=bar)]

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


def bag_samples() -> list[list[str]]:
    """Moments of 490 scans (10 on a CPU) from 1,000 independent samples."""
    n_bags, samples = (490 if DEVICE.type == "cuda" else 10), 1000
    n = 193_317 * n_bags // 490
    generator = torch.Generator().manual_seed(0)
    parts = torch.rand(n_bags, generator=generator) + 0.5
    cuts = (parts.cumsum(0) / parts.sum() * n).round().long()
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), cuts])
    keys = torch.tensor([scan_key(str(b)) for b in range(n_bags)])
    mu = (torch.randn(1, n, generator=generator, dtype=torch.float64) - 2).to(DEVICE)
    sigma = torch.rand(1, n, generator=generator, dtype=torch.float64).to(DEVICE)
    _check_samples(mu, sigma, offsets, keys)
    bags = bag_index(offsets).to(DEVICE)

    def eager() -> tuple[Tensor, ...]:
        f = mu[0] + sigma[0] * torch.randn(samples, n, dtype=mu.dtype, device=DEVICE)  # (L, N)
        total = f.new_zeros(samples, n_bags).index_add(1, bags, softplus(f))  # (L, B)
        return *torch.var_mean(torch.sigmoid(f), 0), *torch.var_mean(-torch.expm1(-total), 0)

    def op() -> Sampled:
        return sample_bags(mu, sigma, offsets, keys, samples=samples, seed=0)

    size, bar = f"N={n:,}, {n_bags} scans, L={samples:,}", "≥ 5 x eager, ≤ 30 ms"
    if DEVICE.type == "cpu":
        found = in_turn({"all at once": eager, "definition": op}, rounds=ROUNDS)
        return [row(f"bag_samples, {name}", size, {"eager": t}, bar=bar) for name, t in found.items()]

    def made(found: Mapping[str, Timing]) -> list[str]:
        times = found["eager"].median / found["triton"].median
        met = times >= 5 and found["triton"].median <= 0.03
        verdict = f"{'yes' if met else 'no'}: {times:.1f} x eager"
        return row("bag_samples", size, found, bar=bar, met=verdict)

    ways: dict[str, Callable[[], object]] = {"eager": eager, "triton": op}
    return [beside_compiled(ways, torch.compile(eager), rounds=ROUNDS, made=made)]


def _check_samples(mu: Tensor, sigma: Tensor, offsets: Tensor, keys: Tensor) -> None:
    """Check the last scan against NumPy, with 130 explicit samples."""
    got = sample_bags(mu, sigma, offsets, keys, samples=130, seed=0)
    rows = slice(int(offsets[-2]), int(offsets[-1]))
    z = normals(0, int(keys[-1]), rows.stop - rows.start, samples=130).numpy()
    p = expit(mu[0, rows].cpu().numpy() + sigma[0, rows].cpu().numpy() * z)
    scan = -np.expm1(np.log1p(-p).sum(1))
    assert np.abs(got.slice_variance[0, rows].cpu().numpy() - p.var(0)).max() < CLOSE
    assert abs(float(got.scan_mean[0, -1]) - scan.mean()) < CLOSE
