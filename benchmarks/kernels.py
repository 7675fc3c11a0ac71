"""Time and memory of the fused ops against plain PyTorch and `torch.compile`, with the project's targets.

    python -m benchmarks.kernels [--write] [--only NAME ...]

Each part checks its op against float64 before timing it in the same process. Without a GPU the plain versions
run at smaller sizes, and targets are "not measured". With --write, sections are appended to RESULTS.md.
"""

import sys
from collections.abc import Callable

from benchmarks.kernels_bags import bag_leave_one_out, bag_samples
from benchmarks.kernels_gram import gram_rows, sweep_rows, whitening
from benchmarks.record import command_line, record, table
from benchmarks.timing import DEVICE, HEAD, copy_bandwidth, float32_rate, machine_name

ROWS: dict[str, Callable[[], list[list[str]]]] = {
    "gram": gram_rows,
    "leave_one_out": bag_leave_one_out,
    "samples": bag_samples,
    "sweep": sweep_rows,
}


def rates() -> str:
    """Peak copy bandwidth and float32 rate of the machine."""
    return (
        f"{machine_name()}: copies {copy_bandwidth() / 1e9:,.0f} GB/s (read and written), float32 products "
        f"{float32_rate() / 1e12:.2g} TFlop/s."
    )


def main() -> None:
    """Run the requested parts."""
    parser = command_line(__doc__)
    names = [*ROWS, "whitening"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    chosen = parser.parse_args()
    rows: list[list[str]] = []
    for name in ROWS:
        if name in chosen.only:
            rows += ROWS[name]()
            # intermediate results survive a failure of a later part
            print(table(HEAD, rows), file=sys.stderr, flush=True)
    command = "python -m benchmarks.kernels --only"
    if rows:
        measured = " ".join(name for name in ROWS if name in chosen.only)
        text = f"{rates()}\n\n{table(HEAD, rows)}"
        record(f"Kernels, on {DEVICE.type}", f"{command} {measured}", text, write=chosen.write)
    if "whitening" in chosen.only:
        title = "Why Φ is made before it is summed"
        record(title, f"{command} whitening", whitening(), write=chosen.write)


if __name__ == "__main__":
    main()
