"""Measure memory and time of a fit on N random feature vectors, as a process of `research.benchmarks.heads`.

python -m research.benchmarks.heads.memory N
"""

import resource
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch

from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.settings import HeadSettings


def main() -> None:
    """Print four numbers: bytes of X, peak bytes above imports, seconds of a fit and of a sweep."""
    n, d = int(sys.argv[1]), 128
    sweeps = 3 if n > 200_000 else 13
    settings = HeadSettings(n_inducing=200, sweeps=1, tolerance=1e-300)
    # warm-up: starts threads and loads the libraries' lazy parts
    small = torch.randn(2000, d)
    fit(Bags(small, torch.arange(0, 2001, 40), torch.arange(50) % 2), replace(settings, n_inducing=4))
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    sizes = torch.full((n // 35,), 35)
    sizes[-1] += n - int(sizes.sum())
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    labels = torch.arange(len(sizes)) % 2
    started = perf_counter()
    fit(Bags(x, offsets, labels), settings)
    one = perf_counter() - started
    started = perf_counter()
    fit(Bags(x, offsets, labels), replace(settings, sweeps=sweeps))
    many = perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(x.nbytes, peak - before, many, (many - one) / (sweeps - 1))


if __name__ == "__main__":
    main()
