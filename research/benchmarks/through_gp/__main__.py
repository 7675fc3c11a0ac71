"""Freeze then fit, through the Gaussian process, and attention alone: same encoder, folds and budget.

    python -m research.benchmarks.through_gp [--problems CT-ICH block MUSK1 MUSK2 tiger] [--seeds 3] [--write]

Problems are those of `research.benchmarks.field`. Inputs of the encoder are its features: for CT-ICH (with 20
RSNA studies) the 96 of the three bundled networks. In `block` the encoder is the last block of a bundled
network, on the maps of the same scans. A fifth of the training bags stops a fit. Probabilities of
bags are means of samples (attention: its sigmoid), calibrated by a sigmoid that is fitted to the other folds,
for all ways alike; the slope is that before this calibration. AURC: area under the risk-coverage curve
(errors of the call at 50 %) in the order of the standard deviation, less that in the order of |p - 50 %|:
below 0 the deviation finds errors that the probability does not. The head of 'freeze, then fit' has the
kernel of its preset; 'frozen, kernel learned alike' learns kernel and inducing points by the same steps.

Shapes: B bags, N instances, S seeds.
"""

import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from ich_mil.evaluate.bootstrap import patient_bootstrap
from ich_mil.gp.head import Head
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.observations.densities import Density, GammaLogisticTail, Logistic
from ich_mil.gp.sparse_gp import CLIP
from ich_mil.network.frozen import load_cnn
from ich_mil.sets.features import FeatureSet
from research.benchmarks.field.measure import Scores, estimates
from research.benchmarks.field.problems import PROBLEMS, Problem, in_folds, rows_of
from research.benchmarks.record import command_line, record, table, with_interval
from research.benchmarks.through_gp.encoders import BUNDLED, Encoder, Perceptron, UpperBlock, maps_below
from research.benchmarks.through_gp.learn import AttentionMil, fit
from research.benchmarks.through_gp.model import (
    INDUCING,
    Bags,
    ThroughGp,
    effective_rank,
    pack,
)
from research.reproduce.statistics.uncertainty import resampled_aurc

VALIDATION = 5
"""One in so many training bags stops a fit."""
FROZEN, BLOCK = "freeze, then fit", "block"


class Found(NamedTuple):
    """Of the bags of a fold: probability, deviation (B,), slice scores (N,), rank of features, divergence."""

    p: np.ndarray
    std: np.ndarray
    slices: np.ndarray
    rank: float
    diverged: bool = False


def packed(learn: FeatureSet, out: FeatureSet, *, standardise: bool) -> tuple[Bags, Bags]:
    """Training and test bags; `standardise` and clip the inputs by the training bags."""
    mean, std = learn.x.mean(0), learn.x.std(0).clamp(min=1e-6)
    parts = []
    for bags in (learn, out):
        x = ((bags.x - mean) / std).clamp(-CLIP, CLIP) if standardise else bags.x
        parts.append(pack(x.float(), bags.offsets, bags.labels, range(bags.n_scans)))
    return parts[0], parts[1]


def by_head(learn: Bags, out: Bags, encode: Callable[[Tensor], Tensor], seed: int) -> Found:
    """The product's head on frozen features."""
    with torch.no_grad():
        x, new = (encode(bags.x) for bags in (learn, out))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits to few bags
        head = Head(n_inducing=INDUCING, calibration="none", random_state=seed)
        head.fit(x, learn.offsets, learn.labels)
        p, std = head.predict_bag_proba(new, out.offsets, return_std=True)
        slices = np.asarray(head.predict_instance_proba(new, out.offsets))
        return Found(p, std, slices, effective_rank(new))


def run(
    make: Callable[..., Encoder], learn_set: FeatureSet, out_set: FeatureSet, seed: int
) -> dict[str, Found]:
    """All ways on a fold, with encoders `make(hold=...)`."""
    torch.set_num_threads(1)
    initial = make(hold=False).eval()
    learn, out = packed(learn_set, out_set, standardise=initial.standardise)
    (fitting, watching), *_ = folds_of(learn.labels, learn_set.patients, folds=VALIDATION, seed=seed)
    part = pack(learn.x, learn.offsets, learn.labels, fitting)
    watched = pack(learn.x, learn.offsets, learn.labels, watching)
    found = {"no training of the encoder": by_head(learn, out, initial.untrained, seed)}

    torch.manual_seed(seed)
    attention, _ = fit(AttentionMil(make(hold=False)), part, watched, seed=seed)
    with torch.no_grad():
        of_bags, of_slices = attention.eval()(out)
        rank = effective_rank(attention.encoder(out.x))
    p = torch.sigmoid(of_bags).numpy()
    found["attention alone"] = Found(p, np.sqrt(p * (1 - p)), of_slices.numpy(), rank)
    found[FROZEN] = by_head(learn, out, attention.encoder, seed)

    def jointly(density: Density, *, hold: bool, start: Encoder | None = None, frozen: bool = False) -> Found:
        torch.manual_seed(seed)
        encoder = make(hold=hold)
        if start is not None:
            encoder.load_state_dict(start.state_dict())
        encoder.requires_grad_(not frozen)
        renumbered = pack(part.x, part.offsets, part.labels, range(len(part.labels)))
        model = ThroughGp(encoder, renumbered, density=density, hold=hold, seed=seed)
        model, keep = fit(model, renumbered, watched, seed=seed)
        model.every, model.pi = learn, [torch.tensor([])] * len(learn.labels)
        model.settle()
        of_slices, of_bags = model.samples(out)
        rank = effective_rank(model.encoder(out.x).detach())
        std = of_bags.std(0).numpy()
        return Found(of_bags.mean(0).numpy(), std, of_slices.mean(0).numpy(), rank, keep.diverged is not None)

    found["through the GP"] = jointly(Logistic(), hold=True)
    if isinstance(initial, Perceptron):  # with a block each fit takes minutes
        found["through the GP, Gamma"] = jointly(GammaLogisticTail(1.0, 2.5), hold=True)
        found["through the GP, nothing held"] = jointly(Logistic(), hold=False)
    began = attention.encoder
    found["through the GP from the frozen start"] = jointly(Logistic(), hold=False, start=began)
    found["frozen, kernel learned alike"] = jointly(Logistic(), hold=False, start=began, frozen=True)
    return found


def calibrated(p: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Probabilities by a sigmoid of the logit, fitted to the bags of the other folds."""
    logit = np.log(p.clip(1e-6, 1 - 1e-6) / (1 - p).clip(1e-6))[:, None]
    out = np.empty_like(p)
    for fold in np.unique(folds):
        fitted = LogisticRegression(C=1e3).fit(logit[folds != fold], labels[folds != fold])
        out[folds == fold] = fitted.predict_proba(logit[folds == fold])[:, 1]
    return out


def slope(p: np.ndarray, labels: np.ndarray) -> float:
    """Calibration slope of probabilities as they are."""
    logit = np.log(p.clip(1e-6, 1 - 1e-6) / (1 - p).clip(1e-6))[:, None]
    return float(LogisticRegression(C=1e6).fit(logit, labels).coef_[0, 0])


def compare(problem: Problem, make: Callable[..., Encoder], seeds: int, workers: int) -> list[list[object]]:
    """Rows of the table of a problem."""
    ((*parts,),) = problem.parts
    jobs = [(make, learn, out, seed) for seed in range(seeds) for learn, out in parts]
    with ProcessPoolExecutor(workers) as pool:
        all_found = list(pool.map(run, *zip(*jobs, strict=True)))
    labels, patients = problem.test.labels.numpy(), np.asarray(problem.test.patients)
    folds, scores, further = np.empty(len(labels), dtype=int), {}, {}
    for way in all_found[0]:
        p, std = np.empty((2, seeds, len(labels)))
        slices = np.empty((seeds, len(problem.test.x)))
        for number, ((*_, out, seed), found) in enumerate(zip(jobs, all_found, strict=True)):
            bags, rows = rows_of(problem.test, out)
            folds[bags] = number % len(parts)
            p[seed, bags], std[seed, bags] = found[way].p, found[way].std
            slices[seed, rows] = rankdata(found[way].slices) / len(slices[0])
        fair = np.stack([calibrated(row, labels, folds) for row in p])
        wrong = [(row >= 0.5) != labels for row in fair]

        def gain(counts: np.ndarray, fair=fair, wrong=wrong, std=std) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
            each = [
                resampled_aurc(w, s, counts) - resampled_aurc(w, 0.5 - abs(q - 0.5), counts)
                for w, s, q in zip(wrong, std, fair, strict=True)
            ]
            return {"gain": np.mean(each, axis=0)}

        interval = patient_bootstrap(gain, patients, resamples=1000, seed=0)["gain"]
        value = float(gain(np.ones((len(labels), 1)))["gain"][0])
        ranks = [found[way].rank for found in all_found]
        further[way] = (
            f"{np.mean([slope(row, labels) for row in p]):.2f}",
            "" if way == "attention alone" else with_interval(value, (interval.low, interval.high)),
            f"{np.mean(ranks):.1f}",
            sum(found[way].diverged for found in all_found),
        )
        scores[way] = Scores(fair, slices, 0.0)
    measured = estimates(problem.test, scores, FROZEN, list(problem.test.scans))

    def cell(way: str, name: str) -> str:
        if name == "inside auc" and name not in measured[way]:
            return ""  # instances without labels
        value, ends = measured[way][name]
        return with_interval(value, (ends.low, ends.high))

    names = ("scan auc", "scan log_loss", "scan log_loss_less", "inside auc")
    return [[way, *(cell(way, name) for name in names), *further[way]] for way in scores]


def problem_of(name: str) -> tuple[Problem, Callable[..., Encoder]]:
    """Bags of a problem, and what makes encoders of them."""
    if name == BLOCK:
        network = load_cnn(BUNDLED)
        features, shape = maps_below(network)
        return in_folds(features), partial(UpperBlock, network, shape)
    problem = PROBLEMS[name]()
    return problem, partial(Perceptron, problem.test.x.shape[1])


def main() -> None:
    """Compare on each problem."""
    parser = command_line(__doc__)
    names = ["CT-ICH", BLOCK, "MUSK1", "MUSK2", "tiger"]
    parser.add_argument("--problems", nargs="+", choices=names, default=names)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    head = ["way", "AUC", "log-loss", f"less that of '{FROZEN}'", "instances inside", "slope", "AURC"]
    for name in chosen.problems:
        rows = compare(*problem_of(name), chosen.seeds, chosen.jobs)
        text = table([*head, "effective rank", "diverged"], rows)
        record(f"Learning through the Gaussian process: {name}", text)


if __name__ == "__main__":
    main()
