"""vMMIC on simulated bags: authors' set, chains that converge, coverage, calibration, time and memory.

Each function runs a part of `research.benchmarks.multimodal` and records its table.
"""

import resource
import warnings
from collections.abc import Sequence
from time import monotonic, process_time

import numpy as np
from scipy.special import ndtr
from scipy.stats import chisquare
from sklearn.metrics import log_loss, roc_auc_score

from ich_mil.convergence import bulk_ess, r_hat
from ich_mil.multimodal import MultimodalMIL
from ich_mil.multimodal.settings import Prior
from research.benchmarks.multimodal.baselines import BASELINES, joined
from research.benchmarks.multimodal.simulated import INNER, OUTER, Set, authors_set, oracle, simulate
from research.benchmarks.record import record, table

PPI = (0.35, 0.35)
"""Shares of primary instances in the basic setting (thesis, section 2.3.1), and in the authors' set."""
PRIORS: tuple[Prior, ...] = ("learned", "thesis")


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
    for seed, prior in [(s, prior) for s in range(replicates) for prior in PRIORS]:
        model = MultimodalMIL(prior=prior, random_state=seed)
        taken = fit_seconds(model, train)
        plug = model.predict_plug_in(test.X, test.bags)
        of_plug = f"{roc_auc_score(test.labels, plug):.3f} / {bag_loss(test.labels, plug):.3f}"
        told = [f"{model.acceptance_:.2f}", f"{taken:.1f}"]
        rows.append(
            [f"vMMIC, prior {prior}, seed {seed}", *thousandths(predicted(model, test)), of_plug, *told]
        )
    truth = scores(test, *oracle(test, PPI, np.random.default_rng(0)))
    rows.append(["true parameters", *thousandths(truth), *["-"] * 3])
    a, b = joined(train.X, train.bags), joined(test.X, test.bags)
    for name, baseline in BASELINES.items():
        began = process_time()
        auc = float(roc_auc_score(test.labels, baseline(a, train.labels, b)))
        rows.append([name, f"{auc:.3f}", *["-"] * 4, f"{process_time() - began:.1f}"])
    head = ["", "bag AUC", "instance AUC", "log-loss", "AUC / log-loss of the plug-in", "accepted", "seconds"]
    record("vMMIC on the authors' set", table(head, rows))


def reference(_: int) -> None:
    """Chains that converge and the default on the authors' set: time, and how far they are apart."""
    train, test = authors_set()
    rows: list[Sequence[object]] = []
    tables = []
    for model in (MultimodalMIL(gradients=240_000), MultimodalMIL()):
        began, taken = monotonic(), fit_seconds(model, train)
        told = [f"{float(r_hat(model.chains_).max()):.3f}", f"{float(bulk_ess(model.chains_).min()):.0f}"]
        cells = [*thousandths(predicted(model, test)), *told, f"{taken:.0f}", f"{monotonic() - began:.0f}"]
        rows.append([f"{model.gradients:,}", *cells])
        tables.append(model.coef_)
    exact, fast = tables
    apart = ((fast["mean"] - exact["mean"]).abs() / exact["std"]).median()
    ratio = (fast["std"] / exact["std"]).median()
    text = f"Medians over coefficients: means {apart:.2f} deviations apart, deviations {ratio:.2f} of those "
    text += "of the chains that converge.\n\n"
    head = ["gradients", "bag AUC", "instance AUC", "log-loss", "R-hat", "ESS", "processor s", "clock s"]
    record("vMMIC: chains that converge, and the default", text + table(head, rows))


def coverage(replicates: int) -> None:
    """Share of true slopes in their 95 % intervals, and slopes against the truth, over simulated sets."""
    rows: list[Sequence[object]] = []
    truth = {"primary": np.concatenate(INNER), "bag": np.concatenate(OUTER)}
    for n in (500, 2000):
        inside: dict[str, list[float]] = {tier: [] for tier in truth}
        ratio: dict[str, list[float]] = {tier: [] for tier in truth}
        seconds = []
        for seed in range(replicates):
            train, model = (
                simulate(n, 10, 1, PPI, np.random.default_rng(seed)),
                MultimodalMIL(random_state=seed),
            )
            seconds.append(fit_seconds(model, train))
            for tier, wanted in truth.items():
                slopes = model.coef_[(model.coef_.tier == tier) & (model.coef_.feature != "intercept")]
                true = wanted * np.concatenate([s.deviation.numpy() for s in model.scalings_])
                inside[tier].append(float(((slopes.lower <= true) & (true <= slopes.upper)).mean()))
                ratio[tier].append(float(true @ slopes["mean"] / (true @ true)))
            print(
                n, seed, {tier: (inside[tier][-1], round(ratio[tier][-1], 2)) for tier in truth}, flush=True
            )
        cells = [f"{np.mean(inside[tier]):.3f}" for tier in truth]
        cells += [f"{np.mean(ratio[tier]):.2f} ± {np.std(ratio[tier]):.2f}" for tier in truth]
        rows.append([f"{n:,}", *cells, f"{np.mean(seconds):.1f}"])
    head = [
        "n",
        "coverage, primary tier",
        "bag tier",
        "estimate / truth, primary tier",
        "bag tier",
        "processor s",
    ]
    text = f"{replicates} data sets a row, m = 10, r = 1, PPI .35. Slopes; ratio by regression through 0.\n\n"
    record("vMMIC: coverage of 95 % intervals", text + table(head, rows))


def simulation_based(replicates: int) -> None:
    """Ranks of coefficients drawn from the prior among draws of their posterior (Talts et al. 2018)."""
    bags, size, width, bins = 100, 5, 2, 10
    counts = np.zeros((2, bins), int)
    for seed in range(replicates):
        rng = np.random.default_rng(seed)
        scales = np.abs(rng.standard_normal(2))
        inner = np.r_[4 * rng.standard_normal(), scales[0] * rng.standard_normal(width)]
        outer = np.r_[4 * rng.standard_normal(), scales[1] * rng.standard_normal(width)]
        x = rng.standard_normal((bags * size, width))
        x = (x - x.mean(0)) / x.std(0)
        owner = np.repeat(np.arange(bags), size)
        delta = rng.random(len(x)) < ndtr(inner[0] + x @ inner[1:])
        y = rng.random(bags) < ndtr(outer[0] + np.bincount(owner, delta * (x @ outer[1:])))
        if y.all() or not y.any():
            continue  # no fit; a part of the prior is left out
        model = MultimodalMIL(random_state=seed)
        fit_seconds(model, Set([x], [owner], y.astype(int), [delta]))
        draws = [model.posterior_.inner[0].numpy()[:, 1:], model.posterior_.outer.numpy()[:, 1:]]
        for tier, (of_tier, true) in enumerate(zip(draws, (inner[1:], outer[1:]), strict=True)):
            ranks = ((of_tier < true).mean(0) * bins).astype(int).clip(max=bins - 1)
            np.add.at(counts[tier], ranks, 1)
    rows = [
        [tier, " ".join(map(str, row)), f"{chisquare(row).pvalue:.3f}"]
        for tier, row in zip(("primary", "bag"), counts, strict=True)
    ]
    text = f"{replicates} draws of the prior, {bags} bags of {size}, {width} columns; ranks of slopes.\n\n"
    head = ["tier", "true slopes in tenths of their posterior", "p (χ², uniform)"]
    record("vMMIC: simulation-based calibration", text + table(head, rows))


def time(_: int) -> None:
    """Processor seconds and peak memory up to 16,000 bags of 20."""
    rows: list[Sequence[object]] = []
    test = simulate(1000, 20, 4, PPI, np.random.default_rng(1))
    for n in (1000, 4000, 16_000):
        model = MultimodalMIL()
        taken = fit_seconds(model, simulate(n, 20, 4, PPI, np.random.default_rng(0)))
        aucs = thousandths(predicted(model, test)[:2])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        rows.append(
            [f"{n:,}", f"{taken:.1f}", "chains" if model.acceptance_ else "normal", f"{peak:.2f}", *aucs]
        )
    truth = scores(test, *oracle(test, PPI, np.random.default_rng(0)))
    rows.append(["true parameters", *["-"] * 3, *thousandths(truth[:2])])
    head = ["n", "processor s", "draws of", "peak GB of the process", "bag AUC", "instance AUC"]
    text = "m = 20, r = 4, PPI .35; peak memory grows over the rows.\n\n"
    record("vMMIC: time and memory", text + table(head, rows))
