"""vMMIC and MICProB: the authors' simulated set, speed, the thesis's grid, one modality, CQ500 with two.

    python -m benchmarks.multimodal [--parts authors,gibbs,coverage,time,grid,single,musk2,cq500]
        [--replicates 5] [--cells 0,1,2] [--write]

The grid (`benchmarks.multimodal_grid`) goes on from the replicates that it has kept. Simulated bags are
those of `benchmarks.multimodal_data`, baselines those of `benchmarks.mil_baselines`. Processor seconds are of
one thread. No bag is scored by a model that has seen it.
"""

import resource
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.mil_baselines import BASELINES, joined
from benchmarks.multimodal_data import (
    FAST,
    INNER,
    OUTER,
    PPI,
    auc,
    auc_of_instances,
    authors_set,
    bag_loss,
    command,
    number,
    oracle,
    simulate,
    timed,
)
from benchmarks.multimodal_grid import GRID, grid
from benchmarks.multimodal_real import musk2, single, two_modalities
from benchmarks.record import command_line, record, table
from ich_mil.multimodal import MultimodalMIL


def authors(replicates: int, write: bool) -> None:
    """One fit a seed, and baselines, on 500 training and 300 test bags."""
    train, test = authors_set()
    rows: list[Sequence[object]] = []
    y = test.labels
    for seed, method in [(s, m) for s in range(replicates) for m in FAST]:
        model = MultimodalMIL(method=method, random_state=seed)
        _, taken = timed(lambda m=model: m.fit(train.X, train.bags, train.labels))  # type: ignore[misc]
        p, plug = model.predict_bag_proba(test.X, test.bags), model.predict_plug_in(test.X, test.bags)
        assert isinstance(p, np.ndarray)
        instances = model.predict_instance_proba(test.X, test.bags)
        assert isinstance(instances, list)
        rows.append(
            [
                f"vMMIC, {method}, seed {seed}",
                auc(y, p),
                number(auc_of_instances(test, instances)),
                number(bag_loss(y, p)),
                f"{roc_auc_score(y, plug):.3f} / {bag_loss(y, plug):.3f}",
                f"{model.bounds_[-1]:.1f}",
                f"{taken:.1f}",
            ]
        )
    p, primary = oracle(test, PPI, np.random.default_rng(0))
    rows.append(
        [
            "true parameters",
            auc(y, p),
            number(auc_of_instances(test, primary)),
            number(bag_loss(y, p)),
        ]
        + ["-"] * 3
    )
    a, b = joined(train.X, train.bags), joined(test.X, test.bags)
    for name, baseline in BASELINES.items():
        score, taken = timed(lambda f=baseline: f(a, train.labels, b))  # type: ignore[misc]
        rows.append([name, auc(y, score), *["-"] * 4, f"{taken:.1f}"])
    head = ["", "bag AUC", "instance AUC", "log-loss", "AUC / log-loss of the plug-in", "bound", "seconds"]
    record("vMMIC on the authors' set", command("authors", replicates), table(head, rows), write=write)


def gibbs(replicates: int, write: bool) -> None:
    """Variational coefficients in deviations of the Gibbs posterior, and what both are worth."""
    rows: list[Sequence[object]] = []
    sets = {"authors' set, n = 500, m = 10": authors_set()}
    rng = np.random.default_rng(0)
    sets["simulated, n = 1,000, m = 10, r = 1"] = (
        simulate(1000, 10, 1, PPI, rng),
        simulate(500, 10, 1, PPI, rng),
    )
    for name, (train, test) in sets.items():
        sampler = MultimodalMIL(method="gibbs", chains=4, burn_in=1000, draws=1000)
        for one in (sampler, MultimodalMIL(method="variational", tolerance=1e-6), MultimodalMIL()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # R-hat stands in the table
                _, taken = timed(lambda m=one, s=train: m.fit(s.X, s.bags, s.labels))  # type: ignore[misc]
            p = one.predict_bag_proba(test.X, test.bags)
            instances = one.predict_instance_proba(test.X, test.bags)
            assert isinstance(p, np.ndarray)
            assert isinstance(instances, list)
            chains = f"R-hat {sampler.r_hat_:.2f}, ESS {sampler.effective_samples_:.0f}"
            rows.append(
                [
                    name,
                    one.method,
                    auc(test.labels, p),
                    number(auc_of_instances(test, instances)),
                    number(bag_loss(test.labels, p)),
                    f"{taken:.0f}",
                    chains if one is sampler else _distance(one, sampler),
                ]
            )
    head = ["", "method", "bag AUC", "instance AUC", "log-loss", "seconds", ""]
    record("vMMIC against Gibbs", command("gibbs", replicates), table(head, rows), write=write)


def _distance(model: MultimodalMIL, sampler: MultimodalMIL) -> str:
    """Differences of means in Gibbs deviations, and ratios of deviations, by tier."""
    parts = []
    for tier in ("primary", "bag"):
        a, b = (one.coef_[one.coef_.tier == tier] for one in (model, sampler))
        shift = (np.abs(a["mean"] - b["mean"]) / b["std"]).median()
        ratio = (a["std"] / b["std"]).median()
        parts.append(f"{tier}: means differ by {shift:.1f} deviations, deviations are {ratio:.2f} of Gibbs's")
    return "; ".join(parts) + " (medians)"


def coverage(replicates: int, write: bool) -> None:
    """Share of 95 % intervals that hold the true coefficient, and the size of the estimates."""
    rows = []
    cases = [(n, method) for n in (500, 1000, 2000) for method in FAST]
    for n, method in cases:
        inside: dict[str, list[float]] = {"primary": [], "bag": []}
        slopes: dict[str, list[float]] = {"primary": [], "bag": []}
        for seed in range(replicates):
            train = simulate(n, 10, 1, PPI, np.random.default_rng(seed))
            coef = MultimodalMIL(method=method, restarts=4, random_state=seed).fit(
                train.X, train.bags, train.labels
            )
            for tier, truths in (("primary", INNER), ("bag", OUTER)):
                for k, truth in enumerate(truths):
                    own = coef.coef_[(coef.coef_.tier == tier) & (coef.coef_.modality == k)]
                    own = own[own.feature != "intercept"]
                    scaled = truth * coef.scalings_[k].deviation.numpy()
                    inside[tier] += ((own.lower < scaled) & (scaled < own.upper)).tolist()
                    slopes[tier].append(float(own["mean"] @ scaled / (scaled @ scaled)))
        rows.append(
            [f"{n:,}", method]
            + [f"{np.mean(inside[tier]):.2f}" for tier in inside]
            + [f"{np.mean(slopes[tier]):.2f}" for tier in slopes]
        )
    head = ["n", "method", "coverage, primary tier", "bag tier", "estimate / truth, primary tier", "bag tier"]
    text = f"{replicates} data sets a row, m = 10, r = 1, PPI .35. Slopes only.\n\n" + table(head, rows)
    record("vMMIC: coverage of 95 % intervals", command("coverage", replicates), text, write=write)


def time(replicates: int, write: bool) -> None:
    """Processor seconds and peak memory up to 16,000 bags of 20."""
    rows: list[Sequence[object]] = []
    test = simulate(1000, 20, 4, PPI, np.random.default_rng(1))
    for n, method in [(n, method) for n in (1000, 4000, 16_000) for method in FAST]:
        train = simulate(n, 20, 4, PPI, np.random.default_rng(0))
        model = MultimodalMIL(method=method, tolerance=1e-4)
        _, taken = timed(lambda m=model, s=train: m.fit(s.X, s.bags, s.labels))  # type: ignore[misc]
        p = model.predict_bag_proba(test.X, test.bags)
        instances = model.predict_instance_proba(test.X, test.bags)
        assert isinstance(p, np.ndarray)
        assert isinstance(instances, list)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append(
            [
                f"{n:,}",
                method,
                f"{taken:.1f}",
                len(model.bounds_),
                f"{peak:.2f}",
                auc(test.labels, p),
                number(auc_of_instances(test, instances)),
            ]
        )
    p, primary = oracle(test, PPI, np.random.default_rng(0))
    rows.append(
        [
            "true parameters",
            *["-"] * 4,
            auc(test.labels, p),
            number(auc_of_instances(test, primary)),
        ]
    )
    head = [
        "n",
        "method",
        "processor s",
        "sweeps over all bags",
        "peak GB of the process",
        "bag AUC",
        "instance AUC",
    ]
    text = "m = 20, r = 4, PPI .35, tolerance 1e-4, 8 restarts; peak memory grows over the rows.\n\n"
    record("vMMIC: time and memory", command("time", replicates), text + table(head, rows), write=write)


PARTS: dict[str, Callable[[int, bool], None]] = {
    "authors": authors,
    "gibbs": gibbs,
    "coverage": coverage,
    "time": time,
    "grid": grid,
    "single": single,
    "musk2": musk2,
    "cq500": two_modalities,
}

if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--cells", help=f"rows of the grid, comma-separated from 0 to {len(GRID) - 1}")
    parser.add_argument("--replicates", type=int, default=5, help="seeds, or simulated data sets")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for chosen_part in arguments.parts.split(","):
        if chosen_part == "grid" and arguments.cells:
            grid(arguments.replicates, arguments.write, [int(c) for c in arguments.cells.split(",")])
        else:
            PARTS[chosen_part](arguments.replicates, arguments.write)
