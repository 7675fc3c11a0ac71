"""Linear models of bags: logistic regression on pooled features, and MI-SVM.

MI-SVM (Andrews, Tsochantaridis and Hofmann, NeurIPS 2002): a linear SVM separates all instances of negative
bags from one witness of each positive bag, the instance with the largest decision value; fit and choice
alternate. The kernel is linear, or an RBF by Nyström features.

Shapes: B bags, N instances, D features.
"""

from typing import Literal

import numpy as np
import torch
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC
from torch import Tensor

from ich_mil.gp.aggregation import scan_logit
from ich_mil.sets.features import FeatureSet
from research.benchmarks.field.stacked import FURTHEST
from research.benchmarks.field.tuning import Predict, by_grid
from research.reproduce.statistics.feature_baselines import How, pool

PENALTIES = (0.001, 0.01, 0.1, 1.0)
"""Candidates of C, the inverse strength of the penalty of logistic regression."""

SVM_GRID = tuple((kernel, C) for kernel in ("linear", "rbf") for C in (0.01, 1.0))
"""Candidates of MI-SVM."""

NYSTROEM = 100
"""Largest number of Nyström features of the RBF kernel."""

ROUNDS = 20
"""Largest number of choices of the witnesses."""


def logistic(how: How, train: FeatureSet, C: float) -> Predict:
    """Logistic regression on the mean or maximum of the features over the instances of a bag.

    Standardised features are clipped, as for the networks: some features of tiger hardly vary in training.
    """
    clip = FunctionTransformer(np.clip, kw_args={"a_min": -FURTHEST, "a_max": FURTHEST})
    model = make_pipeline(StandardScaler(), clip, LogisticRegression(C=C, max_iter=10_000))
    model.fit(pool(train.x, train.offsets, how).numpy(), train.labels.numpy())

    def predict(bags: FeatureSet) -> tuple[Tensor, Tensor]:
        each = (pool(bags.x, bags.offsets, how), bags.x.double())
        of_bags, of_instances = (torch.from_numpy(model.decision_function(x.numpy())) for x in each)
        return of_bags, of_instances

    return predict


def mi_svm(train: FeatureSet, candidate: tuple[Literal["linear", "rbf"], float], seed: int) -> Predict:
    """MI-SVM; the first witness of a positive bag is the mean of its instances."""
    kernel, C = candidate
    steps = [StandardScaler()]
    if kernel == "rbf":
        size = min(NYSTROEM, len(train.x))
        steps.append(Nystroem(gamma=1 / train.x.shape[1], n_components=size, random_state=seed))
    features = make_pipeline(*steps)
    phi = features.fit_transform(train.x.double().numpy())  # (N, K)
    parts = np.split(phi, train.offsets[1:-1].tolist())
    positive = [part for part, label in zip(parts, train.labels.tolist(), strict=True) if label]
    negative = np.concatenate([part for part, y in zip(parts, train.labels.tolist(), strict=True) if not y])
    y = np.repeat([1, 0], [len(positive), len(negative)])
    svm = LinearSVC(C=C, class_weight="balanced", dual=False)
    witnesses, chosen = [part.mean(0) for part in positive], None
    for _ in range(ROUNDS):
        svm.fit(np.concatenate([np.stack(witnesses), negative]), y)
        before, chosen = chosen, [int(svm.decision_function(part).argmax()) for part in positive]
        if chosen == before:
            break
        witnesses = [part[n] for part, n in zip(positive, chosen, strict=True)]

    def predict(bags: FeatureSet) -> tuple[Tensor, Tensor]:
        values = torch.from_numpy(svm.decision_function(features.transform(bags.x.double().numpy())))
        return scan_logit(values, bags.offsets, "max"), values

    return predict


POOLED = {
    "mean-pooled logistic regression": by_grid(
        lambda train, C, seed: logistic("mean", train, C), PENALTIES, random=False
    ),
    "max-pooled logistic regression": by_grid(
        lambda train, C, seed: logistic("max", train, C), PENALTIES, random=False
    ),
    "MI-SVM": by_grid(mi_svm, SVM_GRID),
}
"""Methods by name."""
