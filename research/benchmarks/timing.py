"""Time calls on the GPU, or on the CPU without a GPU, and format the rows of the table of kernels.

On a GPU, calls are timed by CUDA events after a warm-up, with their peak memory; on a CPU by the wall clock,
without memory. Compared calls run in turn, so that load of the machine affects all of them.
"""

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from time import perf_counter

import torch

from research.benchmarks.record import table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

HEAD = ["op", "size", "machine", "eager", "compiled", "triton", "peak memory", "bar", "met"]
"""Columns of the table. "compiled" is `torch.compile` of "eager"; on a CPU only "eager" is run."""

NO_DEVICE = "not measured: no CUDA device"

WARM_UP = 3

CYCLES = 2_000_000
"""GPU cycles (about 1 ms) to wait before a call, so that the launch time of the host is not counted."""


@dataclass(frozen=True)
class Timing:
    """Median and range in seconds, and largest number of bytes that a call allocated (None on a CPU)."""

    median: float
    low: float
    high: float
    peak: int | None

    def __str__(self) -> str:
        """Median and range in ms or s."""
        unit, factor = ("ms", 1e3) if self.median < 1 else ("s", 1.0)
        low, high = self.low * factor, self.high * factor
        return f"{self.median * factor:.3g} {unit} ({low:.3g}-{high:.3g})"


def once(call: Callable[[], object]) -> tuple[float, int | None]:
    """Seconds, and peak bytes on a GPU, of one call."""
    if DEVICE.type == "cpu":
        started = perf_counter()
        call()
        return perf_counter() - started, None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(CYCLES)
    start.record()
    result = call()
    end.record()
    torch.cuda.synchronize()
    del result
    return start.elapsed_time(end) / 1e3, torch.cuda.max_memory_allocated() - before


def in_turn(calls: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, Timing]:
    """Time `rounds` rounds of all calls in turn, after a warm-up of 3 calls on a GPU, 1 on a CPU."""
    for call in calls.values():
        for _ in range(WARM_UP if DEVICE.type == "cuda" else 1):
            call()
    found: dict[str, list[tuple[float, int | None]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(once(call))
    return {name: summary(values) for name, values in found.items()}


def beside_compiled(
    calls: Mapping[str, Callable[[], object]],
    compiled: Callable[[], object],
    *,
    rounds: int,
    made: Callable[[Mapping[str, Timing]], list[str]],
) -> list[str]:
    """Table row, computed by `made` from the timings of all calls and of "compiled".

    Compilation may outlast the time on the GPU, so the row without "compiled" is printed first.
    """
    print(table(HEAD, [made(in_turn(calls, rounds=rounds))]), file=sys.stderr, flush=True)
    return made(in_turn({**calls, "compiled": compiled}, rounds=rounds))


def summary(values: list[tuple[float, int | None]]) -> Timing:
    """Summarise results of `once`: median, range and peak memory."""
    seconds, peaks = [value[0] for value in values], [value[1] for value in values if value[1] is not None]
    return Timing(statistics.median(seconds), min(seconds), max(seconds), max(peaks, default=None))


def row(op: str, size: str, timings: Mapping[str, Timing], *, bar: str, met: str = NO_DEVICE) -> list[str]:
    """Format a row of the table, from timings of "eager", "compiled" and "triton", as far as run."""
    peaks = [f"{name} {t.peak / 1e6:,.0f} MB" for name, t in timings.items() if t.peak is not None]
    cells = [str(timings[name]) if name in timings else "-" for name in ("eager", "compiled", "triton")]
    return [op, size, machine_name(), *cells, ", ".join(peaks) or "-", bar, met]


@cache
def machine_name() -> str:
    """Name of the GPU, or number of CPU threads."""
    if DEVICE.type == "cuda":
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} threads"


@cache
def copy_bandwidth() -> float:
    """Bytes per second, read plus written, of a copy of 1 GiB (CPU: 256 MiB)."""
    source = torch.ones(2**28 if DEVICE.type == "cuda" else 2**26, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / in_turn({"copy": lambda: target.copy_(source)}, rounds=9)["copy"].median


@cache
def float32_rate() -> float:
    """Floating-point operations per second of a float32 matrix product, without TF32."""
    n = 8192 if DEVICE.type == "cuda" else 2048
    a, b = torch.randn(2, n, n, device=DEVICE)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    rate = 2 * n**3 / in_turn({"product": lambda: a @ b}, rounds=9)["product"].median
    torch.set_float32_matmul_precision(before)
    return rate
