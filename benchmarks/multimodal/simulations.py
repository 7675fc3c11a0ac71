"""vMMIC on simulated bags: the authors' set, Gibbs sampling, coverage, time, the thesis's grid.

Each function runs a part of `benchmarks.multimodal` and records its table.
"""

import resource
import warnings
from collections.abc import Sequence
from time import process_time
from typing import Literal

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.multimodal.baselines import BASELINES, joined
from benchmarks.multimodal.simulated import INNER, OUTER, Set, authors_set, oracle, simulate
from benchmarks.record import record, table
from ich_mil.multimodal import MultimodalMIL

PPI = (0.35, 0.35)
"""Shares of primary instances in the basic setting (thesis, section 2.3.1), and in the authors' set."""
FAST: tuple[Literal["variational", "laplace"], ...] = ("variational", "laplace")
SLOW = 10_000
"""Training instances beyond which MILES and NSK-SVM are left out."""


def bag_loss(y: np.ndarray, p: np.ndarray) -> float:
    return float(log_loss(y, np.clip(p, 1e-12, 1 - 1e-12)))


def fit_seconds(model: MultimodalMIL, train: Set) -> float:
    """Processor seconds of a fit; R-hat stands in the table, so its warning is not shown."""
    began = process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model.fit(train.X, train.bags, train.labels)
    return process_time() - began


def scores(test: Set, p: object, instances: object) -> list[float]:
    """Bag AUC, AUC of primary instances (both modalities together) and log-loss of bags."""
    bag, primary = np.asarray(p), np.concatenate(list(instances))  # type: ignore[call-overload]
    auc = float(roc_auc_score(np.concatenate(test.primary), primary))
    return [float(roc_auc_score(test.labels, bag)), auc, bag_loss(test.labels, bag)]


def predicted(model: MultimodalMIL, test: Set) -> list[float]:
    """`scores` of a fitted model."""
    p, instances = (
        call(test.X, test.bags) for call in (model.predict_bag_proba, model.predict_instance_proba)
    )
    return scores(test, p, instances)


def thousandths(values: Sequence[float]) -> list[str]:
    return [f"{value:.3f}" for value in values]


def authors(replicates: int) -> None:
    """One fit a seed, and baselines, on 500 training and 300 test bags."""
    train, test = authors_set()
    rows: list[Sequence[object]] = []
    for seed, method in [(s, m) for s in range(replicates) for m in FAST]:
        model = MultimodalMIL(method=method, random_state=seed)
        taken = fit_seconds(model, train)
        plug = model.predict_plug_in(test.X, test.bags)
        of_plug = f"{roc_auc_score(test.labels, plug):.3f} / {bag_loss(test.labels, plug):.3f}"
        cells = [*thousandths(predicted(model, test)), of_plug, f"{model.bounds_[-1]:.1f}", f"{taken:.1f}"]
        rows.append([f"vMMIC, {method}, seed {seed}", *cells])
    truth = scores(test, *oracle(test, PPI, np.random.default_rng(0)))
    rows.append(["true parameters", *thousandths(truth), *["-"] * 3])
    a, b = joined(train.X, train.bags), joined(test.X, test.bags)
    for name, baseline in BASELINES.items():
        began = process_time()
        auc = float(roc_auc_score(test.labels, baseline(a, train.labels, b)))
        rows.append([name, f"{auc:.3f}", *["-"] * 4, f"{process_time() - began:.1f}"])
    head = ["", "bag AUC", "instance AUC", "log-loss", "AUC / log-loss of the plug-in", "bound", "seconds"]
    record("vMMIC on the authors' set", table(head, rows))


def gibbs(replicates: int) -> None:
    """Variational coefficients in deviations of the Gibbs posterior, and the accuracy of both."""
    rng, rows = np.random.default_rng(0), []
    sets = {
        "authors' set, n = 500, m = 10": authors_set(),
        "simulated, n = 1,000, m = 10, r = 1": tuple(simulate(n, 10, 1, PPI, rng) for n in (1000, 500)),
    }
    for name, (train, test) in sets.items():
        sampler = MultimodalMIL(method="gibbs", chains=4, burn_in=1000, draws=1000)
        for one in (sampler, MultimodalMIL(tolerance=1e-6), MultimodalMIL(method="laplace")):
            taken = fit_seconds(one, train)
            chains = f"R-hat {sampler.r_hat_:.2f}, ESS {sampler.effective_samples_:.0f}"
            about = chains if one is sampler else _distance(one, sampler)
            rows.append([name, one.method, *thousandths(predicted(one, test)), f"{taken:.0f}", about])
    head = ["", "method", "bag AUC", "instance AUC", "log-loss", "seconds", ""]
    record("vMMIC against Gibbs", table(head, rows))


def _distance(model: MultimodalMIL, sampler: MultimodalMIL) -> str:
    """Differences of means in Gibbs deviations, and ratios of deviations, by tier."""
    parts = []
    for tier in ("primary", "bag"):
        a, b = (one.coef_[one.coef_.tier == tier] for one in (model, sampler))
        shift = (np.abs(a["mean"] - b["mean"]) / b["std"]).median()
        ratio = (a["std"] / b["std"]).median()
        parts.append(f"{tier}: means differ by {shift:.1f} deviations, deviations are {ratio:.2f} of Gibbs's")
    return "; ".join(parts) + " (medians)"


def coverage(replicates: int) -> None:
    """Share of 95 % intervals that hold the true coefficient, and the size of the estimates."""
    rows = []
    for n, method in [(n, method) for n in (500, 1000, 2000) for method in FAST]:
        inside: dict[str, list[float]] = {"primary": [], "bag": []}
        slopes: dict[str, list[float]] = {"primary": [], "bag": []}
        for seed in range(replicates):
            train = simulate(n, 10, 1, PPI, np.random.default_rng(seed))
            model = MultimodalMIL(method=method, restarts=4, random_state=seed)
            coef = model.fit(train.X, train.bags, train.labels).coef_
            for tier, truths in (("primary", INNER), ("bag", OUTER)):
                for k, truth in enumerate(truths):
                    own = coef[(coef.tier == tier) & (coef.modality == k) & (coef.feature != "intercept")]
                    scaled = truth * model.scalings_[k].deviation.numpy()
                    inside[tier] += ((own.lower < scaled) & (scaled < own.upper)).tolist()
                    slopes[tier].append(float(own["mean"] @ scaled / (scaled @ scaled)))
        means = [f"{np.mean(values):.2f}" for part in (inside, slopes) for values in part.values()]
        rows.append([f"{n:,}", method, *means])
    head = ["n", "method", "coverage, primary tier", "bag tier", "estimate / truth, primary tier", "bag tier"]
    text = f"{replicates} data sets a row, m = 10, r = 1, PPI .35. Slopes only.\n\n"
    record("vMMIC: coverage of 95 % intervals", text + table(head, rows))


def time(replicates: int) -> None:
    """Processor seconds and peak memory up to 16,000 bags of 20."""
    rows: list[Sequence[object]] = []
    test = simulate(1000, 20, 4, PPI, np.random.default_rng(1))
    for n in (1000, 4000, 16_000):
        model = MultimodalMIL(tolerance=1e-4)
        taken = fit_seconds(model, simulate(n, 20, 4, PPI, np.random.default_rng(0)))
        aucs = thousandths(predicted(model, test)[:2])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append([f"{n:,}", f"{taken:.1f}", len(model.bounds_), f"{peak:.2f}", *aucs])
    truth = scores(test, *oracle(test, PPI, np.random.default_rng(0)))
    rows.append(["true parameters", "-", "-", "-", *thousandths(truth[:2])])
    head = ["n", "processor s", "sweeps over all bags", "peak GB of the process", "bag AUC", "instance AUC"]
    text = "m = 20, r = 4, PPI .35, tolerance 1e-4, 8 restarts; peak memory grows over the rows.\n\n"
    record("vMMIC: time and memory", text + table(head, rows))


def grid(replicates: int) -> None:
    """Bag AUC over the thesis's design, one factor varied at a time, beside baselines."""
    basic = {"n": 500, "m": 20, "r": 4.0, "ppi": 0.35}
    varied = {"n": (250, 1000), "m": (10, 30, 40), "r": (1.0, 2.0, 3.0), "ppi": (0.1, 0.6, 0.85)}
    cells = [basic, *(basic | {name: value} for name, values in varied.items() for value in values)]
    shown = ["oracle", "vMMIC", *BASELINES, "instances"]
    rows: list[Sequence[object]] = []
    for cell in cells:
        n, m, r, ppi = int(cell["n"]), int(cell["m"]), float(cell["r"]), (PPI[0], float(cell["ppi"]))
        found: dict[str, list[float]] = {name: [] for name in (*shown, "seconds")}
        for seed in range(replicates):
            rng = np.random.default_rng(seed)
            train, test = (simulate(count, m, r, ppi, rng) for count in (n, 300))
            model = MultimodalMIL(restarts=4, tolerance=1e-4, random_state=seed)
            found["seconds"].append(fit_seconds(model, train))
            bag, instances, _ = predicted(model, test)
            found["vMMIC"].append(bag)
            found["instances"].append(instances)
            found["oracle"].append(float(roc_auc_score(test.labels, oracle(test, ppi, rng)[0])))
            a, b = joined(train.X, train.bags), joined(test.X, test.bags)
            for name, baseline in BASELINES.items():
                if name not in ("MILES", "NSK-SVM") or n * m <= SLOW:
                    found[name].append(float(roc_auc_score(test.labels, baseline(a, train.labels, b))))
        means = [f"{np.mean(found[name]):.3f}" if found[name] else "-" for name in shown]
        rows.append([n, m, f"{r:.0f}", ppi[1], *means, f"{np.mean(found['seconds']):.1f}"])
        print(rows[-1], flush=True)
    head = ["n", "m", "r", "PPI₁", *shown[:-1], "vMMIC, instances", "vMMIC, s"]
    text = f"Means of {replicates} replicates, 300 test bags each; 4 restarts, tolerance 1e-4.\n\n"
    record("vMMIC: the thesis's grid", text + table(head, rows))
