"""Quality and speed of the Gaussian-process heads on real features, with the project's targets.

    python -m benchmarks.heads [--write] [--only NAME ...]

Prints a section for each name (default: all), and with --write appends it to RESULTS.md. Timings are
meaningful on an idle machine only; the load is printed with them.
"""

from collections.abc import Callable

from benchmarks.heads.ece import calibration_on_cq500
from benchmarks.heads.learning import learning
from benchmarks.heads.quality import calibrators, cells, families, folds, musk_bags, musk_fixed, presets
from benchmarks.heads.speed import grid_of_90, kernel_learning, memory, precision, sweeps_in_seconds
from benchmarks.record import command_line, record

SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "sweeps": ("50 sweeps, M = 100", sweeps_in_seconds),
    "precision": ("Mixed precision against float64", precision),
    "learning": ("One outer iteration with kernel learning, N = 42,032, M = 100", kernel_learning),
    "grid": ("The 90-fit grid, at once and one by one", grid_of_90),
    "memory": ("Memory and time at D = 128, M = 200", memory),
    "cells": ("The 18 cells of the grid on CQ500, 5 seeds", cells),
    "folds": ("RSNA-150, 5 folds over scans", folds),
    "musk": ("MUSK, 5 x 5 folds, held-out bags, nested choice", musk_bags),
    "musk_fixed": ("MUSK, 5 x 5 folds, held-out bags, one kernel for both", musk_fixed),
    "presets": ("Presets", presets),
    "helps": ("Does learning the kernel help?", learning),
    "families": ("The family", families),
    "calibrators": ("Calibrators", calibrators),
    "ece": ("Calibration error on CQ500 beside logistic regression", calibration_on_cq500),
}


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), metavar="NAME")
    for name in parser.parse_args().only:
        title, work = SECTIONS[name]
        record(title, work())
