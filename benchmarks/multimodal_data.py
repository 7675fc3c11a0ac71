"""Bags of two modalities for the multimodal benchmarks: the authors' simulated set, and the thesis's design.

The design (thesis of seed 003, section 2.3.1): an instance is of the second modality with probability 1 /
(r + 1); features are N(0, 1) in the first and N(-1, 1) in the second, 16 each; P(primary) = Φ(a + x b) and
P(positive) = Φ(α + Σ δ x β). b = (1, ..., 1), d = γ = (-.5 x 8, .5 x 8), β = (-1 x 8, 1 x 8). a and c give
the wanted shares of primary instances: x b is N(0, 16), z d N(0, 4). The thesis names no α: 0 here.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri
from sklearn.metrics import log_loss, roc_auc_score

from ich_mil.multimodal.inputs import Method

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SIGNS = np.r_[-np.ones(8), np.ones(8)]
PPI = (0.35, 0.35)
"""Shares of primary instances in the basic setting (thesis, section 2.3.1), and in the authors' set."""

INNER = (np.ones(16), 0.5 * SIGNS)
OUTER = (SIGNS, 0.5 * SIGNS)


FAST: tuple[Method, ...] = ("variational", "laplace")


class Set(NamedTuple):
    """Bags with known primary instances.

    Attributes:
        X: features (N_m, 16) of both modalities.
        bags: numbers (N_m,) of their bags, 0 to B - 1.
        labels: (B,).
        primary: (N_m,) δ of both modalities.
    """

    X: list[np.ndarray]
    bags: list[np.ndarray]
    labels: np.ndarray
    primary: list[np.ndarray]


def auc_of_instances(test: Set, p: Sequence[np.ndarray]) -> float:
    """AUC of primary instances, both modalities together."""
    return float(roc_auc_score(np.concatenate(test.primary), np.concatenate(list(p))))


def timed(work: Callable[[], object]) -> tuple[object, float]:
    began = process_time()
    return work(), process_time() - began


def number(value: float) -> str:
    return f"{value:.3f}"


def auc(y: np.ndarray, p: object) -> str:
    return number(float(roc_auc_score(y, np.asarray(p))))


def bag_loss(y: np.ndarray, p: np.ndarray) -> float:
    return float(log_loss(y, np.clip(p, 1e-12, 1 - 1e-12)))


def command(part: str, replicates: int) -> str:
    return f"python -m benchmarks.multimodal --parts {part} --replicates {replicates}"


def authors_set() -> tuple[Set, Set]:
    """The authors' 500 training and 300 test bags of ten instances."""
    sets = []
    with np.load(DATA / "multimodal" / "simulated_500_300.npz") as file:
        for part in ("train", "test"):
            X, Z, second, y, delta = (file[f"{name}_{part}"] for name in ("X", "Z", "w", "y", "delta"))
            sets.append(_masked(X, Z, second.astype(bool), y.astype(int), delta.astype(int)))
    return sets[0], sets[1]


def _masked(X: np.ndarray, Z: np.ndarray, second: np.ndarray, y: np.ndarray, delta: np.ndarray) -> Set:
    bags = np.broadcast_to(np.arange(len(y))[:, None], second.shape)
    pick = (~second, second)
    return Set([X[~second], Z[second]], [bags[k] for k in pick], y, [delta[k] for k in pick])


def intercepts(ppi: tuple[float, float]) -> tuple[float, float]:
    """Inner intercepts a and c that give shares `ppi` of primary instances; the mean of z d is 0."""
    a, c = (float(ndtri(p) * np.sqrt(1 + v)) for p, v in zip(ppi, (16.0, 4.0), strict=True))
    return a, c


def simulate(n: int, m: int, r: float, ppi: tuple[float, float], rng: np.random.Generator) -> Set:
    """Bags of the thesis's design.

    Args:
        n: bags.
        m: instances a bag.
        r: instances of the first modality for one of the second.
        ppi: shares of primary instances in both modalities.
        rng: of all draws.
    """
    second = rng.random((n, m)) < 1 / (r + 1)
    x = rng.standard_normal((n, m, 16)) - second[..., None]
    score = sum(np.where(second == bool(k), a + x @ INNER[k], 0.0) for k, a in enumerate(intercepts(ppi)))
    delta = rng.random((n, m)) < ndtr(score)
    effect = np.where(second, x @ OUTER[1], x @ OUTER[0])
    y = rng.random(n) < ndtr((delta * effect).sum(1))
    return _masked(x, x, second, y.astype(int), delta.astype(int))


def oracle(
    test: Set, ppi: tuple[float, float], rng: np.random.Generator
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Bag and primary-instance probabilities at the true parameters, δ averaged over 1,000 draws."""
    primary = [ndtr(a + x @ b) for a, x, b in zip(intercepts(ppi), test.X, INNER, strict=True)]
    total = np.zeros(len(test.labels))
    for _ in range(1000):
        eta = np.zeros(len(test.labels))
        for x, bags, p, beta in zip(test.X, test.bags, primary, OUTER, strict=True):
            eta += np.bincount(bags, (rng.random(len(p)) < p) * (x @ beta), minlength=len(eta))
        total += ndtr(eta)
    return total / 1000, primary
