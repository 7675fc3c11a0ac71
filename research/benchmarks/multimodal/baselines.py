"""Baselines of multiple-instance classification, short versions on top of scikit-learn.

In: instances (N, D), the bag of each row, a label a bag. Out: a score of each test bag, higher for positive.
Bags of several modalities become one table as in the thesis (section 2.3.2): each modality has columns of its
own, all others are 0 (`joined`).

    pooled       logistic regression on the mean, or the maximum, of a bag's instances
    nsk_svm      normalised set kernel: mean RBF kernel over pairs of instances (Gärtner et al. 2002)
    mi_svm       instance labels and an instance classifier in turn, at least one positive a positive bag
    mi_svm_bags  MI-SVM: a positive bag is its highest instance, chosen in turn (Andrews et al. 2003)
    miles        bags embedded by their largest likeness to each training instance, L1 classifier (Chen 2006)

Regularisation is C = 1 on standardised features, RBF width γ = 1 / D, scikit-learn's defaults.

Shapes: B bags, N instances, D features.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

Instances = tuple[np.ndarray, np.ndarray]
"""Features (N, D) and the bags (N,), numbered 0 to B - 1."""
Baseline = Callable[[Instances, np.ndarray, Instances], np.ndarray]

ROUNDS = 10
"""Most turns of the alternating methods."""


def joined(X: Sequence[np.ndarray], bags: Sequence[np.ndarray]) -> Instances:
    """All modalities as one table, blocks of columns side by side."""
    widths = [x.shape[1] for x in X]
    table = np.zeros((sum(map(len, X)), sum(widths)))
    row = column = 0
    for x in X:
        table[row : row + len(x), column : column + x.shape[1]] = x
        row, column = row + len(x), column + x.shape[1]
    return table, np.concatenate(bags)


def pooled(data: Instances, n_bags: int, *, by: str) -> np.ndarray:
    """Mean or maximum (B, D) of each bag's instances."""
    x, bags = data
    if by == "mean":
        return _mean_by_bag(x, bags, n_bags)
    out = np.full((n_bags, x.shape[1]), -np.inf)
    np.maximum.at(out, bags, x)
    return out


def _n_bags(data: Instances) -> int:
    return int(data[1].max()) + 1


def _pooled_regression(train: Instances, y: np.ndarray, test: Instances, *, by: str) -> np.ndarray:
    a, b = (pooled(one, _n_bags(one), by=by) for one in (train, test))
    scaler = StandardScaler().fit(a)
    model = LogisticRegression(max_iter=2000).fit(scaler.transform(a), y)
    return np.asarray(model.decision_function(scaler.transform(b)))


def _scaled(train: Instances, test: Instances) -> tuple[np.ndarray, np.ndarray]:
    scaler = StandardScaler().fit(train[0])
    return scaler.transform(train[0]), scaler.transform(test[0])


def _mean_by_bag(values: np.ndarray, bags: np.ndarray, n_bags: int) -> np.ndarray:
    """Rows (N, D) averaged by bag: (B, D)."""
    counts = np.bincount(bags, minlength=n_bags)[:, None]
    return np.stack([np.bincount(bags, column, minlength=n_bags) for column in values.T], axis=1) / counts


def nsk_svm(train: Instances, y: np.ndarray, test: Instances) -> np.ndarray:
    a, b = _scaled(train, test)
    n = _n_bags(train)
    gamma = 1 / a.shape[1]

    def against_train(x: np.ndarray, bags: np.ndarray) -> np.ndarray:
        parts = []
        for bag in range(int(bags.max()) + 1):
            kernel = rbf_kernel(x[bags == bag], a, gamma=gamma).mean(0)  # (N,)
            parts.append(np.bincount(train[1], kernel, minlength=n) / np.bincount(train[1], minlength=n))
        return np.array(parts)

    own = against_train(a, train[1])
    cross = against_train(b, test[1])
    norm = [rbf_kernel(b[test[1] == bag], gamma=gamma).mean() for bag in range(_n_bags(test))]
    scale = np.sqrt(np.diag(own))
    model = SVC(kernel="precomputed").fit(own / np.outer(scale, scale), y)
    return np.asarray(model.decision_function(cross / np.outer(np.sqrt(norm), scale)))


def _highest(score: np.ndarray, bags: np.ndarray, n_bags: int) -> np.ndarray:
    """Row (B,) of the highest score of each bag."""
    order = np.lexsort((score, bags))
    return np.asarray(order[np.searchsorted(bags[order], np.arange(n_bags), side="right") - 1])


def _bag_max(score: np.ndarray, bags: np.ndarray) -> np.ndarray:
    return np.asarray(score[_highest(score, bags, int(bags.max()) + 1)])


def mi_svm(train: Instances, y: np.ndarray, test: Instances) -> np.ndarray:
    a, b = _scaled(train, test)
    bags, n = train[1], len(y)
    labels = y[bags]
    for _ in range(ROUNDS):
        model = LinearSVC(dual=False).fit(a, labels)
        score = model.decision_function(a)
        new = np.where(y[bags] == 1, score > 0, False).astype(int)
        new[_highest(score, bags, n)[y == 1]] = 1
        if (new == labels).all():
            break
        labels = new
    return _bag_max(model.decision_function(b), test[1])


def mi_svm_bags(train: Instances, y: np.ndarray, test: Instances) -> np.ndarray:
    a, b = _scaled(train, test)
    bags, n = train[1], len(y)
    negative = np.flatnonzero(y[bags] == 0)
    chosen = None
    positive = _mean_by_bag(a, bags, n)[y == 1]
    for _ in range(ROUNDS):
        x = np.concatenate([positive, a[negative]])
        labels = np.r_[np.ones(len(positive)), np.zeros(len(negative))]
        model = LinearSVC(dual=False, class_weight="balanced").fit(x, labels)
        new = _highest(model.decision_function(a), bags, n)[y == 1]
        if chosen is not None and (new == chosen).all():
            break
        chosen, positive = new, a[new]
    return _bag_max(model.decision_function(b), test[1])


def miles(train: Instances, y: np.ndarray, test: Instances) -> np.ndarray:
    a, b = _scaled(train, test)

    def embedded(x: np.ndarray, bags: np.ndarray) -> np.ndarray:
        parts = [
            rbf_kernel(x[bags == bag], a, gamma=1 / a.shape[1]).max(0) for bag in range(int(bags.max()) + 1)
        ]
        return np.array(parts)

    model = LinearSVC(penalty="l1", dual=False, max_iter=2000).fit(embedded(a, train[1]), y)
    return np.asarray(model.decision_function(embedded(b, test[1])))


BASELINES: dict[str, Baseline] = {
    "mean-pooled LR": partial(_pooled_regression, by="mean"),
    "max-pooled LR": partial(_pooled_regression, by="max"),
    "NSK-SVM": nsk_svm,
    "MI-SVM": mi_svm_bags,
    "mi-SVM": mi_svm,
    "MILES": miles,
}
