"""Time and memory of the fused ops against plain PyTorch and `torch.compile`, with the project's targets.

    python -m research.benchmarks.kernels [--write] [--only NAME ...]

Each part checks its op against float64 before timing it in the same process. Without a GPU the plain versions
run at smaller sizes, and targets are "not measured". With --write, sections are appended to RESULTS.md.
"""

import sys
from collections.abc import Callable

from research.benchmarks.kernels.bags import bag_leave_one_out
from research.benchmarks.kernels.gram import gram_rows, sweep_rows
from research.benchmarks.record import command_line, record, table
from research.benchmarks.timing import DEVICE, HEAD, copy_bandwidth, float32_rate, machine_name

ROWS: dict[str, Callable[[], list[list[str]]]] = {
    "gram": gram_rows,
    "leave_one_out": bag_leave_one_out,
    "sweep": sweep_rows,
}


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="NAME")
    rows: list[list[str]] = []
    for name in parser.parse_args().only:
        rows += ROWS[name]()
        # intermediate results survive a failure of a later part
        print(table(HEAD, rows), file=sys.stderr, flush=True)
    rates = f"copies {copy_bandwidth() / 1e9:,.0f} GB/s (read and written), float32 products "
    rates += f"{float32_rate() / 1e12:.2g} TFlop/s."
    record(f"Kernels, on {DEVICE.type}", f"{machine_name()}: {rates}\n\n{table(HEAD, rows)}")
