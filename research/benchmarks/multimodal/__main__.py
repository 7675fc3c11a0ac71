"""vMMIC: the authors' simulated set, chains that converge, coverage, calibration, speed.

    python -m research.benchmarks.multimodal [--parts authors,reference,coverage,sbc,time]
        [--replicates 5] [--write]

Bags are simulated by `simulated.py`, baselines are those of `baselines.py`. Processor seconds are of one
thread. No bag is scored by a model that has seen it.
"""

from collections.abc import Callable

import torch

from research.benchmarks.multimodal.simulations import authors, coverage, reference, simulation_based, time
from research.benchmarks.record import command_line

PARTS: dict[str, Callable[[int], None]] = {
    "authors": authors,
    "reference": reference,
    "coverage": coverage,
    "sbc": simulation_based,
    "time": time,
}

if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--replicates", type=int, default=5, help="seeds, or simulated data sets")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for chosen_part in arguments.parts.split(","):
        PARTS[chosen_part](arguments.replicates)
