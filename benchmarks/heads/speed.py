"""Speed of the heads on the CPU: sweeps, precision, kernel learning, the 90-fit grid, memory.

Each function returns Markdown. Compared variants run in turn in one process; medians and ranges are reported.
"""

import statistics
import subprocess
import sys
from functools import partial
from itertools import product
from time import perf_counter
from typing import Literal

import torch

from benchmarks.heads.textbook import sweeps
from benchmarks.public_features import bags_of, copies, rsna
from benchmarks.record import seconds, spread, table
from ich_mil.data.features import FeatureSet
from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import Job, fit, fit_many
from ich_mil.gp.inference.ascent import PATIENCE, Limits, Watched, ascend
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.inference.hyperparameters import learn_hyperparameters
from ich_mil.gp.inference.inducing import choose_inducing, standardisation
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.inference.weights import Weights
from ich_mil.gp.observations.vgpmil import PsiObservation
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.leave_one_out import Turns

NEVER = 1e-300
"""Tolerance that is never reached, so that all sweeps are run."""

ROUNDS = 5

KINDS: tuple[Literal["double", "mixed"], ...] = ("double", "mixed")


class Prepared:
    """State of a fit before its first sweep: model and Φ."""

    def __init__(self, data: Bags, settings: HeadSettings) -> None:
        self.data, self.settings = data, settings
        mean, std = standardisation(data.x)
        z = choose_inducing(
            data.x, data.offsets, data.truth, mean=mean, std=std, n_inducing=settings.n_inducing, seed=0
        )
        self.model = SparseGP(z, mean, std, settings).eval()
        self.turns = Turns(data.offsets)
        dtype = torch.float32 if settings.precision == "mixed" else torch.float64
        self.projection = Projection(self.model, data.x, rows=self.turns.order, dtype=dtype, compress=True)

    def ascend(self) -> tuple[Weights, PsiObservation]:
        """Run all sweeps."""
        s = self.settings
        log_h = torch.tensor([s.variant.log_h], dtype=torch.float64)
        labels = self.data.truth[self.turns.bag_order]
        observation = PsiObservation([s.make_density()], log_h, labels, self.turns, s.variant)
        limits = Limits(s.sweeps, PATIENCE, NEVER, s.variant.rule, s.link)
        training = Watched(self.projection, self.data.offsets, self.data.truth, self.turns)
        start = Weights.prior(1, self.projection.shape[1], like=self.model.x_mean)
        ((weights, report),) = ascend(self.projection, observation, start, limits=limits, training=training)
        assert len(report.elbo) == s.sweeps
        return weights.beyond(self.projection.basis), observation


def sweeps_in_seconds() -> str:
    """Time of 50 sweeps in both precisions at two length scales, and of the textbook version with loops."""
    features = rsna()
    rows = []
    for times in (1, 8):
        data = copies(features, times)
        d = data.x.shape[1]
        runs = {}
        for length, kind in product((16, 1), KINDS):
            settings = HeadSettings(precision=kind, lengthscale_squared=float(length * d))
            runs[f"{kind}, ℓ = {length} D"] = Prepared(data, settings)
        first = next(iter(runs.values()))
        z, log_h = first.model.inducing, first.settings.variant.log_h
        bags = (first.model.standardise(data.x), data.offsets, data.truth, z)
        plain = partial(sweeps, *bags, length=16.0 * d, log_h=log_h, count=1)
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run.ascend()
        for _ in range(ROUNDS):
            for name, run in runs.items():
                taken[name] += seconds(run.ascend, rounds=1)
        taken["loops and inverses (one sweep x 50)"] = [50 * t for t in seconds(plain, rounds=2)]
        slowest = min(taken["loops and inverses (one sweep x 50)"])
        for name, values in taken.items():
            kept = runs[name].projection.shape[1] if name in runs else len(z)
            faster = f"{slowest / statistics.median(values):.0f} x"
            rows.append([f"{len(data.x):,}", name, kept, spread(values), faster])
        whole = partial(fit, data, HeadSettings())
        name = "a whole `fit`, k-means and Φ included"
        rows.append([f"{len(data.x):,}", name, "", spread(seconds(whole, rounds=3)), ""])
    head = ["N", "50 sweeps", "directions", "median (range)", "faster than loops"]
    return table(head, rows)


def precision() -> str:
    """Largest difference between mixed precision and float64 in the posterior mean of a slice."""
    rows = []
    for times in (1, 8):
        data = copies(rsna(), times)
        for density in ("logistic", "gamma"):
            means = []
            for kind in KINDS:
                run = Prepared(data, HeadSettings(precision=kind, density=density))
                weights, _ = run.ascend()
                means.append(Projection(run.model, data.x).moments(weights.mean, weights.root)[0])
            apart = float((means[1] - means[0]).abs().max())
            rows.append([f"{len(data.x):,}", density, f"{apart:.1e}", f"{float(means[0].abs().max()):.1f}"])
    return table(["N", "density", "largest difference of μ after 50 sweeps", "largest absolute μ"], rows)


def kernel_learning() -> str:
    """Time of a sweep and a maximisation over the kernel hyperparameters."""
    settings = HeadSettings(learn="kernel", sweeps=1, lengthscale_squared=8.0)
    data = copies(rsna(), 8)
    taken, lengths = [], []
    for _ in range(ROUNDS):
        run = Prepared(data, settings)
        started = perf_counter()
        weights, observation = run.ascend()
        target, density = observation.target()[0], settings.make_density()
        learn_hyperparameters(run.model, data.x, run.turns.order, weights, target, density)
        taken.append(perf_counter() - started)
        kernel = run.model.covar_module
        lengths.append((float(kernel.outputscale), float(kernel.base_kernel.lengthscale) ** 2))
    v, length = lengths[0]
    return f"One sweep and one maximisation: {spread(taken)}. v = 0.5, ℓ = 8 become {v:.3f}, {length:.2f}."


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
        taken["together"] += seconds(lambda: list(fit_many(bags, jobs)), rounds=1)
        taken["alone"] += seconds(lambda: [list(fit_many(bags, [job])) for job in jobs], rounds=1)
    ratio = sorted(taken["alone"])[1] / sorted(taken["together"])[1]
    rows = [[name, spread(values)] for name, values in taken.items()]
    return table(["90 fits", "median (range) of 3"], rows) + f"\n\n{ratio:.2f} x faster together."


def memory() -> str:
    """Memory and time of a fit at three sizes, each in a separate process."""
    rows = []
    for n in (10_000, 100_000, 752_803):
        words = [sys.executable, "-m", "benchmarks.heads.memory", str(n)]
        text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        features, peak, took, sweep = (float(word) for word in text.split())
        cells = [f"{features / 1e9:.2f}", f"{peak / 1e9:.2f}", f"{took:.1f}", f"{sweep:.2f}"]
        rows.append([f"{n:,}", *cells, f"{sweep / n * 1e6:.2f}"])
    head = ["N", "features, GB", "peak above imports, GB", "fit of 13 (last: 3) sweeps, s", "s a sweep"]
    return table([*head, "µs a slice and sweep"], rows)
