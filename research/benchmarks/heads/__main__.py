"""Quality and speed of the Gaussian-process heads on real features, with the project's targets.

    python -m research.benchmarks.heads [--write] [--only NAME ...]

Prints a section for each name (default: all), and with --write appends it to RESULTS.md. Timings are
meaningful on an idle machine only; the load is printed with them.
"""

from collections.abc import Callable

from research.benchmarks.heads.quality import cells, families, folds, musk_bags
from research.benchmarks.heads.speed import grid_of_90, memory
from research.benchmarks.record import command_line, record

SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "grid": ("The 90-fit grid, at once and one by one", grid_of_90),
    "memory": ("Memory and time at D = 128, M = 200", memory),
    "cells": ("The 18 cells of the grid on CQ500, 5 seeds", cells),
    "folds": ("RSNA-150, 5 folds over scans", folds),
    "musk": ("MUSK, 5 x 5 folds, held-out bags, nested choice", musk_bags),
    "families": ("The family", families),
}


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), metavar="NAME")
    for name in parser.parse_args().only:
        title, work = SECTIONS[name]
        record(title, work())
