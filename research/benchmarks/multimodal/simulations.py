"""vMMIC on simulated bags: the authors' set, time and memory.

Each function runs a part of `research.benchmarks.multimodal` and records its table.
"""

import resource
import warnings
from collections.abc import Sequence
from time import process_time

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from ich_mil.multimodal import MultimodalMIL
from ich_mil.multimodal.settings import Method
from research.benchmarks.multimodal.baselines import BASELINES, joined
from research.benchmarks.multimodal.simulated import Set, authors_set, oracle, simulate
from research.benchmarks.record import record, table

PPI = (0.35, 0.35)
"""Shares of primary instances in the basic setting (thesis, section 2.3.1), and in the authors' set."""
FAST: tuple[Method, ...] = ("variational", "laplace")


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


def time(replicates: int) -> None:
    """Processor seconds and peak memory up to 16,000 bags of 20."""
    rows: list[Sequence[object]] = []
    test = simulate(1000, 20, 4, PPI, np.random.default_rng(1))
    for n, method in [(n, method) for n in (1000, 4000, 16_000) for method in FAST]:
        model = MultimodalMIL(method=method, tolerance=1e-4)
        taken = fit_seconds(model, simulate(n, 20, 4, PPI, np.random.default_rng(0)))
        aucs = thousandths(predicted(model, test)[:2])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append([f"{n:,}", method, f"{taken:.1f}", len(model.bounds_), f"{peak:.2f}", *aucs])
    truth = scores(test, *oracle(test, PPI, np.random.default_rng(0)))
    rows.append(["true parameters", *["-"] * 4, *thousandths(truth[:2])])
    head = ["n", "method", "processor s", "sweeps", "peak GB of the process", "bag AUC", "instance AUC"]
    text = "m = 20, r = 4, PPI .35, tolerance 1e-4, 8 restarts; peak memory grows over the rows. Above 2,000 "
    text += "bags the sweeps of laplace are over 1,000 of them.\n\n"
    record("vMMIC: time and memory", text + table(head, rows))
