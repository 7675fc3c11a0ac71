"""One rule for all models: hyper-parameters and calibration by the same inner folds of the training bags.

In: training bags, test bags, seeds. Out: for each seed calibrated probabilities of the test bags, and scores
of their instances. Every candidate is fitted without each inner fold; the candidate with the lowest log-loss
of the held-out bags, after Platt scaling, is fitted to all training bags and calibrated by the same held-out
logits (as `CalibratedClassifierCV(ensemble=False)` of scikit-learn).

Shapes: B training bags, T test bags, N test instances.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ich_mil.gp.bags import check_both_labels
from ich_mil.gp.calibration import platt, smoothed_targets
from ich_mil.gp.inference.folds import Fold, folds_of
from ich_mil.sets.features import FeatureSet
from research.benchmarks.public_features import bags_of

INNER = 3
"""Number of inner folds."""


class Scored(NamedTuple):
    """Calibrated probability of each test bag (T,), and score of each test instance (N,), both float64."""

    bags: Tensor
    instances: Tensor


Method = Callable[[FeatureSet, FeatureSet, Sequence[int]], list[Scored]]
"""Tune, fit and calibrate on training bags, then score test bags: one result for each seed."""

Predict = Callable[[FeatureSet], tuple[Tensor, Tensor]]
"""Logits of bags and scores of instances by a fitted model."""

Fit = Callable[[FeatureSet, Any, int], Predict]
"""Fit a model to bags with a candidate of its grid and a seed."""


def inner_folds(train: FeatureSet) -> list[Fold]:
    """The inner folds, by patient. `DataError`: a label is missing or has too few patients."""
    check_both_labels(bags_of(train), "training scans")
    return folds_of(train.labels, train.patients, folds=INNER, seed=0)


def held_out_loss(logits: Tensor, labels: Tensor) -> float:
    """Log-loss of held-out logits (B,) after Platt scaling; that of the prevalence if they rank wrongly."""
    slope, intercept, _ = platt(logits, labels)
    target = smoothed_targets(labels)
    z = slope * logits.double() + intercept if slope > 0 else torch.logit(target.mean()).expand(len(labels))
    return float((softplus(z) - target * z).mean())


def calibrated(held_out: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
    """Probabilities of test logits (T,) by Platt scaling of held-out logits (B,) and labels (B,).

    If the held-out logits rank the bags wrongly, every probability is the prevalence of the training bags.
    """
    slope, intercept, _ = platt(held_out, labels)
    if slope <= 0:
        return labels.double().mean().expand(len(logits)).clone()
    return torch.sigmoid(slope * logits.double() + intercept)


def by_grid(fit: Fit, grid: Sequence[Any], *, random: bool = True) -> Method:
    """Method of a model that is fitted one candidate at a time.

    Args:
        fit: the model.
        grid: its candidates.
        random: whether the seed changes the fit; if not, one result serves for all seeds.
    """

    def method(train: FeatureSet, test: FeatureSet, seeds: Sequence[int]) -> list[Scored]:
        folds, found = inner_folds(train), []
        for seed in seeds if random else seeds[:1]:
            held = [held_out(fit, train, folds, candidate, seed) for candidate in grid]
            best = min(range(len(grid)), key=lambda c: held_out_loss(held[c], train.labels))
            bags, instances = fit(train, grid[best], seed)(test)
            found.append(Scored(calibrated(held[best], train.labels, bags), instances.double()))
        return found if random else found * len(seeds)

    return method


def held_out(fit: Fit, train: FeatureSet, folds: Sequence[Fold], candidate: Any, seed: int) -> Tensor:
    """Logit (B,) of each training bag by a model fitted without its fold."""
    logits = torch.empty(train.n_scans, dtype=torch.float64)
    for inside, outside in folds:
        learn, out = (train.select([train.scans[b] for b in part]) for part in (inside, outside))
        logits[list(outside)] = fit(learn, candidate, seed)(out)[0].double()
    return logits
