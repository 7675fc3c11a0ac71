"""Speed and memory of the heads: the grid of 90 fits, and fits at three sizes. Each returns Markdown."""

import subprocess
import sys
from itertools import product

from ich_mil.gp.fit import Job, fit_replicates
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.settings import HeadSettings
from ich_mil.sets.features import FeatureSet
from research.benchmarks.public_features import bags_of, rsna
from research.benchmarks.record import seconds, spread, table


def grid_jobs(features: FeatureSet) -> list[Job]:
    """Jobs of the paper's grid: 3 M x 6 (α, β) x 5 folds."""
    return [
        Job(HeadSettings(density="gamma", n_inducing=m, alpha=a, beta=b), train)
        for train, _ in folds_of(features.labels, features.patients, folds=5, seed=0)
        for m, a, b in product((50, 100, 200), (0.5, 1.0), (1.0, 2.5, 4.0))
    ]


def grid_of_90() -> str:
    """Time of the 90 fits of the grid in one batch and one by one."""
    features = rsna()
    jobs = grid_jobs(features)
    bags = bags_of(features)

    taken: dict[str, list[float]] = {"together": [], "alone": []}
    for _ in range(3):
        taken["together"] += seconds(lambda: list(fit_replicates(bags, jobs)), rounds=1)
        taken["alone"] += seconds(lambda: [list(fit_replicates(bags, [job])) for job in jobs], rounds=1)
    ratio = sorted(taken["alone"])[1] / sorted(taken["together"])[1]
    rows = [[name, spread(values)] for name, values in taken.items()]
    return table(["90 fits", "median (range) of 3"], rows) + f"\n\n{ratio:.2f} x faster together."


def memory() -> str:
    """Memory and time of a fit at three sizes, each in a separate process."""
    rows = []
    for n in (10_000, 100_000, 752_803):
        words = [sys.executable, "-m", "research.benchmarks.heads.memory", str(n)]
        text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        features, peak, took, sweep = (float(word) for word in text.split())
        cells = [f"{features / 1e9:.2f}", f"{peak / 1e9:.2f}", f"{took:.1f}", f"{sweep:.2f}"]
        rows.append([f"{n:,}", *cells, f"{sweep / n * 1e6:.2f}"])
    head = ["N", "features, GB", "peak above imports, GB", "fit of 13 (last: 3) sweeps, s", "s a sweep"]
    return table([*head, "µs a slice and sweep"], rows)
